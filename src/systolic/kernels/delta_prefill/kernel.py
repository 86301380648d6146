"""Chunked gated delta net in Pallas for TPU.

The grid is (blocks of heads, visits).  XLA lists the visits, one for each sequence in each block of tokens, before the
kernel starts.  Blocks of tokens are aligned, so a chunk at the border of a sequence has fewer tokens than the others.
The new state's block is also where the state is kept from one visit of a sequence to the next.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels import sequences
from systolic.kernels.delta_prefill.chunk import chunk
from systolic.kernels.delta_prefill.tuning import Tuning
from systolic.kernels.pallas import compiler_params


def _body(visits, count, q, k, v, decay, beta, state, out, new_state, *, scale: float, by_channel: bool):
    tokens, padding, start, stop = sequences.enter(pl.program_id(1), visits, count, state, new_state)
    mine = sequences.mine(q.shape[0], start, stop)
    _, heads, width, values = new_state.shape

    @pl.when(tokens)
    def _():
        def part(x, head, size):
            step = x.shape[-1] // heads
            return jnp.where(mine, x[:, head * step : head * step + size].astype(jnp.float32), 0.0)

        for head in range(heads):
            decays = part(decay, head, width) if by_channel else part(decay.at[0], head, 1)
            result, new_state[0, head] = chunk(
                part(q, head, width), part(k, head, width), part(v, head, values), decays,
                part(beta.at[0], head, 1), new_state[0, head], dtype=q.dtype)  # fmt: skip
            columns = pl.ds(head * (v.shape[1] // heads), values)
            # A row's other visits have written it or will do so.
            kept = jnp.where(mine, result * scale, out[:, columns].astype(jnp.float32))
            out[:, columns] = kept.astype(out.dtype)

    @pl.when(padding)
    def _():
        out[...] = jnp.where(mine, 0.0, out[...].astype(jnp.float32)).astype(out.dtype)


def delta_prefill_pallas(q, k, v, decay, beta, state, slots, starts, resumed, *, scale: float, tuning: Tuning,
                         interpret=False):  # fmt: skip
    """Same arguments and results as `delta_prefill`."""
    tokens, heads, width = q.shape
    values, size, by_channel = v.shape[2], tuning.heads, decay.ndim == 3

    def at(which):
        return functools.partial(sequences.field, which)

    def rows(array):
        columns = array.shape[1] // heads * size
        return pl.BlockSpec((tuning.chunk, columns), lambda h, n, *visits: (at(sequences.BLOCK)(n, *visits), h))

    factors = pl.BlockSpec((1, tuning.chunk, size), lambda h, n, *visits: (h, at(sequences.BLOCK)(n, *visits), 0))
    held = pl.BlockSpec((1, size, width, values), lambda h, n, *visits: (at(sequences.SLOT)(n, *visits), h, 0, 0))
    with jax.enable_x64(False):
        visits, count = sequences.walk(slots, starts, resumed, tokens, tuning.chunk)
        given = [sequences.in_columns(x) for x in (q, k, v)]
        decay, beta = (x if x.ndim == 3 else x.reshape(tokens, -1, size).swapaxes(0, 1) for x in (decay, beta))
        if by_channel:
            decay = sequences.in_columns(decay)
        call = pl.pallas_call(
            functools.partial(_body, scale=scale, by_channel=by_channel),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=2, grid=(heads // size, visits.shape[0] // sequences.FIELDS),
                in_specs=[*map(rows, given), rows(decay) if by_channel else factors, factors, held],
                out_specs=[rows(given[2]), held],
            ),
            out_shape=[jax.ShapeDtypeStruct(given[2].shape, q.dtype), jax.ShapeDtypeStruct(state.shape, state.dtype)],
            input_output_aliases={7: 1},
            compiler_params=compiler_params(("parallel", "arbitrary")),
            cost_estimate=pl.CostEstimate(
                flops=tokens * heads * (6 * width * values + 4 * tuning.chunk * (2 * width + values)),
                transcendentals=tokens * heads * tuning.chunk,
                bytes_accessed=2 * (q.size + v.size) * q.dtype.itemsize + 8 * slots.shape[0] * heads * width * values),
            interpret=interpret,
            name="systolic_delta_prefill",
        )  # fmt: skip
        out, state = call(visits, count, *given, decay, beta, state)
        return out.reshape(tokens, heads, -1)[:, :, :values], state
