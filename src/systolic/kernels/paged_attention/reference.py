"""Paged attention in plain jax.numpy: the meaning of the kernel, on any platform."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from systolic.kernels.narrow import limited


def _write_cache(kv_cache, k, v, slot_mapping, cache_scales):
    """Scatters [tokens, kv_heads, head_dim] keys and values into their slots; -1 is dropped."""
    if cache_scales.size > 0:
        k, v = (x.astype(jnp.float32) / scale[:, None] for x, scale in zip((k, v), cache_scales))
    k, v = (limited(x.astype(jnp.float32), kv_cache.dtype).astype(kv_cache.dtype) for x in (k, v))
    num_blocks, _, _, block_size, _ = kv_cache.shape
    # A block number past the end is dropped by the scatter, which -1 would not be.
    block = jnp.where(slot_mapping < 0, num_blocks, slot_mapping // block_size)
    offset = jnp.where(slot_mapping < 0, 0, slot_mapping % block_size)
    kv_cache = kv_cache.at[block, 0, :, offset].set(k, mode="drop")
    return kv_cache.at[block, 1, :, offset].set(v, mode="drop")


def paged_attention_reference(q, k, v, kv_cache, block_table, seq_lens, query_start_loc, slot_mapping,
                              num_seqs, alibi_slopes, sinks, cache_scales, *, scale, sliding_window, soft_cap, causal,
                              return_lse=False):  # fmt: skip
    """Same arguments and results as `paged_attention`; absent slopes, sinks and scales have shape [0].

    Gathers the whole block table's keys for every token, so memory grows with
    tokens * pages * block_size: meant for checks and small sizes.
    """
    tokens, q_heads, dim = q.shape
    kv_heads, block_size = kv_cache.shape[2], kv_cache.shape[3]
    sequences, pages = block_table.shape
    group = q_heads // kv_heads
    kv_cache = _write_cache(kv_cache, k, v, slot_mapping, cache_scales)

    token = jnp.arange(tokens, dtype=jnp.int32)
    live = (token >= query_start_loc[0]) & (token < query_start_loc[num_seqs[0]])
    # The last sequence that starts at or before the token; empty sequences start where the next does.
    sequence = jnp.sum(token[:, None] >= query_start_loc[None, 1:], axis=1, dtype=jnp.int32)
    sequence = jnp.clip(sequence, 0, sequences - 1)
    position = seq_lens[sequence] - query_start_loc[sequence + 1] + token

    length = pages * block_size
    # [sequences, pages, 2, kv_heads, block_size, dim] -> [sequences, 2, kv_heads, length, dim]
    rows = kv_cache[block_table]
    rows = rows.transpose(0, 2, 3, 1, 4, 5).reshape(sequences, 2, kv_heads, length, dim)
    keys, values = (rows[:, kind][sequence].astype(jnp.float32) for kind in range(2))
    if cache_scales.size > 0:
        keys, values = keys * cache_scales[0, :, None, None], values * cache_scales[1, :, None, None]

    queries = q.astype(jnp.float32).reshape(tokens, kv_heads, group, dim) * scale
    scores = jnp.einsum("thgd,thld->thgl", queries, keys, precision=jax.lax.Precision.HIGHEST)
    if soft_cap > 0:
        scores = jnp.tanh(scores / soft_cap) * soft_cap
    distance = jnp.arange(length, dtype=jnp.int32)[None, :] - position[:, None]
    if alibi_slopes.size > 0:
        slopes = alibi_slopes.reshape(1, kv_heads, group, 1)
        scores = scores + slopes * distance[:, None, None, :].astype(jnp.float32)
    seen = (distance + position[:, None] < seq_lens[sequence][:, None]) & live[:, None]
    if causal:
        seen &= distance <= 0
    if sliding_window > 0:
        seen &= (distance > -sliding_window) & (distance < sliding_window)
    seen = seen[:, None, None, :]
    scores = jnp.where(seen, scores, -jnp.inf)
    top = jnp.max(scores, axis=-1, keepdims=True)
    if sinks.size > 0:
        top = jnp.maximum(top, sinks.reshape(1, kv_heads, group, 1))
    top = jnp.where(top == -jnp.inf, 0.0, top)
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    if sinks.size > 0:
        total = total + jnp.exp(sinks.reshape(1, kv_heads, group, 1) - top)
    weights = weights / jnp.where(total == 0, 1.0, total)
    # Slots that nobody may see can hold anything, NaN included.
    seen_values = jnp.where(jnp.any(seen, axis=(1, 2))[:, None, :, None], values, 0.0)
    out = jnp.einsum("thgl,thld->thgd", weights, seen_values, precision=jax.lax.Precision.HIGHEST)
    out = jnp.where(live[:, None, None], out.reshape(tokens, q_heads, dim), 0.0).astype(q.dtype)
    if not return_lse:
        return out, kv_cache
    nothing = ~jnp.any(seen, axis=-1, keepdims=True)
    lse = jnp.where(nothing, -jnp.inf, top + jnp.log(jnp.where(nothing, 1.0, total)))
    return out, kv_cache, lse.reshape(tokens, q_heads)
