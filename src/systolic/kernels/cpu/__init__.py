"""Kernels for XLA on the CPU: C++ XLA FFI custom calls, built on the machine that runs them.

`build.build` makes the shared library, `build.load` registers its calls with XLA, and the `*_cpu`
functions are the JAX-traceable wrappers.
"""

from systolic.kernels.cpu.build import BuildError, load
from systolic.kernels.cpu.calls import (
    add_rms_norm_cpu,
    gemm_cpu,
    paged_attention_cpu,
    rms_norm_cpu,
    rotary_cpu,
    silu_and_mul_cpu,
    small_linear_cpu,
)

__all__ = ["BuildError", "add_rms_norm_cpu", "gemm_cpu", "load", "paged_attention_cpu", "rms_norm_cpu",
           "rotary_cpu", "silu_and_mul_cpu", "small_linear_cpu"]
