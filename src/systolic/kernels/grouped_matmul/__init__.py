"""Matmul of groups of rows, each with a weight of its own: a layer of experts after its rows were sorted by expert.

Public names: `grouped_matmul`, `grouped_matmul_reference`.
"""

from __future__ import annotations

import jax.numpy as jnp

from systolic.kernels.arguments import FLOATS, names, need
from systolic.kernels.grouped_matmul.reference import grouped_matmul_reference
from systolic.kernels.selection import dispatch

__all__ = ["grouped_matmul", "grouped_matmul_reference"]

WEIGHTS = (*FLOATS, jnp.int8, jnp.int4, jnp.float8_e4m3fn, jnp.float8_e5m2)


def grouped_matmul(x, weight, group_sizes, weight_scale=None):
    """Rows of group e of x times (weight[e] * weight_scale[e]).T, accumulated in float32.

    The groups lie one after the other in x; some may be empty.  Rows beyond the last group give zeros.  On TPU the time
    follows the rows and the groups that are not empty.

    Args:
        x: [M, K] float32 or bfloat16.
        weight: [E, N, K] of x's dtype, or int8, int4, float8_e4m3fn or float8_e5m2.
        group_sizes: [E] int32, not negative, with a sum of at most M.
        weight_scale: [E, G, N] float32 for G equal parts of K, or None.

    Returns:
        [M, N] in x's dtype.

    Raises:
        ValueError: a shape or a dtype is wrong.
    """
    need(x.ndim == 2 and weight.ndim == 3 and x.shape[1] == weight.shape[2] and x.shape[1] > 0,
         f"x and weight have shapes {x.shape} and {weight.shape}; they must be [M, K] and [E, N, K] with K > 0")
    experts, columns, width = weight.shape
    need(x.dtype in FLOATS, f"x has dtype {x.dtype}; it must be float32 or bfloat16")
    need(weight.dtype in WEIGHTS and weight.dtype in (x.dtype, *WEIGHTS[2:]),
         f"weight has dtype {weight.dtype}; it must be x's, {x.dtype}, or one of "
         f"{names(WEIGHTS[2:])}")
    need(experts > 0 and group_sizes.shape == (experts,) and group_sizes.dtype == jnp.int32,
         f"group_sizes is {group_sizes.dtype}{group_sizes.shape}; it must be int32 [{experts}] with a group at least")
    scale = jnp.ones((experts, 1, columns), jnp.float32) if weight_scale is None else weight_scale
    need(scale.ndim == 3 and scale.shape[::2] == (experts, columns) and scale.dtype == jnp.float32
         and scale.shape[1] > 0 and width % scale.shape[1] == 0,
         f"weight_scale is {scale.dtype}{scale.shape}; it must be float32 [{experts}, G, {columns}], "
         f"G a divisor of {width}")
    if x.shape[0] == 0 or columns == 0:
        return jnp.zeros((x.shape[0], columns), x.dtype)
    return dispatch((x, weight, group_sizes, scale), reference=grouped_matmul_reference, tpu=_tuned_pallas)


def _tuned_pallas(x, weight, group_sizes, weight_scale, *, interpret):
    from systolic.kernels.grouped_matmul.kernel import grouped_matmul_pallas
    from systolic.kernels.grouped_matmul.tuning import tuned

    tuning = tuned(x, weight, weight_scale)
    return grouped_matmul_pallas(x, weight, group_sizes, weight_scale, tuning=tuning, interpret=interpret)
