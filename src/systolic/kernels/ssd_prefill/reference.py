"""State space duality over ragged sequences in plain jax.numpy: chunk by chunk of the sequences, all heads at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from systolic.kernels.products import UNDERFLOW
from systolic.kernels.ssd_step.arguments import steps_of
from systolic.kernels.worklist import spread

CHUNK = 64


def _chunk(x, step, decay, b, c, state):
    """(out [C, G, heads of a group, P], state [G, heads of a group, P, N]) of one chunk; step, decay: [C, G, heads]."""
    precise = {"precision": jax.lax.Precision.HIGHEST}
    token = jnp.arange(CHUNK, dtype=jnp.int32)
    later = (token[:, None] > token)[:, :, None, None]
    # The decay between two tokens is a sum over those after the first, which unlike a difference of sums is exact.
    between = jnp.cumsum(jnp.where(later, decay[:, None], 0.0), axis=0)
    pairs = jnp.einsum("tgn,sgn->tsg", c, b, **precise)[:, :, :, None] * jnp.exp(between)
    pairs = jnp.where((token[:, None] >= token)[:, :, None, None], pairs, 0.0)
    added = x * step[..., None]
    since = jnp.exp(jnp.cumsum(decay, axis=0))
    out = jnp.einsum("tsgh,sghp->tghp", pairs, added, **precise)
    out = out + jnp.einsum("tgn,ghpn->tghp", c, state, **precise) * since[..., None]
    state = state * since[-1][..., None, None]
    return out, state + jnp.einsum("sghp,sgn->ghpn", added * jnp.exp(between[-1])[..., None], b, **precise)


def ssd_prefill_reference(x, dt, a, b, c, d, dt_bias, state, slots, starts, resumed, *, softplus: bool, dt_limit):
    """Same arguments and results as `ssd_prefill`."""
    (tokens, heads, width), groups, sizes = x.shape, b.shape[1], starts[1:] - starts[:-1]
    owner, rank, total = spread(-(-sizes // CHUNK), -(-tokens // CHUNK) + sizes.shape[0])

    with jax.enable_x64(False):
        step, decay = steps_of(dt, a, dt_bias, softplus, dt_limit)
        skip = jnp.where((jnp.arange(tokens) < starts[-1])[:, None, None], d[:, None] * x.astype(jnp.float32), 0.0)
        # Chunks of a sequence begin where it does, so the last one may read beyond the last token.
        grouped = [y.reshape(tokens, groups, heads // groups, *y.shape[2:])
                   for y in (x, step, jnp.maximum(decay, UNDERFLOW))]  # fmt: skip
        rows = [jnp.pad(y.astype(jnp.float32), ((0, CHUNK),) + ((0, 0),) * (y.ndim - 1)) for y in (*grouped, b, c)]

        def visit(number, carried):
            out, states = carried
            sequence = owner[number]
            start = starts[sequence] + rank[number] * CHUNK
            mine = jnp.arange(CHUNK, dtype=jnp.int32) < starts[sequence + 1] - start

            def part(y):
                y = jax.lax.dynamic_slice_in_dim(y, start, CHUNK)
                return jnp.where(mine.reshape((CHUNK,) + (1,) * (y.ndim - 1)), y, 0.0)

            held = jnp.where((rank[number] > 0) | resumed[sequence], states[slots[sequence]], 0.0)
            result, held = _chunk(*map(part, rows), held.reshape(groups, -1, *held.shape[1:]))
            kept = jax.lax.dynamic_slice_in_dim(out, start, CHUNK)
            kept = jnp.where(mine[:, None, None], result.reshape(CHUNK, heads, width), kept)
            states = states.at[slots[sequence]].set(held.reshape(states.shape[1:]))
            return jax.lax.dynamic_update_slice_in_dim(out, kept, start, 0), states

        out = jnp.zeros((tokens + CHUNK, heads, width), jnp.float32)
        out, state = jax.lax.fori_loop(0, total, visit, (out, state))
        return (out[:tokens] + skip).astype(x.dtype), state
