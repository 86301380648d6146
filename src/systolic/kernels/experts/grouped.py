"""Mixture-of-experts by sorting rows by expert and two grouped matmuls: the form for TPU."""

from __future__ import annotations

import jax.numpy as jnp

from systolic.kernels.experts.reference import activate
from systolic.kernels.grouped_matmul import grouped_matmul


def experts_grouped(x, w13, w2, ids, weights, *, activation: str):
    """Same arguments and result as `experts`; products of both layers are rounded to x's dtype."""
    tokens, k = ids.shape
    chosen = ids.reshape(tokens * k)
    order = jnp.argsort(chosen, stable=True)
    sizes = jnp.zeros((w13.shape[0],), jnp.int32).at[chosen].add(1)
    hidden = grouped_matmul(x[order // k], w13.astype(x.dtype), sizes)
    hidden = activate(hidden.astype(jnp.float32), activation).astype(x.dtype)
    out = grouped_matmul(hidden, w2.astype(x.dtype), sizes).astype(jnp.float32)
    # Back to the order of tokens by a gather: a scatter would add rows one after the other.
    out = out[jnp.argsort(order)].reshape(tokens, k, -1)
    return jnp.sum(out * weights.astype(jnp.float32)[:, :, None], axis=1).astype(x.dtype)
