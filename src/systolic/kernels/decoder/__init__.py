"""The small pieces of a decoder layer as single operators: RMS norm, rotary embedding, gated SiLU.

Each is a few lines of `jax.numpy` that XLA fuses.  As one node of a graph instead of up to forty, a
deep model is traced and compiled in a fraction of the time; :mod:`.torch_op` makes them PyTorch operators.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp


@functools.partial(jax.jit, static_argnames=("epsilon",))
def rms_norm(x, weight, *, epsilon: float):
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis, computed in float32 (arXiv:1910.07467).

    x: [..., d]; weight: [d] or None.  Returns x's shape and dtype.
    """
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + jnp.float32(epsilon))
    # The product with the weight is in the weight's dtype, as upstream's native form has it.
    normed = wide * scale
    if weight is None:
        return normed.astype(x.dtype)
    return (normed.astype(weight.dtype) * weight).astype(x.dtype)


@functools.partial(jax.jit, static_argnames=("epsilon",))
def add_rms_norm(x, residual, weight, *, epsilon: float):
    """(rms_norm(x + residual), x + residual); the sum is kept in float32 until both results are rounded."""
    total = x.astype(jnp.float32) + residual.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(total * total, axis=-1, keepdims=True) + jnp.float32(epsilon))
    normed = total * scale
    if weight is not None:
        normed = normed.astype(weight.dtype) * weight
    return normed.astype(x.dtype), total.astype(x.dtype)


def _rotate(x, cos, sin, rotary_dim: int, neox: bool):
    turned, rest = x[..., :rotary_dim], x[..., rotary_dim:]
    cos, sin = cos[:, None, :].astype(x.dtype), sin[:, None, :].astype(x.dtype)
    if neox:
        first, second = jnp.split(turned, 2, axis=-1)
    else:
        first, second = turned[..., ::2], turned[..., 1::2]
    one, two = first * cos - second * sin, second * cos + first * sin
    turned = jnp.concatenate([one, two], -1) if neox else jnp.stack([one, two], -1).reshape(turned.shape)
    return jnp.concatenate([turned, rest], -1) if rest.shape[-1] else turned


@functools.partial(jax.jit, static_argnames=("head_size", "rotary_dim", "neox"))
def rotary(positions, x, cos_sin_cache, *, head_size: int, rotary_dim: int, neox: bool):
    """Rotary position embedding (arXiv:2104.09864) of queries or keys.

    positions: [T] integers below cos_sin_cache.shape[0]; x: [T, heads * head_size]; cos_sin_cache:
    [positions, rotary_dim], cosines then sines.  ``neox`` pairs halves, otherwise neighbours.
    """
    cos, sin = jnp.split(cos_sin_cache[positions], 2, axis=-1)
    heads = x.reshape(x.shape[0], -1, head_size)
    return _rotate(heads, cos, sin, rotary_dim, neox).reshape(x.shape)


@jax.jit
def silu_and_mul(x):
    """silu(x[..., :d]) * x[..., d:] with d half of the last axis."""
    gate, up = jnp.split(x, 2, axis=-1)
    wide = gate.astype(jnp.float32)
    return (wide * jax.nn.sigmoid(wide)).astype(x.dtype) * up
