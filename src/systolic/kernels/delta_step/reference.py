"""One decode step of a gated delta net in plain jax.numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def delta_step_reference(q, k, v, decay, beta, state, slots, *, scale: float):
    """Same arguments and results as `delta_step`."""
    q32, k32, v32 = (x.astype(jnp.float32) for x in (q, k, v))
    options = {"precision": jax.lax.Precision.HIGHEST}
    held = state[slots] * jnp.exp(decay.reshape(*q.shape[:2], -1, 1))
    change = beta[:, :, None] * (v32 - jnp.einsum("thkv,thk->thv", held, k32, **options))
    held = held + k32[:, :, :, None] * change[:, :, None, :]
    out = jnp.einsum("thkv,thk->thv", held, q32, **options) * scale
    return out.astype(q.dtype), state.at[slots].set(held)
