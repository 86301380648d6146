"""One decode step of state space duality in Pallas for TPU.

The grid is (tokens, blocks of heads).  A token's slot, known before the kernel starts, says which block of the states
to fetch; it goes back to where it came from.  The vector unit does it all: a matrix unit would have to load each state to
multiply it by a single row, in six passes.  So x and the result are columns, heads side by side.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.pallas import compiler_params
from systolic.kernels.ssd_step.arguments import steps_of
from systolic.kernels.ssd_step.tuning import Tuning


def _body(slots, x, keep, b, c, state, out, new_state):
    del slots  # used by the index maps
    heads, groups = state.shape[1], b.shape[1]
    for head in range(heads):
        column, group = pl.ds(head, 1), head // (heads // groups)
        held = state[0, head] * keep[0, 0, :, column] + x[0, 0, :, column] * b[0, group]
        new_state[0, head] = held
        out[0, 0, :, column] = jnp.sum(held * c[0, group], axis=1, keepdims=True)


def ssd_step_pallas(x, dt, a, b, c, d, dt_bias, state, slots, *, softplus: bool, dt_limit, tuning: Tuning,
                    interpret=False):  # fmt: skip
    """Same arguments and results as `ssd_step`."""
    (tokens, heads, width), (groups, states), size = x.shape, b.shape[1:], tuning.heads
    block_groups = max(1, size * groups // heads)

    def columns(rows):
        return pl.BlockSpec((1, 1, rows, size), lambda t, h, slots: (t, h, 0, 0))

    shared = pl.BlockSpec((1, block_groups, 1, states), lambda t, h, slots: (
        t, h * size * groups // heads // block_groups, 0, 0))  # fmt: skip
    held = pl.BlockSpec((1, size, width, states), lambda t, h, slots: (slots[t], h, 0, 0))
    call = pl.pallas_call(
        _body,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1, grid=(tokens, heads // size),
            in_specs=[columns(width), columns(1), shared, shared, held], out_specs=[columns(width), held],
        ),
        out_shape=[jax.ShapeDtypeStruct((tokens, heads // size, width, size), jnp.float32),
                   jax.ShapeDtypeStruct(state.shape, state.dtype)],
        input_output_aliases={5: 1},
        compiler_params=compiler_params(("arbitrary", "arbitrary")),
        cost_estimate=pl.CostEstimate(flops=5 * tokens * heads * width * states, transcendentals=tokens * heads,
                                      bytes_accessed=8 * tokens * heads * width * states),
        interpret=interpret,
        name="systolic_ssd_step",
    )  # fmt: skip
    with jax.enable_x64(False):
        step, decay = steps_of(dt, a, dt_bias, softplus, dt_limit)
        x32 = x.astype(jnp.float32)
        given = (x32 * step[:, :, None]).reshape(tokens, -1, size, width).swapaxes(2, 3)
        keep = jnp.exp(decay).reshape(tokens, -1, 1, size)
        rows = [y.astype(jnp.float32)[:, :, None] for y in (b, c)]
        out, state = call(slots, given, keep, *rows, state)
        out = out.swapaxes(2, 3).reshape(x.shape) + d[:, None] * x32
        return out.astype(x.dtype), state
