"""Builds and loads the shared library of CPU kernels.

The library is compiled with `-march=native`, so it runs on the kind of machine that built it: build
at install time on the target, or let the first use build it. The file name carries a hash of the
sources, the jaxlib version and the processor's instruction sets, so a library that was copied from
another machine or made for another version is rebuilt and never loaded by mistake.

`-ffast-math` is not used: masking relies on infinities, and NaN must pass through. `-fno-math-errno`
and `-fno-trapping-math` only give up error flags that nobody reads.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import pathlib
import platform
import shutil
import subprocess
import tempfile
import threading

import jax
import jaxlib

SOURCES = pathlib.Path(__file__).parent / "csrc"

# FFI target name -> symbol in the library.
TARGETS = {
    "systolic_add_rms_norm": "SystolicAddRmsNorm",
    "systolic_batched_matmul": "SystolicBatchedMatmul",
    "systolic_convolution": "SystolicConvolution",
    "systolic_gemm": "SystolicGemm",
    "systolic_paged_attention": "SystolicPagedAttention",
    "systolic_rms_norm": "SystolicRmsNorm",
    "systolic_rotary": "SystolicRotary",
    "systolic_silu_and_mul": "SystolicSiluAndMul",
    "systolic_small_linear": "SystolicSmallLinear",
}

FLAGS = ["-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math",
         "-DNDEBUG", "-Wall"]

_lock = threading.Lock()
_library: ctypes.CDLL | None = None


class BuildError(RuntimeError):
    """The kernels could not be compiled; the message names the compiler and shows its output."""


def _processor() -> str:
    """What `-march=native` depends on: the instruction set flags where the system lists them."""
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return line
    except OSError:
        pass
    return platform.processor()


def library_name() -> str:
    """File name of the library for these sources, this jaxlib and this processor."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    for part in (jaxlib.__version__, platform.machine(), _processor(), " ".join(FLAGS), compiler_name()):
        digest.update(part.encode())
    return f"libsystolic_cpu-{digest.hexdigest()[:16]}.so"


def compiler_name() -> str:
    """The C++ compiler that `build` calls: $CXX, or g++."""
    return os.environ.get("CXX", "g++")


def build(output_dir: str | os.PathLike) -> pathlib.Path:
    """Compiles `csrc/*.cc` into one shared library in `output_dir` and returns its path.

    Does nothing if the library for the same sources and machine is there. Takes about ten seconds.

    Raises:
        BuildError: there is no C++ compiler, or it failed.
    """
    output = pathlib.Path(output_dir) / library_name()
    if output.exists():
        return output
    compiler = compiler_name()
    if shutil.which(compiler) is None:
        raise BuildError(
            f"systolic's CPU kernels need a C++20 compiler, and {compiler!r} was not found on PATH. "
            "Install g++ 11 or newer, or set CXX to another compiler.")
    output.parent.mkdir(parents=True, exist_ok=True)
    sources = [str(path) for path in sorted(SOURCES.glob("*.cc"))]
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        temporary = pathlib.Path(folder) / output.name
        command = [compiler, *FLAGS, "-isystem", jax.ffi.include_dir(), *sources, "-o", str(temporary),
                   "-pthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BuildError(f"{compiler} failed with status {done.returncode} on systolic's CPU kernels; "
                             f"they need C++20.\n{' '.join(command)}\n{done.stderr}")
        # A rename is atomic: processes that build at the same time all end with a whole file.
        temporary.replace(output)
    return output


def _build_folder() -> pathlib.Path:
    """The package's own folder, or the user's cache folder if the package is read-only."""
    package = pathlib.Path(__file__).parent / "lib"
    try:
        package.mkdir(exist_ok=True)
        if os.access(package, os.W_OK):
            return package
    except OSError:
        pass
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return pathlib.Path(cache) / "systolic"


def load() -> ctypes.CDLL:
    """Loads the library, building it if it is missing, and registers its calls for platform "cpu".

    The work is done once for a process; later calls return the same library.

    Raises:
        BuildError: the library had to be built and could not be.
    """
    global _library
    with _lock:
        if _library is None:
            library = ctypes.CDLL(str(build(_build_folder())))
            for target, symbol in TARGETS.items():
                jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(library, symbol)),
                                            platform="cpu")
            _library = library
        return _library
