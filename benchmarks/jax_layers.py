"""Layers of `workloads.py` and `compile_models.py` in plain JAX; ``p`` holds a torch model's parameters by name."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def linear(p: dict, name: str, x):
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def layer_norm(p: dict, name: str, x):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def gelu(x):
    return jax.nn.gelu(x, approximate=False)


def attention(qkv, heads: int, causal: bool):
    """(batch, length, 3 * width) to (batch, length, width)."""
    batch, length, _ = qkv.shape
    q, k, v = jnp.moveaxis(qkv.reshape(batch, length, 3, heads, -1), (2, 3), (0, 2))
    scores = q @ k.swapaxes(2, 3) / q.shape[-1] ** 0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    return jnp.moveaxis(jax.nn.softmax(scores) @ v, 1, 2).reshape(batch, length, -1)


def block(p: dict, x, heads: int, at: str = ""):
    """`workloads.Block`, whose parameters' names begin with ``at``."""
    qkv = linear(p, f"{at}qkv", layer_norm(p, f"{at}norm1", x))
    x = x + linear(p, f"{at}project", attention(qkv, heads, causal=True))
    return x + linear(p, f"{at}down", gelu(linear(p, f"{at}up", layer_norm(p, f"{at}norm2", x))))
