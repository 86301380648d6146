"""One decode step of a gated delta net in Pallas for TPU.

The grid is (tokens, blocks of heads).  A token's slot, known before the kernel starts, says which block of the states to
fetch; it goes back to where it came from.  The products with one row run on the matrix unit in full float32 precision.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.delta_step.tuning import Tuning
from systolic.kernels.pallas import compiler_params


def _body(slots, q, k, v, decay, beta, state, out, new_state, *, scale: float):
    del slots  # used by the index maps
    options = {"precision": jax.lax.Precision.HIGHEST, "preferred_element_type": jnp.float32}
    heads = state.shape[1]
    keep = jnp.exp(decay[0])
    if decay.shape[2] > 1:
        # Channels are the state's rows: transposed by a product with the identity, which takes any sizes.
        row, column = (jax.lax.broadcasted_iota(jnp.int32, (heads, heads), i) for i in range(2))
        identity = jnp.where(row == column, 1.0, 0.0)
        keep = jax.lax.dot_general(keep, identity, (((0,), (0,)), ((), ())), **options)
    for head in range(heads):
        factor = keep[head : head + 1] if decay.shape[2] == 1 else keep[:, head : head + 1]
        query, key, value = (x[0, pl.ds(head, 1)].astype(jnp.float32) for x in (q, k, v))
        held = state[0, head] * factor
        change = beta[0, pl.ds(head, 1)] * (value - jnp.dot(key, held, **options))
        held = held + jax.lax.dot_general(key, change, (((0,), (0,)), ((), ())), **options)
        new_state[0, head] = held
        out[0, pl.ds(head, 1)] = jnp.dot(query, held, **options) * scale


def delta_step_pallas(q, k, v, decay, beta, state, slots, *, scale: float, tuning: Tuning, interpret=False):
    """Same arguments and results as `delta_step`."""
    tokens, heads, width = q.shape
    values = v.shape[2]
    decay = decay.reshape(tokens, heads, -1)

    def row(size):
        return pl.BlockSpec((1, tuning.heads, size), lambda t, h, slots: (t, h, 0))

    held = pl.BlockSpec((1, tuning.heads, width, values), lambda t, h, slots: (slots[t], h, 0, 0))
    call = pl.pallas_call(
        functools.partial(_body, scale=scale),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1, grid=(tokens, heads // tuning.heads),
            in_specs=[row(width), row(width), row(values), row(decay.shape[2]), row(1), held],
            out_specs=[row(values), held],
        ),
        out_shape=[jax.ShapeDtypeStruct(v.shape, jnp.float32), jax.ShapeDtypeStruct(state.shape, state.dtype)],
        input_output_aliases={6: 1},
        compiler_params=compiler_params(("arbitrary", "arbitrary")),
        cost_estimate=pl.CostEstimate(flops=6 * tokens * heads * width * values, transcendentals=decay.size,
                                      bytes_accessed=8 * tokens * heads * width * values),
        interpret=interpret,
        name="systolic_delta_step",
    )  # fmt: skip
    with jax.enable_x64(False):
        # Rows of one head are cut out of their block, which needs 32 bits.
        rows = [x.astype(jnp.float32) for x in (q, k, v)]
        out, state = call(slots, *rows, decay, beta[:, :, None], state)
        return out.astype(q.dtype), state
