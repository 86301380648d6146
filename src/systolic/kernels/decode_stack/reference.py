"""One decode step of a decoder stack in plain jax.numpy, layer by layer."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from systolic.kernels.decoder.reference import rms_norm_reference
from systolic.kernels.paged_attention.reference import paged_attention_reference


def _product(x, weight):
    precision = jax.lax.Precision.HIGHEST if weight.dtype == jnp.float32 else None
    return jax.lax.dot_general(x.astype(weight.dtype), weight, (((1,), (1,)), ((), ())), precision=precision,
                               preferred_element_type=jnp.float32)  # fmt: skip


def decode_stack_reference(x, input_norm, qkv, q_norm, k_norm, out, post_norm, gate_up, down, kv_cache, block_table,
                           seq_lens, cos_sin_cache, *, epsilon: float, scale: float):
    """Same arguments and results as `decode_stack`; absent q_norm and k_norm have shape [0]."""
    sequences = x.shape[0]
    kv_heads, page_size, dim = kv_cache.shape[3:]
    position = jnp.maximum(seq_lens - 1, 0)
    page = jnp.take_along_axis(block_table, (position // page_size)[:, None], axis=1)[:, 0]
    slots = jnp.where(seq_lens > 0, page * page_size + position % page_size, -1)
    empty, starts = jnp.zeros((0,), jnp.float32), jnp.arange(sequences + 1, dtype=jnp.int32)
    cos, sin = jnp.split(cos_sin_cache[position].astype(jnp.float32)[:, None, :], 2, axis=-1)

    def norm(value, weight):
        return rms_norm_reference(value, weight.astype(jnp.float32), epsilon=epsilon)

    def rotate(value, weight):
        if q_norm.size:
            value = norm(value, weight)
        first, second = jnp.split(value, 2, axis=-1)
        return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    def layer(residual, given):
        before, wide, of_q, of_k, mixed, after, opened, closed, cache = given
        heads = _product(norm(residual, before), wide).reshape(sequences, -1, dim)
        q, k, v = jnp.split(heads, [heads.shape[1] - 2 * kv_heads, heads.shape[1] - kv_heads], axis=1)
        q = rotate(q, of_q).astype(cache.dtype)
        attended, cache = paged_attention_reference(
            q, rotate(k, of_k), v, cache, block_table, seq_lens, starts, slots, starts[-1:], empty, empty, empty,
            scale=scale, sliding_window=0, soft_cap=0.0, causal=True,
        )  # fmt: skip
        residual = residual + _product(attended.reshape(sequences, -1), mixed)
        gate, up = jnp.split(_product(norm(residual, after), opened), 2, axis=1)
        return residual + _product(gate * jax.nn.sigmoid(gate) * up, closed), cache

    absent = jnp.zeros((qkv.shape[0], 0), jnp.float32)
    of_heads = (q_norm, k_norm) if q_norm.size else (absent, absent)
    stacked = (input_norm, qkv, *of_heads, out, post_norm, gate_up, down, kv_cache)
    residual, kv_cache = jax.lax.scan(layer, x.astype(jnp.float32), stacked)
    return residual.astype(x.dtype), kv_cache
