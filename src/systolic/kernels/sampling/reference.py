"""Sampling in plain jax.numpy, by sorting."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def sample_tokens_reference(logits, noise, temperature, top_k, top_p, min_p):
    """Same arguments and result as `sample_tokens`."""
    rows, vocabulary = logits.shape
    greedy = (temperature == 0)[:, None]
    # Computed once: where a fusion repeats it, the copies can differ in the last bit, and no token equals the maximum.
    scaled = jax.lax.optimization_barrier(logits / jnp.where(greedy, 1.0, temperature[:, None]))
    top = jnp.max(scaled, axis=1, keepdims=True)
    # The largest has weight 1 also where a unit's exponential of 0 is not quite that.
    weight = jnp.where(scaled == top, 1.0, jnp.exp(scaled - top))
    descending = jnp.flip(jnp.sort(scaled, axis=1), axis=1)
    wanted = jnp.where((top_k <= 0) | (top_k > vocabulary), vocabulary, top_k)
    kept = (scaled >= jnp.take_along_axis(descending, wanted[:, None] - 1, axis=1)) & (weight >= min_p[:, None])
    order = jnp.argsort(-scaled, axis=1)
    sorted_weight = jnp.take_along_axis(jnp.where(kept, weight, 0.0), order, axis=1)
    mass = jnp.cumsum(sorted_weight, axis=1)
    # The first place at which the mass is enough; everything at least as likely stays.
    enough = jnp.argmax(mass >= top_p[:, None] * mass[:, -1:], axis=1)
    last = jnp.take_along_axis(descending, enough[:, None], axis=1)
    kept &= (top_p[:, None] >= 1) | (scaled >= last)
    kept = (kept & (scaled > -jnp.inf)) | greedy
    return jnp.argmax(jnp.where(kept, scaled + jnp.where(greedy, 0.0, noise), -jnp.inf), axis=1).astype(jnp.int32)
