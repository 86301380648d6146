"""What the Pallas kernels share: tile sizes and compiler parameters."""

from __future__ import annotations

import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.generations import current_generation


def sublanes(dtype) -> int:
    """Rows of one tile of 128 columns: 8 for 32-bit types, 16 for 16-bit and 32 for 8-bit ones."""
    return 32 // jnp.dtype(dtype).itemsize


def compiler_params(semantics: tuple[str, ...], vmem_share: float = 0.75, bounds_checks: bool = True):
    """Parameters of a kernel whose grid axes are "parallel" or "arbitrary".

    It may use that share of VMEM; the compiler's own limit is a small part of it.  Checks of each DMA's bounds cost
    some fifteen instructions; a kernel that bounds its indices itself can do without.
    """
    limit = int(current_generation().vmem * vmem_share)
    return pltpu.CompilerParams(dimension_semantics=semantics, vmem_limit_bytes=limit,
                                disable_bounds_checks=not bounds_checks)  # fmt: skip
