"""Build of the C++ parts: the device core `systolic.device._C` and the CPU kernels.

Metadata is in pyproject.toml. torch must be installed already (`pip install --no-build-isolation`): the
core is compiled against the very torch that will load it.
"""

import importlib.util
import os
import sys
from pathlib import Path

# An earlier install registers the `tpu` device: while it is being rebuilt, torch must not load it.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

from setuptools import setup  # noqa: E402
from torch.utils.cpp_extension import BuildExtension, CppExtension, include_paths  # noqa: E402

ROOT = Path(__file__).resolve().parent
CORE_SOURCES = "src/systolic/device/csrc/*.cpp"
CPU_KERNELS = Path("src/systolic/kernels/cpu")
# torch 2.13's headers need C++20.
COMPILE_ARGS = ["-O2", "-g0", "-std=c++20"]


def core_extension() -> CppExtension:
    """The device core, from every source file of its folder."""
    sources = sorted(str(path.relative_to(ROOT)) for path in ROOT.glob(CORE_SOURCES))
    if not sources:
        raise SystemExit(f"no file matches {CORE_SOURCES}: the checkout is not complete")
    # torch's profiler header includes Kineto's by bare name.
    kineto = [str(Path(include) / "kineto") for include in include_paths()]
    return CppExtension("systolic.device._C", sources, include_dirs=kineto, extra_compile_args=COMPILE_ARGS)


class Build(BuildExtension):
    """Builds the extension, then the CPU kernels, which are a plain shared library with its own script."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # pip's own folder is a new one each time; in this one ninja compiles only what changed.
        self.build_temp = str(ROOT / "build" / f"temp-{sys.implementation.cache_tag}")

    def run(self) -> None:
        super().run()
        # By path: importing the package would load the device that is being built.
        path = ROOT / CPU_KERNELS / "build.py"
        spec = importlib.util.spec_from_file_location("systolic_cpu_kernels_build", path)
        script = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(script)
        package = CPU_KERNELS.relative_to("src")
        script.build((ROOT / CPU_KERNELS if self.inplace else Path(self.build_lib) / package) / "lib")


setup(ext_modules=[core_extension()], cmdclass={"build_ext": Build})
