"""Linear layer: y = x W^T + b, bound by reading W for a few rows of x and by arithmetic for many.

Public names: `linear`, `gemm`, `small_linear`, `small_linear_reference`.
"""

from __future__ import annotations

import jax.numpy as jnp

from systolic.kernels.cpu.calls import gemm_cpu, small_linear_cpu
from systolic.kernels.selection import dispatch
from systolic.kernels.small_linear.reference import small_linear_reference

__all__ = ["gemm", "linear", "small_linear", "small_linear_reference"]

# From this many rows the tiled product is the faster one where its vectors of 16 rows are well filled;
# the rows that it adds to fill the last one may be a tenth of all, which is what it is faster by.
GEMM_ROWS = 64


def linear(x, weight, bias=None):
    """y = x @ weight.T + bias, by `small_linear` or `gemm`, whichever is faster for the rows of x.

    The two sum in different orders: a row's bits are the same in all calls that choose the same one.
    Arguments, result and errors are those of `small_linear`.
    """
    rows = x.shape[0] if x.ndim == 2 else 0
    added = -rows % 16
    many = rows >= GEMM_ROWS and 10 * added <= rows
    return gemm(x, weight, bias) if many else small_linear(x, weight, bias)


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
    arrays = _checked(x, weight, bias)
    return dispatch(arrays, reference=small_linear_reference, cpu=small_linear_cpu)


def gemm(x, weight, bias=None):
    """y = x @ weight.T + bias for many rows of x.

    What `small_linear` says of bits, arguments, result and errors holds here too.
    """
    arrays = _checked(x, weight, bias)
    return dispatch(arrays, reference=small_linear_reference, cpu=gemm_cpu)


def _checked(x, weight, bias):
    """The arguments with None replaced by a bias of shape [0]; raises ValueError as `small_linear` says."""
    if x.ndim != 2 or weight.ndim != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x has shape {x.shape} and weight {weight.shape}; they must be [M, K] and [N, K]")
    bias = jnp.zeros((0,), jnp.float32) if bias is None else bias
    if bias.shape not in ((0,), (weight.shape[0],)):
        raise ValueError(f"bias has shape {bias.shape}; it must be ({weight.shape[0]},)")
    for name, array in (("x", x), ("weight", weight), ("bias", bias)):
        if array.dtype != jnp.float32:
            raise ValueError(f"{name} has dtype {array.dtype}; it must be float32")
    return x, weight, bias
