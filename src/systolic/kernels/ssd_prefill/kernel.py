"""State space duality over ragged sequences in Pallas for TPU.

The grid is (blocks of heads, visits), and the visits are those of `delta_prefill`'s kernel: one for each sequence in
each block of tokens.  Inside a chunk the decays between two tokens differ between heads, so that each head has a matmul of
its own; what the state adds to the result and what the chunk adds to the state are one matmul for a group's heads.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels import sequences
from systolic.kernels.pallas import compiler_params
from systolic.kernels.products import BY_COLUMNS, BY_ROWS, PLAIN, UNDERFLOW, dot, indices, sums
from systolic.kernels.ssd_prefill.tuning import Tuning
from systolic.kernels.ssd_step.arguments import steps_of


def _group(x, step, decay, b, c, d, state, dtype):
    """(out [C, h * P], state [h, P, N]) of one chunk and the h heads of one group, all float32.

    x: [C, h * P]; step, decay: [C, h]; b, c: [C, N] with values of ``dtype``; d: [1, h].
    """
    size, heads = step.shape
    width = x.shape[1] // heads
    row, column = indices(size)
    precision = jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None
    pairs = dot(c.astype(dtype), b.astype(dtype), BY_COLUMNS, precision=precision)
    decays = jnp.exp(sums(jnp.concatenate([column <= row, column > row]), decay))
    since, rest = decays[:size], decays[size:]
    # Each head's factors for all its columns.
    head, wide = (jax.lax.broadcasted_iota(jnp.int32, (heads, x.shape[1]), i) for i in range(2))
    spread = jnp.where((wide >= head * width) & (wide < (head + 1) * width), 1.0, 0.0)
    factors = dot(jnp.concatenate([step, step * rest, since, jnp.broadcast_to(d, (8, heads))]), spread, PLAIN)
    added = x * factors[:size]
    inside = []
    for h in range(heads):
        between = sums(column <= row, jnp.where(row > column, decay[:, h : h + 1], 0.0))
        own = jnp.where(row >= column, pairs * jnp.exp(between), 0.0)
        inside.append(dot(own, added[:, h * width : (h + 1) * width], PLAIN))
    read = dot(c, state.reshape(-1, state.shape[2]), BY_COLUMNS) * factors[2 * size : 3 * size]
    out = jnp.concatenate(inside, axis=1) + read + x * factors[3 * size : 3 * size + 1]
    change = dot(x * factors[size : 2 * size], b, BY_ROWS).reshape(state.shape)
    held = [state[h] * since[size - 1 :, h : h + 1] + change[h] for h in range(heads)]
    return out, held


def _body(visits, count, x, step, decay, b, c, d, state, out, new_state, *, groups: int):
    tokens, padding, start, stop = sequences.enter(pl.program_id(1), visits, count, state, new_state)
    mine = sequences.mine(x.shape[0], start, stop)
    _, heads, width, states = new_state.shape
    each = heads // groups

    @pl.when(tokens)
    def _():
        def part(array, group, size):
            return jnp.where(mine, array[:, group * size : (group + 1) * size].astype(jnp.float32), 0.0)

        for group in range(groups):
            first, columns = group * each, pl.ds(group * each * width, each * width)
            result, held = _group(
                part(x, group, each * width), part(step.at[0], group, each), part(decay.at[0], group, each),
                part(b, group, states), part(c, group, states), d[0, :, first : first + each],
                new_state[0, first : first + each], x.dtype)  # fmt: skip
            for head, value in enumerate(held):
                new_state[0, first + head] = value
            # A row's other visits have written it or will do so.
            kept = jnp.where(mine, result, out[:, columns].astype(jnp.float32))
            out[:, columns] = kept.astype(out.dtype)

    @pl.when(padding)
    def _():
        out[...] = jnp.where(mine, 0.0, out[...].astype(jnp.float32)).astype(out.dtype)


def ssd_prefill_pallas(x, dt, a, b, c, d, dt_bias, state, slots, starts, resumed, *, softplus: bool, dt_limit,
                       tuning: Tuning, interpret=False):  # fmt: skip
    """Same arguments and results as `ssd_prefill`."""
    (tokens, heads, width), (groups, states), size = x.shape, b.shape[1:], tuning.heads
    block_groups = max(1, size * groups // heads)

    def at(which):
        return functools.partial(sequences.field, which)

    def rows(columns, block_of):
        return pl.BlockSpec((tuning.chunk, columns), lambda h, n, *visits: (
            at(sequences.BLOCK)(n, *visits), block_of(h)))  # fmt: skip

    values = rows(size * width, lambda h: h)
    shared = rows(block_groups * states, lambda h: h * size * groups // heads // block_groups)
    factors = pl.BlockSpec((1, tuning.chunk, size), lambda h, n, *visits: (h, at(sequences.BLOCK)(n, *visits), 0))
    held = pl.BlockSpec((1, size, width, states), lambda h, n, *visits: (at(sequences.SLOT)(n, *visits), h, 0, 0))
    with jax.enable_x64(False):
        visits, count = sequences.walk(slots, starts, resumed, tokens, tuning.chunk)
        step, decay = steps_of(dt, a, dt_bias, softplus, dt_limit)
        blocked = [y.reshape(tokens, -1, size).swapaxes(0, 1) for y in (step, jnp.maximum(decay, UNDERFLOW))]
        flat = [y.reshape(tokens, -1) for y in (x, b, c)]
        call = pl.pallas_call(
            functools.partial(_body, groups=block_groups),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=2, grid=(heads // size, visits.shape[0] // sequences.FIELDS),
                in_specs=[values, factors, factors, shared, shared,
                          pl.BlockSpec((1, 1, size), lambda h, n, *visits: (h, 0, 0)), held],
                out_specs=[values, held],
            ),
            out_shape=[jax.ShapeDtypeStruct(flat[0].shape, x.dtype), jax.ShapeDtypeStruct(state.shape, state.dtype)],
            input_output_aliases={8: 1},
            compiler_params=compiler_params(("parallel", "arbitrary")),
            cost_estimate=pl.CostEstimate(
                flops=tokens * heads * width * (4 * states + 2 * tuning.chunk),
                transcendentals=tokens * heads * tuning.chunk,
                bytes_accessed=2 * x.size * x.dtype.itemsize + 8 * slots.shape[0] * heads * width * states),
            interpret=interpret,
            name="systolic_ssd_prefill",
        )  # fmt: skip
        out, state = call(visits, count, flat[0], *blocked, *flat[1:], d.reshape(-1, 1, size), state)
        return out.reshape(x.shape), state
