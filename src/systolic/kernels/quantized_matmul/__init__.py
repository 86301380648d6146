"""Matmul with weights of 8 or 4 bits: weight-only, or with quantized activations; scales by tensor, channel or block.

Public names: `quantized_matmul`, `quantize_rows`, `quantized_matmul_reference`.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp

from systolic.kernels.arguments import FLOATS, names, need
from systolic.kernels.narrow import limited
from systolic.kernels.quantized_matmul.reference import quantized_matmul_reference
from systolic.kernels.selection import dispatch

__all__ = ["quantize_rows", "quantized_matmul", "quantized_matmul_reference"]

WEIGHTS = (jnp.int8, jnp.int4, jnp.float8_e4m3fn, jnp.float8_e5m2)
ACTIVATIONS = (jnp.int8, jnp.float8_e4m3fn)


def quantize_rows(x, dtype, groups: int = 1):
    """x [M, K] as (values of ``dtype``, scales [groups, M] float32) with the largest of each row's group at the top.

    Raises:
        ValueError: K is not a multiple of ``groups``.
    """
    rows, width = x.shape
    if groups < 1 or width % groups:
        raise ValueError(f"x has {width} columns; they must be a multiple of groups, which is {groups}")
    top = float(jnp.iinfo(dtype).max if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo(dtype).max)
    wide = x.astype(jnp.float32).reshape(rows, groups, width // groups)
    largest = jnp.max(jnp.abs(wide), axis=2, initial=0.0)
    scale = jnp.where(largest > 0, largest / top, 1.0)
    return limited(wide / scale[:, :, None], dtype).astype(dtype).reshape(x.shape), scale.T


def quantized_matmul(x, weight, weight_scale, x_scale=None, *, out_dtype=None):
    """(x * x_scale) @ (weight * weight_scale).T, accumulated in float32.

    Args:
        x: [M, K] float32 or bfloat16 (weight-only), or int8 or float8_e4m3fn with x_scale.
        weight: [N, K] int8, int4, float8_e4m3fn or float8_e5m2; with an x of 8 bits its type is x's.
        weight_scale: [G, N] float32 for G equal parts of K. One for the whole tensor, or blocks of rows, are repeated
            to this form by the caller.
        x_scale: [1, M] or [G, M] float32; None for an x of 16 or more bits.
        out_dtype: of the result; None for x's, which must then not be of 8 bits.

    Returns:
        [M, N].

    Raises:
        ValueError: a shape or a dtype is wrong.
    """
    need(x.ndim == 2 and weight.ndim == 2 and x.shape[1] == weight.shape[1] and x.shape[1] > 0,
         f"x and weight have shapes {x.shape} and {weight.shape}; they must be [M, K] and [N, K] with K > 0")
    (rows, width), columns = x.shape, weight.shape[0]
    need(weight.dtype in WEIGHTS, f"weight has dtype {weight.dtype}; it must be one of {names(WEIGHTS)}")
    need(weight_scale.ndim == 2 and weight_scale.shape[1] == columns and weight_scale.dtype == jnp.float32
         and weight_scale.shape[0] > 0 and width % weight_scale.shape[0] == 0,
         f"weight_scale is {weight_scale.dtype}{weight_scale.shape}; it must be float32 [G, {columns}] where G divides "
         f"{width}")
    groups = weight_scale.shape[0]
    if x_scale is None:
        need(x.dtype in FLOATS, f"x has dtype {x.dtype} and no x_scale; it must be one of {names(FLOATS)}")
    else:
        need(x.dtype in ACTIVATIONS and x.dtype == weight.dtype,
             f"x and weight have dtypes {x.dtype} and {weight.dtype}; with x_scale both must be the same of "
             f"{names(ACTIVATIONS)}")
        need(x_scale.shape in ((1, rows), (groups, rows)) and x_scale.dtype == jnp.float32,
             f"x_scale is {x_scale.dtype}{x_scale.shape}; it must be float32 [1, {rows}] or [{groups}, {rows}]")
        need(out_dtype is not None, "x has 8 bits: give out_dtype")
    out_dtype = jnp.dtype(x.dtype if out_dtype is None else out_dtype)
    need(out_dtype in FLOATS, f"out_dtype is {out_dtype}; it must be one of {names(FLOATS)}")
    if rows == 0 or columns == 0:
        return jnp.zeros((rows, columns), out_dtype)
    scales = jnp.ones((1, rows), jnp.float32) if x_scale is None else x_scale
    options = {"out_dtype": out_dtype.name}
    reference = functools.partial(quantized_matmul_reference, **options)
    pallas = functools.partial(_tuned_pallas, **options)
    return dispatch((x, weight, weight_scale, scales), reference=reference, tpu=pallas)


def _tuned_pallas(x, weight, weight_scale, x_scale, *, interpret, out_dtype):
    from systolic.kernels.quantized_matmul.kernel import quantized_matmul_pallas
    from systolic.kernels.quantized_matmul.tuning import tuned

    tuning = tuned(x, weight, weight_scale)
    return quantized_matmul_pallas(x, weight, weight_scale, x_scale, out_dtype=out_dtype, tuning=tuning,
                                   interpret=interpret)  # fmt: skip
