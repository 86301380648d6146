"""Kernels for XLA on the CPU: C++ XLA FFI custom calls, built on the machine that runs them.

`build.build` makes the shared library, `build.load` registers its calls with XLA, and the `*_cpu`
functions are the JAX-traceable wrappers.
"""

from systolic.kernels.cpu.build import BuildError, load
from systolic.kernels.cpu.calls import paged_attention_cpu, small_linear_cpu

__all__ = ["BuildError", "load", "paged_attention_cpu", "small_linear_cpu"]
