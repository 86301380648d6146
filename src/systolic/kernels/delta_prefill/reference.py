"""Chunked gated delta net in plain jax.numpy: chunk by chunk of the sequences, all heads at once."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from systolic.kernels.delta_prefill.chunk import chunk
from systolic.kernels.worklist import spread

CHUNK = 32


def delta_prefill_reference(q, k, v, decay, beta, state, slots, starts, resumed, *, scale: float):
    """Same arguments and results as `delta_prefill`."""
    tokens, sizes = q.shape[0], starts[1:] - starts[:-1]
    # Chunks of a sequence begin where it does, so the last one may read beyond the last token.
    rows = [jnp.pad(x.astype(jnp.float32), ((0, CHUNK),) + ((0, 0),) * (x.ndim - 1)) for x in (q, k, v, decay, beta)]
    owner, rank, total = spread(-(-sizes // CHUNK), -(-tokens // CHUNK) + sizes.shape[0])
    step = jax.vmap(functools.partial(chunk, dtype=jnp.float32), in_axes=(1, 1, 1, 1, 1, 0), out_axes=(1, 0))

    def visit(number, carried):
        out, states = carried
        sequence = owner[number]
        start = starts[sequence] + rank[number] * CHUNK
        mine = jnp.arange(CHUNK, dtype=jnp.int32) < starts[sequence + 1] - start

        def part(x):
            x = jax.lax.dynamic_slice_in_dim(x, start, CHUNK)
            x = jnp.where(mine.reshape((CHUNK,) + (1,) * (x.ndim - 1)), x, 0.0)
            return x if x.ndim == 3 else x[:, :, None]

        held = states[slots[sequence]]
        held = jnp.where((rank[number] > 0) | resumed[sequence], held, 0.0)
        result, held = step(*map(part, rows), held)
        kept = jnp.where(mine[:, None, None], result * scale, jax.lax.dynamic_slice_in_dim(out, start, CHUNK))
        return jax.lax.dynamic_update_slice_in_dim(out, kept, start, 0), states.at[slots[sequence]].set(held)

    with jax.enable_x64(False):
        out = jnp.zeros((tokens + CHUNK, *v.shape[1:]), jnp.float32)
        out, state = jax.lax.fori_loop(0, total, visit, (out, state))
        return out[:tokens].astype(q.dtype), state
