"""Set-up and progress, without installing anything."""

import importlib.util
import io
import sys
import threading
import time
from pathlib import Path

import pytest

from systolic import progress

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def bootstrap(monkeypatch, tmp_path):
    """The script as a module, with a copy of its inputs as the repository."""
    spec = importlib.util.spec_from_file_location("systolic_bootstrap", ROOT / "scripts/bootstrap.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    for folder in ("requirements", "src/systolic/device/csrc", "src/systolic/kernels/cpu/csrc"):
        (tmp_path / folder).mkdir(parents=True)
    for path in (ROOT / "requirements").iterdir():
        (tmp_path / "requirements" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "src/systolic/device/csrc/cell.cpp").write_text("int cell;\n")
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def stamps(bootstrap, tests=True):
    result = {}
    for stage in bootstrap.stages(tests):
        result[stage.key] = bootstrap.stamp_of(stage, result)
    return result


def changed(before, after):
    return {key for key in before if before[key] != after[key]}


@pytest.mark.parametrize(
    "path, redone",
    [
        ("src/systolic/device/csrc/cell.cpp", {"systolic"}),
        ("src/systolic/kernels/cpu/build.py", {"systolic"}),
        ("src/systolic/kernels/cpu/csrc/attention.cc", {"systolic"}),
        ("src/systolic/kernels/cpu/calls.py", set()),
        ("requirements/vllm.txt", {"packages"}),
        ("requirements/test.txt", {"tests"}),
        ("requirements/core.txt", {"core", "vllm", "packages", "bare", "tests", "systolic"}),
    ],
)
def test_a_changed_input_redoes_what_depends_on_it_and_nothing_else(bootstrap, path, redone):
    before = stamps(bootstrap)
    with open(bootstrap.ROOT / path, "a") as file:
        file.write("# changed\n")
    assert changed(before, stamps(bootstrap)) == redone


def test_a_new_vllm_pin_rebuilds_vllm_under_that_version(bootstrap):
    before = stamps(bootstrap)
    (bootstrap.ROOT / "requirements/vllm-engine.txt").write_text("vllm==9.9.9\n")
    assert changed(before, stamps(bootstrap)) == {"vllm"}
    stage = next(stage for stage in bootstrap.stages(False) if stage.key == "vllm")
    assert dict(stage.environment)["VLLM_VERSION_OVERRIDE"] == "9.9.9"


def test_built_files_are_no_input(bootstrap):
    before = stamps(bootstrap)
    (bootstrap.ROOT / "src/systolic/kernels/cpu/csrc/kernels.so").write_bytes(b"x")
    assert changed(before, stamps(bootstrap)) == set()


class Recorder:
    """Stands in for `run_stage`: notes the stages run, makes what they would, and can fail at one."""

    def __init__(self, root, failing=None):
        self.root, self.failing, self.ran = root, failing, []

    def __call__(self, stage, folder, log):
        self.ran.append(stage.key)
        if stage.key == self.failing:
            log.write(b"error: the compiler is unhappy\n")
            return 1
        (folder / "bin").mkdir(parents=True, exist_ok=True)
        (folder / "bin/python").touch()
        if stage.key == "systolic":
            (folder / "bin/systolic").touch()
            (self.root / "src/systolic/device/_C.so").touch()
            (self.root / "src/systolic/kernels/cpu/lib").mkdir(exist_ok=True)
            (self.root / "src/systolic/kernels/cpu/lib/kernels.so").touch()
        return 0


ALL = ["venv", "core", "vllm", "packages", "bare", "systolic"]


def run(bootstrap, monkeypatch, folder, failing=None, tests=False):
    recorder = Recorder(bootstrap.ROOT, failing)
    monkeypatch.setattr(bootstrap, "run_stage", recorder)
    monkeypatch.setattr(bootstrap, "check_prerequisites", lambda: None)
    bootstrap.set_up(folder, tests, progress)
    return recorder.ran


def test_second_run_does_nothing_and_tests_are_added_later(bootstrap, monkeypatch, tmp_path):
    folder = tmp_path / "venv"
    assert run(bootstrap, monkeypatch, folder) == ALL
    assert run(bootstrap, monkeypatch, folder) == []
    assert run(bootstrap, monkeypatch, folder, tests=True) == ["tests"]


@pytest.mark.parametrize("library", ["device/_C.so", "kernels/cpu/lib/kernels.so"])
def test_lost_library_is_built_again(bootstrap, monkeypatch, tmp_path, library):
    folder = tmp_path / "venv"
    run(bootstrap, monkeypatch, folder)
    (bootstrap.ROOT / "src/systolic" / library).unlink()
    assert run(bootstrap, monkeypatch, folder) == ["systolic"]


def test_failure_shows_the_log_and_the_remedy_and_the_next_run_resumes(bootstrap, monkeypatch, tmp_path):
    folder = tmp_path / "venv"
    with pytest.raises(bootstrap.SetupError) as caught:
        run(bootstrap, monkeypatch, folder, failing="systolic")
    assert "the compiler is unhappy" in str(caught.value)
    assert "g++ 11 or newer" in str(caught.value)
    assert run(bootstrap, monkeypatch, folder) == ["systolic"]


def test_missing_tools_are_named_one_line_each(bootstrap, monkeypatch):
    monkeypatch.setattr(bootstrap.shutil, "which", lambda tool: None)
    with pytest.raises(bootstrap.SetupError) as caught:
        bootstrap.check_prerequisites()
    lines = str(caught.value).splitlines()
    assert [line.split()[0] for line in lines] == ["g++", "make"]
    assert all("apt-get install" in line for line in lines)


def test_other_python_is_refused_with_what_to_install(bootstrap, monkeypatch):
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 9, 1))
    with pytest.raises(bootstrap.SetupError, match="Python 3.11 is needed, this is 3.9.*PYTHON="):
        bootstrap.check_prerequisites()


def test_progress_scales_the_estimate_by_what_was_measured(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    stream = io.StringIO()
    shown = progress.Progress([progress.Step("a", "First", 10), progress.Step("b", "Second", 30)], stream)
    assert shown.left() == 40
    with shown.step("a"):
        clock[0] += 20
    # The first took 20 s in place of 10; with 30 s of prior that is a factor of 50 / 40 for the second.
    assert shown.left() == 37.5
    assert shown.left("b", elapsed=30) == 7.5
    with pytest.raises(ValueError), shown.step("b"):
        raise ValueError
    lines = stream.getvalue().splitlines()
    assert lines[0] == "[1/2] First ... about 40 s left" and lines[1] == "[1/2] First: done in 20 s"
    assert lines[-1].startswith("[2/2] Second: failed after")


def test_an_overdue_step_says_so_and_raises_the_estimate_of_the_others():
    steps = [progress.Step("a", "First", 10), progress.Step("b", "Second", 40)]
    stream = io.StringIO()
    shown = progress.Progress(steps, stream)
    assert shown.left("a", elapsed=10) == 40
    # 30 s of prior and 90 s for the 10 s step: three times slower than expected.
    assert shown.left("a", elapsed=90) == 40 * (30 + 90) / (30 + 10)
    ended = threading.Event()
    shown.heartbeat = 0.01
    ticker = threading.Thread(target=shown._tick, args=("head", "a", time.monotonic() - 90, ended))
    ticker.start()
    time.sleep(0.1)
    ended.set()
    ticker.join()
    line = stream.getvalue().splitlines()[0]
    assert line == "head ... 1 min 30 s, longer than the expected 10 s, then about 2 min 0 s"


@pytest.mark.parametrize(
    "seconds, text", [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (125, "2 min 5 s")]
)
def test_duration(seconds, text):
    assert progress.duration(seconds) == text
