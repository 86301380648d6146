"""Set up the virtual environment: pinned packages, vLLM without CUDA, the C++ core.

Standard library only. Each step leaves a stamp of its inputs, so that a second run does only what changed.
torch comes from pip's ordinary configuration. Where that gives a CUDA build (it works, and is larger), set
PIP_EXTRA_INDEX_URL to an index of CPU builds before the first run.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST, NEWEST = (3, 11), (3, 13)
CORE, CPU_KERNELS = "src/systolic/device", "src/systolic/kernels/cpu"
BUILD_INPUTS = (f"{CORE}/csrc/*", f"{CPU_KERNELS}/csrc/*", f"{CPU_KERNELS}/build.py")
LOG_NAME = "bootstrap.log"
TAIL_LINES = 15


class SetupError(RuntimeError):
    """Set-up cannot go on; the message is the whole explanation."""


def load_progress():
    """The module systolic.progress, loaded by path: the package is not installed yet."""
    spec = importlib.util.spec_from_file_location("systolic_progress", ROOT / "src/systolic/progress.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Stage:
    """One stage of set-up.

    `seconds` were measured on a 2-core machine and only feed the estimate shown. `inputs` are glob patterns
    under the repository whose content the stage depends on, `after` the stages whose redoing redoes this one.
    """

    key: str
    title: str
    seconds: float
    pip: tuple = ()
    environment: tuple = ()
    inputs: tuple = ()
    after: tuple = ()
    remedy: str = "check that pip reaches its package index, then run the same command again"


def pinned(requirements: str, package: str) -> str:
    """The version that a requirements file pins `package` to."""
    for line in (ROOT / "requirements" / requirements).read_text().splitlines():
        if line.startswith(f"{package}=="):
            return line.partition("==")[2].strip()
    raise SetupError(f"requirements/{requirements} does not pin {package}")


def listed(key: str, title: str, seconds: float, requirements: str, *options: str) -> Stage:
    """A stage that installs a requirements file and needs nothing built here."""
    return Stage(key, title, seconds, (*options, "-r", requirements), (), (requirements,), ("core",))


def stages(tests: bool) -> list:
    """The stages in order; `tests` adds what the tests need."""
    core, build, engine = "requirements/core.txt", "requirements/build.txt", "requirements/vllm-engine.txt"
    packages, bare, testing = "requirements/vllm.txt", "requirements/vllm-nodeps.txt", "requirements/test.txt"
    vllm = pinned("vllm-engine.txt", "vllm")
    result = [
        Stage("venv", "Create the virtual environment", 8),
        Stage(
            "core",
            "Install PyTorch, JAX and build tools",
            70,
            ("-r", core, "-r", build),
            inputs=(core, build),
            after=("venv",),
        ),
        Stage(
            "vllm",
            f"Build vLLM {vllm} without CUDA",
            45,
            ("--no-build-isolation", "--no-deps", "--no-binary", "vllm", "-r", engine),
            # Without the override the version gets a local part, and pip then refuses it as another one.
            (("VLLM_VERSION_OVERRIDE", vllm), ("VLLM_TARGET_DEVICE", "empty")),
            (engine,),
            ("core",),
        ),
        listed("packages", "Install what vLLM needs", 95, packages),
        listed("bare", "Install vLLM's grammar engine", 5, bare, "--no-deps"),
    ]
    if tests:
        result.append(listed("tests", "Install the test tools", 8, testing))
    result.append(
        Stage(
            "systolic",
            "Build the C++ core and install systolic",
            120,
            ("--no-build-isolation", "--no-deps", "-e", "."),
            # torch must not load a device that is half installed.
            (("TORCH_DEVICE_BACKEND_AUTOLOAD", "0"),),
            ("pyproject.toml", "setup.py", *BUILD_INPUTS),
            ("core",),
            "the compiler's message is above; g++ 11 or newer is needed",
        )
    )
    return result


def check_prerequisites() -> None:
    """Raise `SetupError` naming everything that is missing, one line each."""
    missing = []
    version = sys.version_info[:2]
    if not OLDEST <= version <= NEWEST:
        missing.append(
            f"Python 3.11 is needed, this is {version[0]}.{version[1]} ({sys.executable}): install it "
            "(Debian: apt-get install python3.11 python3.11-venv python3.11-dev), or set PYTHON=python3.11"
        )
    else:
        name = f"python{version[0]}.{version[1]}"
        if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
            missing.append(f"{name} has no venv module: install it (Debian: apt-get install {name}-venv)")
        if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
            missing.append(f"{name} has no C headers: install them (Debian: apt-get install {name}-dev)")
    for tool, package in (("g++", "g++"), ("make", "make")):
        if shutil.which(tool) is None:
            missing.append(f"{tool} is not installed: install it (Debian: apt-get install {package})")
    if missing:
        raise SetupError("\n".join(missing))


def stamp_of(stage: Stage, earlier: dict) -> str:
    """Hash of all that decides what `stage` installs."""
    digest = hashlib.sha256(repr((stage.pip, stage.environment, sys.version, sys.executable)).encode())
    for key in stage.after:
        digest.update(earlier[key].encode())
    for pattern in stage.inputs:
        for path in sorted(ROOT.glob(pattern)):
            # Build results lie beside their sources and are no input.
            if path.is_file() and path.suffix not in (".so", ".o", ".pyc"):
                digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def built(stage: Stage, environment_folder: Path) -> bool:
    """False when a file that `stage` makes is gone although its stamp is there."""
    if stage.key == "venv":
        return (environment_folder / "bin/python").exists()
    if stage.key == "systolic":
        libraries = any((ROOT / CORE).glob("_C*.so")) and any((ROOT / CPU_KERNELS / "lib").glob("*.so"))
        return libraries and (environment_folder / "bin/systolic").exists()
    return True


def run_stage(stage: Stage, environment_folder: Path, log) -> int:
    """Run the command of `stage`; output goes to `log`. Returns the exit code."""
    if stage.key == "venv":
        command = [sys.executable, "-m", "venv", str(environment_folder)]
    else:
        command = [str(environment_folder / "bin/python"), "-m", "pip", "install", *stage.pip]
    environment = {**os.environ, **dict(stage.environment), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    # A virtual environment that happens to be active here must not leak into ours.
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
        environment.pop(name, None)
    log.write(f"$ {' '.join(command)}\n".encode())
    log.flush()
    return subprocess.call(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)


@contextmanager
def only_one(environment_folder: Path):
    """Hold a lock beside the environment, so that two runs do not install into it at once."""
    environment_folder.parent.mkdir(parents=True, exist_ok=True)
    with open(environment_folder.parent / f"{environment_folder.name}.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting: another set-up of {environment_folder} is running", file=sys.stderr)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def failure(stage: Stage, code: int, log_path: Path) -> SetupError:
    """The error for a failed stage: the end of the log and what to do."""
    lines = log_path.read_text(errors="replace").splitlines()
    tail = "\n".join(f"    {line}" for line in lines[-TAIL_LINES:])
    return SetupError(f"{tail}\n{stage.title}: exit code {code}; {stage.remedy}\nThe whole log: {log_path}")


def set_up(environment_folder: Path, tests: bool, progress_module) -> bool:
    """Bring `environment_folder` up to date. Returns True when something had to be done."""
    plan = stages(tests)
    stamps: dict = {}
    for stage in plan:
        stamps[stage.key] = stamp_of(stage, stamps)
    stamp_folder = environment_folder / "stamps"

    def is_current(stage: Stage) -> bool:
        path = stamp_folder / stage.key
        return path.exists() and path.read_text() == stamps[stage.key] and built(stage, environment_folder)

    if all(is_current(stage) for stage in plan):
        return False
    check_prerequisites()
    steps = [progress_module.Step(stage.key, stage.title, stage.seconds) for stage in plan]
    progress = progress_module.Progress(steps)
    log_path = environment_folder / LOG_NAME
    for stage in plan:
        if is_current(stage):
            progress.reuse(stage.key)
    for stage in plan:
        if is_current(stage):
            continue
        if stage.key == "venv":
            shutil.rmtree(environment_folder, ignore_errors=True)
        (stamp_folder / stage.key).unlink(missing_ok=True)
        environment_folder.mkdir(parents=True, exist_ok=True)
        with progress.step(stage.key):
            with open(log_path, "ab") as log:
                code = run_stage(stage, environment_folder, log)
            if code != 0:
                raise failure(stage, code, log_path)
        stamp_folder.mkdir(parents=True, exist_ok=True)
        (stamp_folder / stage.key).write_text(stamps[stage.key])
    return True


def main() -> int:
    """Command line. Returns the exit code."""
    parser = argparse.ArgumentParser(description="set up the virtual environment of Systolic")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="its folder (default: .venv)")
    parser.add_argument("--tests", action="store_true", help="also install what the tests need")
    arguments = parser.parse_args()
    start = time.monotonic()
    try:
        progress_module = load_progress()
        folder = arguments.venv.absolute()
        with only_one(folder):
            if set_up(folder, arguments.tests, progress_module):
                took = progress_module.duration(time.monotonic() - start)
                print(f"Set up in {took}: {folder}", file=sys.stderr)
    except SetupError as error:
        print(f"Set-up stopped.\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nSet-up interrupted; the next run goes on from the last finished step.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
