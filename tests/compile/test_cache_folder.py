"""The folder of programs: never a wrong payload, whatever happens to files and writers; bounded; movable."""

import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time

import pytest
from systolic import cli, settings
from systolic.compile import store, stored


@pytest.fixture
def root(tmp_path):
    settings.apply({"cache_dir": str(tmp_path)}, "test")
    yield tmp_path / "programs"
    settings.reset()


def key(number: int) -> str:
    return f"{number:064x}"


def payload(number: int, size: int = 2000) -> bytes:
    return random.Random(number).randbytes(size)


def fill(count: int, size: int = 2000) -> None:
    for number in range(count):
        store.write(key(number), payload(number, size), f"program {number}")


def test_what_was_written_is_read(root):
    fill(3)
    assert [store.read(key(n)) for n in range(4)] == [payload(0), payload(1), payload(2), None]
    assert [e.header()["name"] for e in sorted(stored.entries(root), key=lambda e: e.key)] == [
        "program 0", "program 1", "program 2"
    ]  # fmt: skip


def test_random_damage_in_fifty_files_never_gives_another_payload(root):
    fill(50)
    rng = random.Random(5)
    for entry in stored.entries(root):
        raw = bytearray(entry.path.read_bytes())
        for _ in range(rng.randint(1, 4)):
            raw[rng.randrange(len(raw))] ^= rng.randint(1, 255)
        if rng.random() < 0.3:
            del raw[rng.randrange(len(raw)) :]
        entry.path.write_bytes(raw)
    assert [store.read(key(n)) for n in range(50)] == [None] * 50
    assert stored.entries(root) == [], "damaged files were to be removed"
    fill(50)
    assert all(store.read(key(n)) == payload(n) for n in range(50))


WRITER = """
import random, sys
from systolic import settings
from systolic.compile import store
settings.apply({"cache_dir": sys.argv[1]}, "test")
print("ready", flush=True)
while True:
    for n in range(40):
        store.write(f"{n:064x}", random.Random(n).randbytes(200_000), "p")
"""


def test_killing_writers_leaves_whole_files(root, tmp_path):
    """Fifty writers, two at a time on the same keys, killed with SIGKILL in the middle of their writes."""
    rng = random.Random(1)
    for _ in range(25):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE,
                             env=dict(os.environ, TORCH_DEVICE_BACKEND_AUTOLOAD="0"))
            for _ in range(2)
        ]  # fmt: skip
        for writer in writers:
            assert writer.stdout.readline() == b"ready\n"
        time.sleep(rng.random() * 0.03)
        for writer in writers:
            writer.send_signal(signal.SIGKILL)
            writer.wait()
            writer.stdout.close()
        for number in range(40):
            assert store.read(key(number)) in (None, payload(number, 200_000))
    whole, damaged = stored.verify(root)
    assert whole.count > 0 and not damaged


def test_the_least_recently_used_go_first(root):
    fill(10)
    for number, entry in enumerate(sorted(stored.entries(root), key=lambda e: e.key)):
        os.utime(entry.path, (1000 + number, 1000 + number))
    store.read(key(0))  # used now
    size = stored.entries(root)[0].size
    removed = stored.prune(root, 3 * size + 10)
    assert removed.count == 7
    assert sorted(e.key for e in stored.entries(root)) == [key(0), key(8), key(9)]


def test_writing_keeps_the_folder_within_its_limit(root, monkeypatch):
    monkeypatch.setattr(store, "_LOOK_AGAIN", 10_000)
    monkeypatch.setattr(store, "_unlooked", None)
    settings.apply({"program_cache_bytes": 50_000}, "test")
    for number in range(100):
        store.write(key(number), payload(number), "p")
        assert sum(e.size for e in stored.entries(root)) <= 50_000 + 10_000 + 3_000
    assert store.read(key(99)) == payload(99) and store.read(key(0)) is None


def test_a_full_disk_is_reported_once_and_harmless(root, monkeypatch, caplog):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "_failed", False)
    monkeypatch.setattr(store.tempfile, "mkstemp", full)
    fill(3)
    assert caplog.text.count("No space left on device") == 1
    assert store.read(key(0)) is None


def test_stale_parts_of_killed_writers_are_removed(root):
    fill(1)
    part = root / "00" / ".old.part"
    part.write_bytes(b"x")
    fresh = root / "00" / ".new.part"
    fresh.write_bytes(b"x")
    os.utime(part, (1000, 1000))
    stored.prune(root, 10**9)
    assert not part.exists() and fresh.exists()


def run(*arguments, capsys):
    code = cli.main(["cache", *map(str, arguments)])
    return code, capsys.readouterr()


def test_command_lists(root, capsys):
    fill(2)
    code, shown = run("ls", capsys=capsys)
    assert code == 0 and "program 0" in shown.out and "2 programs" in shown.out and str(root) in shown.out
    code, shown = run("ls", "--json", capsys=capsys)
    listing = json.loads(shown.out)
    assert code == 0 and {p["name"] for p in listing["programs"]} == {"program 0", "program 1"}
    assert listing["bytes"] == sum(e.size for e in stored.entries(root))


def test_command_prunes(root, capsys):
    fill(10)
    size = stored.entries(root)[0].size
    assert run("prune", capsys=capsys)[1].out.startswith("removed 0 programs")
    assert run("prune", "--max-bytes", 4 * size + 5, capsys=capsys)[1].out.startswith("removed 6 programs")
    os.utime(stored.entries(root)[0].path, (1000, 1000))
    assert run("prune", "--unused-days", 1, capsys=capsys)[1].out.startswith("removed 1 programs")
    assert run("prune", "--all", capsys=capsys)[1].out.startswith("removed 3 programs")
    with pytest.raises(SystemExit):
        run("prune", "--max-bytes", "many", capsys=capsys)
    assert "give a number of bytes" in capsys.readouterr().err


def test_command_verifies(root, capsys):
    fill(3)
    assert run("verify", capsys=capsys)[0] == 0
    path = store.path_of(key(1))
    path.write_bytes(path.read_bytes()[:-1])
    code, shown = run("verify", capsys=capsys)
    assert code == 1 and key(1) in shown.out and "2 programs are whole" in shown.out
    assert not path.exists()


def test_export_and_import_move_programs(root, tmp_path, capsys):
    fill(3)
    archive = tmp_path / "programs.tar"
    assert run("export", archive, capsys=capsys)[1].out.startswith("wrote 3 programs")
    settings.apply({"cache_dir": str(tmp_path / "other")}, "test")
    store.write(key(1), payload(1), "mine")
    code, shown = run("import", archive, capsys=capsys)
    assert code == 0 and shown.out.startswith("added 2 programs") and "1 were there already" in shown.out
    assert [store.read(key(n)) for n in range(3)] == [payload(0), payload(1), payload(2)]


def test_import_refuses_what_is_no_program(root, tmp_path, capsys):
    fill(1)
    archive = tmp_path / "bad.tar"
    outside = tmp_path / "outside"
    outside.write_bytes(b"x")
    with tarfile.open(archive, "w") as tar:
        tar.add(outside, "../../escaped.xla")
        tar.add(outside, f"{key(7)}.xla")
        tar.add(tmp_path, f"{key(8)}.xla", recursive=False)
        tar.add(store.path_of(key(0)), f"{key(9)}.xla")
    code, shown = run("import", archive, capsys=capsys)
    assert code == 1 and shown.out.count("left out") == 3
    assert not list(tmp_path.rglob("escaped*")) and store.read(key(7)) is None
    assert store.read(key(9)) == payload(0), "the name of a whole file is taken as it is"
    for wrong in (outside, tmp_path / "missing.tar"):
        code, shown = run("import", wrong, capsys=capsys)
        assert code == 1 and shown.err.startswith("systolic cache: import:") and "Traceback" not in shown.err


def test_writers_of_one_key_at_once_leave_one_whole_file(root):
    from concurrent.futures import ThreadPoolExecutor

    payloads = [payload(number, 1 << 16) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda p: [store.write(key(0), p, "writer") for _ in range(20)], payloads))
    assert store.read(key(0)) in payloads
    assert len(list(root.rglob("*.xla"))) == 1 and not list(root.rglob("*.part"))


def test_other_versions_flags_and_sources_are_other_programs(tmp_path):
    """Every key begins with the fingerprint."""
    import jax
    import jaxlib
    import torch
    from systolic.device import client

    def fingerprint(change=lambda patch: None) -> str:
        with pytest.MonkeyPatch.context() as patch:
            change(patch)
            return client.fingerprint.__wrapped__()

    assert fingerprint() == fingerprint()
    for module in (jax, jaxlib, torch):
        assert fingerprint(lambda patch: patch.setattr(module, "__version__", "0")) != fingerprint()
    assert fingerprint(lambda patch: patch.setenv("XLA_FLAGS", "--xla_dump_hlo_as_text")) != fingerprint()
    source = tmp_path / "kernels" / "kernel.cc"
    source.parent.mkdir()
    found = set()
    for text in ("first", "second"):
        source.write_text(text)
        found.add(fingerprint(lambda patch: patch.setattr(client, "__file__", str(tmp_path / "device" / "client.py"))))
    assert len(found) == 2
