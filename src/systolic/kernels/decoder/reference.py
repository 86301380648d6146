"""The small pieces of a decoder layer in plain jax.numpy, for any floating dtype."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def rms_norm_reference(x, weight=None, *, epsilon: float):
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis, computed in float32."""
    return _norm(x.astype(jnp.float32), weight, epsilon).astype(x.dtype)


def add_rms_norm_reference(x, residual, weight=None, *, epsilon: float):
    """(rms_norm(x + residual), x + residual); the sum stays float32 until both results are rounded."""
    total = x.astype(jnp.float32) + residual.astype(jnp.float32)
    return _norm(total, weight, epsilon).astype(x.dtype), total.astype(x.dtype)


def _norm(wide, weight, epsilon: float):
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + jnp.float32(epsilon))
    normed = wide * scale
    # The product with the weight is in the weight's dtype, as upstream's native form has it.
    return normed if weight is None else normed.astype(weight.dtype) * weight


def rotary_reference(positions, x, cos_sin_cache, *, head_size: int, rotary_dim: int, neox: bool):
    """Rotary embedding of x [T, heads * head_size]; the angles are rounded to x's dtype first."""
    cos, sin = jnp.split(cos_sin_cache[positions][:, None, :].astype(x.dtype), 2, axis=-1)
    heads = x.reshape(x.shape[0], x.shape[1] // head_size, head_size)
    turned, rest = heads[..., :rotary_dim], heads[..., rotary_dim:]
    if neox:
        first, second = jnp.split(turned, 2, axis=-1)
    else:
        first, second = turned[..., ::2], turned[..., 1::2]
    one, two = first * cos - second * sin, second * cos + first * sin
    turned = jnp.concatenate([one, two], -1) if neox else jnp.stack([one, two], -1).reshape(turned.shape)
    return (jnp.concatenate([turned, rest], -1) if rest.shape[-1] else turned).reshape(x.shape)


def silu_and_mul_reference(x):
    """silu(x[..., :d]) * x[..., d:] with d half of the last axis."""
    gate, up = jnp.split(x, 2, axis=-1)
    wide = gate.astype(jnp.float32)
    return (wide * jax.nn.sigmoid(wide)).astype(x.dtype) * up
