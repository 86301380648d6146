"""Short causal convolution over ragged sequences in Pallas for TPU.

The grid is (blocks of channels, visits), and a visit is one sequence inside one block of tokens.  The block is copied
to a window in VMEM, and the inputs before the sequence's first token of this visit are put right before that one, over
tokens of another sequence: then all taps are slices of the window, and so is the state for the next visit.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels import sequences
from systolic.kernels.causal_conv1d.tuning import Tuning
from systolic.kernels.pallas import compiler_params

# Rows of the window before the block: a whole tile, so that the block's copy is aligned.
MARGIN = 8


def _body(visits, count, x, weight, bias, state, out, new_state, window, *, silu: bool):
    tokens, padding, start, stop = sequences.enter(pl.program_id(1), visits, count, state, new_state)
    rows, before = x.shape[0], state.shape[1]
    mine = sequences.mine(rows, start, stop)

    @pl.when(tokens)
    def _():
        window[pl.ds(MARGIN, rows)] = x[...].astype(jnp.float32)
        # Row by row, since their place is known at run time only.
        for i in range(before):
            window[pl.ds(MARGIN + start - before + i, 1)] = new_state[0, i : i + 1].astype(jnp.float32)
        total = bias[...] + sum(weight[i : i + 1] * window[pl.ds(MARGIN - before + i, rows)]
                                for i in range(before + 1))  # fmt: skip
        total = total * jax.nn.sigmoid(total) if silu else total
        # A row's other visits have written it or will do so.
        out[...] = jnp.where(mine, total, out[...].astype(jnp.float32)).astype(out.dtype)
        for i in range(before):
            new_state[0, i : i + 1] = window[pl.ds(MARGIN + stop - before + i, 1)].astype(state.dtype)

    @pl.when(padding)
    def _():
        out[...] = jnp.where(mine, 0.0, out[...].astype(jnp.float32)).astype(out.dtype)


def causal_conv1d_pallas(x, weight, bias, state, slots, starts, resumed, *, silu: bool, tuning: Tuning,
                         interpret=False):  # fmt: skip
    """Same arguments and results as `causal_conv1d`."""
    (tokens, channels), width = x.shape, weight.shape[1]
    wide = tuning.channels

    def at(which):
        return functools.partial(sequences.field, which)

    values = pl.BlockSpec((tuning.rows, wide), lambda c, n, *visits: (at(sequences.BLOCK)(n, *visits), c))
    held = pl.BlockSpec((1, width - 1, wide), lambda c, n, *visits: (at(sequences.SLOT)(n, *visits), 0, c))
    with jax.enable_x64(False):
        visits, count = sequences.walk(slots, starts, resumed, tokens, tuning.rows)
        call = pl.pallas_call(
            functools.partial(_body, silu=silu),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=2, grid=(channels // wide, visits.shape[0] // sequences.FIELDS),
                in_specs=[values, pl.BlockSpec((width, wide), lambda c, n, *visits: (0, c)),
                          pl.BlockSpec((1, wide), lambda c, n, *visits: (0, c)), held],
                out_specs=[values, held],
                scratch_shapes=[pltpu.VMEM((MARGIN + tuning.rows, wide), jnp.float32)],
            ),
            out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(state.shape, state.dtype)],
            input_output_aliases={5: 1},
            compiler_params=compiler_params(("parallel", "arbitrary")),
            cost_estimate=pl.CostEstimate(
                flops=2 * x.size * width, transcendentals=x.size if silu else 0,
                bytes_accessed=(2 * x.size + 2 * slots.shape[0] * channels * width) * x.dtype.itemsize),
            interpret=interpret,
            name="systolic_causal_conv1d",
        )  # fmt: skip
        return call(visits, count, x, weight.astype(jnp.float32).T, bias.astype(jnp.float32)[None], state)
