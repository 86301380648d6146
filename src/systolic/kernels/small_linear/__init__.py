"""Linear layer for a few rows of input: y = x W^T + b, bound by reading W.

Public names: `small_linear`, `small_linear_reference`.
"""

from __future__ import annotations

import jax.numpy as jnp

from systolic.kernels.cpu.calls import small_linear_cpu
from systolic.kernels.selection import dispatch
from systolic.kernels.small_linear.reference import small_linear_reference

__all__ = ["small_linear", "small_linear_reference"]


def small_linear(x, weight, bias=None):
    """y = x @ weight.T + bias.

    On XLA:CPU the bits of a row of y do not depend on the other rows of x nor on their number.

    Args:
        x: [M, K] float32.
        weight: [N, K] float32, one row for each output.
        bias: [N] float32, or None.

    Returns:
        [M, N] float32.

    Raises:
        ValueError: a shape or a dtype is wrong.
    """
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x has shape {x.shape} and weight {weight.shape}; they must be [M, K] and [N, K]")
    bias = jnp.zeros((0,), jnp.float32) if bias is None else bias
    if bias.shape not in ((0,), (weight.shape[0],)):
        raise ValueError(f"bias has shape {bias.shape}; it must be ({weight.shape[0]},)")
    for name, array in (("x", x), ("weight", weight), ("bias", bias)):
        if array.dtype != jnp.float32:
            raise ValueError(f"{name} has dtype {array.dtype}; it must be float32")
    return dispatch((x, weight, bias), reference=small_linear_reference, cpu=small_linear_cpu)
