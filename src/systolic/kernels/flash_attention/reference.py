"""Attention inside segments in plain jax.numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def flash_attention_reference(q, k, v, q_segments, kv_segments, *, scale: float, causal: bool, soft_cap: float):
    """Same arguments and result as `flash_attention`; holds all scores at once."""
    group = q.shape[0] // k.shape[0]
    precision = jax.lax.Precision.HIGHEST
    keys, values = (jnp.repeat(x.astype(jnp.float32), group, axis=0) for x in (k, v))
    scores = jnp.einsum("htd,hsd->hts", q.astype(jnp.float32), keys, precision=precision) * scale
    if soft_cap:
        scores = jnp.tanh(scores / soft_cap) * soft_cap
    seen = (q_segments[:, None] == kv_segments[None, :]) & (q_segments >= 0)[:, None]
    if causal:
        seen &= jnp.arange(k.shape[1])[None, :] <= jnp.arange(q.shape[1])[:, None]
    scores = jnp.where(seen, scores, -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True)
    weights = jnp.exp(scores - jnp.where(top == -jnp.inf, 0.0, top))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    weights = weights / jnp.where(total == 0, 1.0, total)
    return jnp.einsum("hts,hsd->htd", weights, values, precision=precision).astype(q.dtype)
