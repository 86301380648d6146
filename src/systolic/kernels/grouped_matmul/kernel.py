"""Grouped matmul in Pallas for TPU.

The grid is (columns, visits, depth).  A visit is one group inside one block of rows; XLA lists them before the kernel
starts, and the block of weights to fetch follows from the list.  A block of rows with several groups is visited once
for each, one after the other, and keeps its result in VMEM meanwhile.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.grouped_matmul.tuning import Tuning
from systolic.kernels.pallas import compiler_params
from systolic.kernels.quantized_matmul.kernel import multiply
from systolic.kernels.quantized_matmul.tuning import depth_fits
from systolic.kernels.worklist import visits_of

# Fields of a visit: the group (the number of groups for the rows beyond the last), the block of rows, its rows.
GROUP, BLOCK, START, STOP = range(4)
FIELDS = 4


def _listed(group_sizes, rows: int, row_block: int):
    """(visits [4 * size] int32, field f of visit v at f * size + v; their number [1]); ``rows``: padded to blocks."""
    group, block, start, stop, _, total = visits_of(group_sizes, rows, row_block)
    return jnp.concatenate([group, block, start, stop]), total.reshape(1)


def _body(visits, count, x, weight, scale, out, total, *, size: int, experts: int, piece: int, late: bool):
    visit, step = pl.program_id(1), pl.program_id(2)
    group = visits[GROUP * size + jnp.minimum(visit, count[0] - 1)]
    live = visit < count[0]

    @pl.when(live & (step == 0))
    def _():
        total[...] = jnp.zeros_like(total)

    @pl.when(live & (group < experts))
    def _():
        pieces = x.shape[1] // piece
        per_scale = pieces // scale.shape[1]
        for index in range(pieces):
            columns = pl.ds(index * piece, piece)
            part = multiply(x[:, columns], weight[0, :, columns])
            total[...] += part if late else part * scale[0, index // per_scale]

    @pl.when(live & (step == pl.num_programs(2) - 1))
    def _():
        row = jax.lax.broadcasted_iota(jnp.int32, total.shape, 0)
        mine = (row >= visits[START * size + visit]) & (row < visits[STOP * size + visit])
        result = total[...] * scale[0, 0] if late else total[...]
        # Selected in float32, which every generation can.  A row's other visits have written it or will do so.
        kept = jnp.where(mine, jnp.where(group < experts, result, 0.0), out[...].astype(jnp.float32))
        out[...] = kept.astype(out.dtype)


def grouped_matmul_pallas(x, weight, group_sizes, weight_scale, *, tuning: Tuning, interpret=False):
    """Same arguments and result as `grouped_matmul`; an absent scale is all ones [E, 1, N].

    Raises:
        ValueError: the block sizes do not fit the shapes.
    """
    (experts, columns, width), rows = weight.shape, x.shape[0]
    groups, depth = weight_scale.shape[1], tuning.depth
    group = width // groups
    if not depth_fits(depth, width, groups):
        raise ValueError(
            f"depth is {depth}; it must divide K {width}, and divide or be a multiple of a group's {group}"
        )
    padded = pl.cdiv(rows, tuning.rows) * tuning.rows
    visits, count = _listed(group_sizes, padded, tuning.rows)
    size = visits.shape[0] // FIELDS
    held = max(1, depth // group)
    steps = width // depth

    def field(f, v, visits, count):
        return visits[f * size + jnp.minimum(v, count[0] - 1)]

    def depth_at(v, k, count):
        # Visits beyond the last stay where it ended, so that nothing is fetched for them.
        return jnp.where(v < count[0], k, steps - 1)

    def weight_at(j, v, k, visits, count):
        return jnp.minimum(field(GROUP, v, visits, count), experts - 1), j, depth_at(v, k, count)

    def scale_at(j, v, k, visits, count):
        at = depth_at(v, k, count) * depth // group // held
        return jnp.minimum(field(GROUP, v, visits, count), experts - 1), at, 0, j

    call = pl.pallas_call(
        functools.partial(_body, size=size, experts=experts, piece=min(depth, group), late=groups == 1),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=2,
            grid=(pl.cdiv(columns, tuning.columns), size, steps),
            in_specs=[
                pl.BlockSpec((tuning.rows, depth), lambda j, v, k, visits, count: (
                    field(BLOCK, v, visits, count), depth_at(v, k, count))),
                pl.BlockSpec((1, tuning.columns, depth), weight_at),
                pl.BlockSpec((1, held, 1, tuning.columns), scale_at),
            ],
            out_specs=pl.BlockSpec((tuning.rows, tuning.columns), lambda j, v, k, visits, count: (
                field(BLOCK, v, visits, count), j)),
            scratch_shapes=[pltpu.VMEM((tuning.rows, tuning.columns), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((padded, columns), x.dtype),
        compiler_params=compiler_params(("parallel", "arbitrary", "arbitrary")),
        cost_estimate=pl.CostEstimate(
            flops=2 * rows * columns * width, transcendentals=0,
            bytes_accessed=x.size * x.dtype.itemsize + weight.size * weight.dtype.itemsize
            + rows * columns * x.dtype.itemsize,
        ),
        interpret=interpret,
        name="systolic_grouped_matmul",
    )  # fmt: skip
    with jax.enable_x64(False):
        given = jnp.pad(x, ((0, padded - rows), (0, 0)))
        return call(visits, count, given, weight, weight_scale[:, :, None, :])[:rows]
