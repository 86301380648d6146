"""Quantized matmul in Pallas for TPU: blocks of 8- or 4-bit weights go to the matrix unit as they are or as bfloat16.

Scales are applied to float32 sums of a group, never to the weights, so the weights' bytes are all that is read.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.pallas import compiler_params
from systolic.kernels.quantized_matmul.tuning import Tuning, depth_fits

# Sums of so many products of int8 are exact as float32: 1024 * 128 * 128 = 2**24.
EXACT_DEPTH = 1024


def multiply(x, weight):
    """x [m, k] @ weight [n, k].T as float32 [m, n], in the narrowest type that both are exact in."""
    if jnp.issubdtype(x.dtype, jnp.integer):
        product = jax.lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)
        return product.astype(jnp.float32)
    if x.dtype.itemsize > 1:
        weight = weight.astype(x.dtype)
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    return jax.lax.dot_general(x, weight, (((1,), (1,)), ((), ())), precision=precision,
                               preferred_element_type=jnp.float32)  # fmt: skip


def _body(x, weight, weight_scale, x_scale, out, total, *, piece: int, late_weight: bool, late_x: bool):
    """One block; ``piece``: columns of x summed before a scale; late: the scale is one for all of K."""
    step = pl.program_id(2)

    @pl.when(step == 0)
    def _():
        total[...] = jnp.zeros_like(total)

    pieces = x.shape[1] // piece
    per_scale = pieces // weight_scale.shape[0]  # pieces that share a scale
    for index in range(pieces):
        columns = pl.ds(index * piece, piece)
        part = multiply(x[:, columns], weight[:, columns])
        if not late_weight:
            part = part * weight_scale[index // per_scale]
        if not late_x:
            part = part * x_scale[index // per_scale]
        total[...] += part

    @pl.when(step == pl.num_programs(2) - 1)
    def _():
        result = total[...]
        if late_weight:
            result = result * weight_scale[0]
        if late_x:
            result = result * x_scale[0]
        out[...] = result.astype(out.dtype)


def quantized_matmul_pallas(x, weight, weight_scale, x_scale, *, out_dtype: str, tuning: Tuning, interpret=False):
    """Same arguments and result as `quantized_matmul`; an absent x_scale is all ones [1, M].

    Raises:
        ValueError: the block sizes do not fit the shapes.
    """
    (rows, width), columns = x.shape, weight.shape[0]
    groups, depth = weight_scale.shape[0], tuning.depth
    group = width // groups
    if not depth_fits(depth, width, groups):
        raise ValueError(
            f"depth is {depth}; it must divide K {width}, and divide or be a multiple of a group's {group}"
        )
    piece = min(depth, group)
    if jnp.issubdtype(x.dtype, jnp.integer):
        while piece > EXACT_DEPTH and piece % 2 == 0:
            piece //= 2
    held = max(1, depth // group)  # scales of a block

    def scale_at(step):
        return step * depth // group // held

    late_x = x_scale.shape[0] == 1
    x_held = 1 if late_x else held
    call = pl.pallas_call(
        functools.partial(_body, piece=piece, late_weight=groups == 1, late_x=late_x),
        grid=(pl.cdiv(rows, tuning.rows), pl.cdiv(columns, tuning.columns), width // depth),
        in_specs=[
            pl.BlockSpec((tuning.rows, depth), lambda i, j, k: (i, k)),
            pl.BlockSpec((tuning.columns, depth), lambda i, j, k: (j, k)),
            pl.BlockSpec((held, 1, tuning.columns), lambda i, j, k: (scale_at(k), 0, j)),
            pl.BlockSpec((x_held, tuning.rows, 1), lambda i, j, k: (0 if late_x else scale_at(k), i, 0)),
        ],
        out_specs=pl.BlockSpec((tuning.rows, tuning.columns), lambda i, j, k: (i, j)),
        out_shape=jax.ShapeDtypeStruct((rows, columns), out_dtype),
        scratch_shapes=[pltpu.VMEM((tuning.rows, tuning.columns), jnp.float32)],
        compiler_params=compiler_params(("parallel", "parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(
            flops=2 * rows * columns * width, transcendentals=0,
            bytes_accessed=x.size * x.dtype.itemsize + weight.size * weight.dtype.itemsize + 2 * rows * columns,
        ),
        interpret=interpret,
        name="systolic_quantized_matmul",
    )  # fmt: skip
    with jax.enable_x64(False):
        return call(x, weight, weight_scale[:, None, :], x_scale[:, :, None])
