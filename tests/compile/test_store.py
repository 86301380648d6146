"""Programs on disk: they survive the process, and no damage to them can give a wrong result."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SCRIPT = textwrap.dedent(
    """
    import torch
    from systolic.compile import executables
    x = torch.arange(6, dtype=torch.float32, device="tpu").reshape(2, 3)
    y = torch.compile(lambda x: (x * 2 + 1).sum(0), backend="tpu")(x)
    assert y.cpu().tolist() == [8.0, 12.0, 16.0], y
    s = executables.statistics
    print("RESULT", s.compilations, s.cache_hits)
    """
)


def _run(folder: Path) -> tuple[int, int, str]:
    """(programs compiled, programs loaded, stderr) of one process with its programs in ``folder``."""
    environment = {**os.environ, "SYSTOLIC_CACHE_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT"))
    compiled, loaded = map(int, line.split()[1:])
    return compiled, loaded, done.stderr


def _files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.xla"))


@pytest.fixture(scope="module")
def filled(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    compiled, loaded, _ = _run(folder)
    assert compiled > 0 and loaded == 0
    assert len(_files(folder)) == compiled
    return folder


def test_second_process_compiles_nothing(filled):
    compiled, loaded, _ = _run(filled)
    assert compiled == 0 and loaded == len(_files(filled))


@pytest.mark.parametrize("damage", ["torn", "flipped", "empty", "foreign"])
def test_damaged_programs_are_compiled_again(filled, damage):
    files = _files(filled)
    for path in files:
        raw = path.read_bytes()
        if damage == "torn":
            path.write_bytes(raw[: len(raw) // 2])
        elif damage == "flipped":
            path.write_bytes(raw[:100] + bytes([raw[100] ^ 0xFF]) + raw[101:])
        elif damage == "empty":
            path.write_bytes(b"")
        else:
            import hashlib

            payload = b"not a program"
            path.write_bytes(hashlib.sha256(payload).digest() + payload)
    compiled, loaded, stderr = _run(filled)
    assert compiled == len(files) and loaded == 0
    assert "damaged" in stderr or "cannot be used" in stderr
    assert len(_files(filled)) == len(files), "the damaged files were not replaced"


def test_folder_that_cannot_be_written_is_reported_once(tmp_path):
    blocked = tmp_path / "programs"
    blocked.write_text("a file where the folder should be")
    compiled, _, stderr = _run(tmp_path)
    assert compiled > 0
    assert stderr.count("programs are not stored") == 1
