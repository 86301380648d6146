"""Programs are kept on disk between processes; a damaged or missing folder costs time, never an answer."""

import json
import os
import subprocess
import sys

import pytest

CODE = """
import json, logging, sys
logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
import torch
x = torch.arange(6.0, device="tpu").view(2, 3)
cache = torch.zeros(4, 3, device="tpu").add_(0)
def step(c, x):
    c.index_copy_(0, torch.tensor([1, 3], device=c.device), x)
    return (x @ x.t()).relu()
f = torch.compile(step)
out = f(cache, x)
torch.manual_seed(0)
r = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.5))(torch.ones(64, device="tpu"))
from systolic.compile.executables import statistics as s
print(json.dumps({"out": out.tolist(), "cache": cache.tolist(), "random": r.tolist(),
                  "sum": (x + 1).sum().item(), "compiled": s.compilations, "loaded": s.cache_hits}))
"""


def run(folder, **env):
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=240,
                          env=dict(os.environ, SYSTOLIC_CACHE_DIR=str(folder), **env))  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def answers(result):
    return {k: v for k, v in result.items() if k not in ("compiled", "loaded")}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    result, _ = run(folder)
    return folder, result


def files(folder):
    return sorted(folder.rglob("*.xla"))


def test_first_process_compiles_and_stores(filled):
    folder, first = filled
    assert first["compiled"] > 5 and first["loaded"] == 0
    assert len(files(folder)) == first["compiled"]
    assert not list(folder.rglob("*.part"))
    assert first["cache"][1] == [0.0, 1.0, 2.0] and first["out"] == [[5.0, 14.0], [14.0, 50.0]]


def test_second_process_compiles_nothing(filled):
    folder, first = filled
    second, errors = run(folder)
    assert second["compiled"] == 0 and second["loaded"] == first["compiled"]
    assert answers(second) == answers(first)
    assert errors == ""


def test_damaged_files_are_compiled_again(filled, tmp_path):
    import shutil

    from systolic.compile.store import pack

    folder, first = filled
    copy = tmp_path / "cache"
    shutil.copytree(folder, copy)
    stored = files(copy)
    for i, path in enumerate(stored):
        raw = bytearray(path.read_bytes())
        if i % 4 == 0:
            raw[len(raw) // 2] ^= 1  # a flipped bit
        elif i % 4 == 1:
            raw = raw[: len(raw) // 2]  # torn
        elif i % 4 == 2:
            raw = b""
        else:  # whole, but not a program
            raw = pack(b"nonsense", {"name": "nonsense"})
        path.write_bytes(raw)
    second, errors = run(copy)
    assert second["compiled"] == first["compiled"] and second["loaded"] == 0
    assert answers(second) == answers(first)
    assert "damaged" in errors and "compiling it again" in errors
    assert "Traceback" not in errors
    third, errors = run(copy)
    assert third["compiled"] == 0 and errors == ""


def test_folder_that_cannot_be_written_is_reported_once(tmp_path, filled):
    _, first = filled
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    result, errors = run(blocker / "cache")
    assert answers(result) == answers(first) and result["compiled"] == first["compiled"]
    assert errors.count("programs are not stored") == 1 and str(blocker) in errors


def test_other_flags_are_other_programs(filled):
    folder, first = filled
    result, _ = run(folder, XLA_FLAGS="--xla_force_host_platform_device_count=2")
    assert result["loaded"] == 0 and answers(result) == answers(first)
