"""Compiles the kernels for TPU generations on a machine without a TPU, each in a child process with a time limit."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import selectors
import subprocess
import sys
import tempfile
from pathlib import Path

LIBTPU_VERSION = "0.0.42"
LIBTPU_MISSING = (
    "no libtpu was found. It holds the TPU compiler (about 700 MB) and is kept out of the environment, where JAX and "
    "vLLM would take the machine for one with a TPU. Install it into a folder of its own with "
    "`pip install --no-deps --target FOLDER -r requirements/aot.txt`, then give --libtpu FOLDER "
    "or set the setting `libtpu`"
)
# Only the passes that `schedule_dump` reads: a full dump takes a hundred megabytes and minutes.
DUMP_FLAGS = (
    "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true "
    "--xla_jf_dump_llo_pass_label_regex=.*(original|final_bundles|static-per-bundle).*"
)


class LibtpuMissing(RuntimeError):
    """There is no TPU compiler to compile with."""


def find_libtpu(given: Path | None) -> Path:
    """The shared library: ``given`` (it or a folder it was installed in), else that of the environment.

    Raises LibtpuMissing.
    """
    if given is not None:
        for path in (given, given / "libtpu.so", given / "libtpu" / "libtpu.so"):
            if path.is_file():
                return path
        raise LibtpuMissing(f"there is no libtpu.so at {given}")
    spec = importlib.util.find_spec("libtpu")
    if spec is None or not spec.origin:
        raise LibtpuMissing(LIBTPU_MISSING)
    return Path(spec.origin).parent / "libtpu.so"


def version_of(library: Path) -> str:
    """The version of an installed libtpu, from the folder beside it; "unknown" where there is none."""
    for info in library.parent.parent.glob("libtpu-*.dist-info"):
        return info.name.removeprefix("libtpu-").removesuffix(".dist-info")
    return "unknown"


class Compiler:
    """A child process that compiles one task after the other; it is started anew after a time-out or a crash."""

    def __init__(self, library: Path, timeout: float, schedule: bool = True):
        self.library, self.timeout, self.schedule = library, timeout, schedule
        self._process: subprocess.Popen | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="systolic-kernels-")

    def __enter__(self) -> Compiler:
        return self

    def __exit__(self, *_) -> None:
        self._stop()
        self._folder.cleanup()

    def compile(self, kernel: str, entry: int, generation: str, tuning: dict) -> dict:
        """The child's answer: figures, or ``error`` and ``advice``."""
        if self._process is None:
            self._start()
        task = {"kernel": kernel, "entry": entry, "generation": generation, "tuning": tuning}
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(task) + "\n")
            self._process.stdin.flush()
        answer = self._answer()
        if "error" in answer:
            answer["advice"] = advice(answer["error"])
        return answer

    def _start(self) -> None:
        settings = {
            "JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_WORKER_ID": "0",
            # Without it a second process stops at libtpu's lock file.
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "TPU_LIBRARY_PATH": str(self.library),
            # The worker needs JAX alone; torch would load the device.
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        }  # fmt: skip
        dump = Path(self._folder.name) / "dump"
        dump.mkdir(exist_ok=True)
        if self.schedule:
            settings["LIBTPU_INIT_ARGS"] = DUMP_FLAGS.format(folder=dump)
        self._errors = tempfile.TemporaryFile("w+")
        command = [sys.executable, "-m", "systolic.kernels.aot_worker", str(dump) if self.schedule else ""]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
                                         text=True, env=os.environ | settings, cwd=self._folder.name)  # fmt: skip

    def _answer(self) -> dict:
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            if not ready.select(self.timeout):
                self._stop()
                return {"seconds": self.timeout, "error": f"timed out after {self.timeout:g} s"}
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        code = self._process.wait()
        self._errors.seek(0)
        last = self._errors.read()[-1500:]
        self._process = None
        return {"seconds": 0.0, "error": f"the compiler's process ended with exit code {code}: {last}"}

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


_ADVICE = (
    (r"timed out", "the blocks are too large for the compiler, or the machine is busy: smaller blocks, or --timeout"),
    (r"vmem.*(exceed|exhausted|out of memory)|ran out of memory in memory space vmem",
     "the blocks do not fit in VMEM: fewer buffers, a smaller key or query block, or more head parts"),
    (r"smem.*(exceed|exhausted)|memory space smem", "the scalars do not fit in SMEM: fewer sequences or pages a call"),
    (r"divisible by 8 and 128|last two dimensions",
     "a block's last two sizes must be multiples of 8 and 128, or the array's"),
    (r"not aligned|aligned to tiling|tile",
     "a slice does not start or end on a tile (8, 16 or 32 rows of 128 columns)"),
    (r"not implemented|unsupported|Unimplemented",
     "this generation's compiler has no form of an operation that the kernel uses"),
)  # fmt: skip


def advice(error: str) -> str:
    """What to do about a compiler's error; empty when nothing is known."""
    return next((text for pattern, text in _ADVICE if re.search(pattern, error, re.IGNORECASE | re.DOTALL)), "")
