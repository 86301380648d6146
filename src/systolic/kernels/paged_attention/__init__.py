"""Attention over a paged key/value cache: ragged prefill and decode in one call.

Public names: `paged_attention`, `cache_shape`, `paged_attention_reference`.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp

from systolic.kernels.arguments import CACHES, FLOATS, names, need, need_batch
from systolic.kernels.cpu.calls import paged_attention_cpu
from systolic.kernels.paged_attention.reference import paged_attention_reference
from systolic.kernels.selection import dispatch

__all__ = ["cache_shape", "paged_attention", "paged_attention_reference"]


def cache_shape(num_blocks: int, block_size: int, kv_heads: int, head_dim: int) -> tuple[int, ...]:
    """Shape of one layer's cache: [num_blocks, 2 (keys, values), kv_heads, block_size, head_dim].

    The heads come before the tokens of a block, so that the page of one head is contiguous.
    """
    return (num_blocks, 2, kv_heads, block_size, head_dim)


def _check(q, k, v, kv_cache, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs, slopes, sinks, scales):
    need(q.ndim == 3, f"q has shape {q.shape}; it must be [tokens, q_heads, head_dim]")
    tokens, q_heads, dim = q.shape
    need(kv_cache.ndim == 5 and kv_cache.shape[1] == 2 and kv_cache.shape[4] == dim,
         f"kv_cache has shape {kv_cache.shape}; it must be [num_blocks, 2, kv_heads, block_size, {dim}]")
    kv_heads = kv_cache.shape[2]
    need(kv_heads > 0 and q_heads % kv_heads == 0,
         f"q has {q_heads} heads, not a multiple of the cache's {kv_heads}")
    for name, array in (("k", k), ("v", v)):
        need(array.shape == (tokens, kv_heads, dim),
             f"{name} has shape {array.shape}; it must be {(tokens, kv_heads, dim)}")
    for name, array in (("q", q), ("k", k), ("v", v)):
        need(array.dtype in FLOATS, f"{name} has dtype {array.dtype}; it must be float32 or bfloat16")
    need(kv_cache.dtype in CACHES, f"kv_cache has dtype {kv_cache.dtype}; it must be one of {names(CACHES)}")
    need(scales.shape in ((0,), (2, kv_heads)) and scales.dtype == jnp.float32,
         f"cache_scales is {scales.dtype}{scales.shape}; it must be float32 of shape (0,) or {(2, kv_heads)}")
    need(block_table.ndim == 2, f"block_table has shape {block_table.shape}; it must be [sequences, pages]")
    need_batch(tokens, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs)
    for name, array in (("alibi_slopes", slopes), ("sinks", sinks)):
        need(array.shape in ((0,), (q_heads,)) and array.dtype == jnp.float32,
             f"{name} is {array.dtype}{array.shape}; it must be float32 of shape (0,) or ({q_heads},)")


def paged_attention(q, k, v, kv_cache, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs,
                    alibi_slopes=None, sinks=None, cache_scales=None, *, scale: float, sliding_window: int = 0,
                    soft_cap: float = 0.0, causal: bool = True, return_lse: bool = False):
    """Writes this step's keys and values into the cache, then attends over the cache.

    Sequence s owns the tokens query_start_loc[s] .. query_start_loc[s+1]-1 of q, k and v, which stand
    at the positions seq_lens[s]-n .. seq_lens[s]-1. A query at position p sees keys 0..p, with a window
    W only p-W+1..p; without `causal` all keys of its sequence, with a window p-W+1..p+W-1.

    On XLA:CPU the result of a query has the same bits whatever else is in the call, however the prompt
    was cut into chunks and wherever its blocks lie (float32 without scales).

    Args:
        q: [tokens, q_heads, head_dim] float32 or bfloat16; q_heads is a multiple of kv_heads.
        k, v: [tokens, kv_heads, head_dim] float32 or bfloat16, the new tokens.
        kv_cache: `cache_shape(...)` float32, bfloat16, int8, float8_e4m3fn or float8_e5m2; donate it to have it
            updated in place.
        block_table: [sequences, pages] int32, block numbers of each sequence in order.
        seq_lens: [sequences] int32, context length with the new tokens.
        query_start_loc: [sequences + 1] int32, rising.
        slot_mapping: [tokens] int32 or int64, block * block_size + offset, the place that block_table gives; -1
            writes nothing: for padding, and for all new tokens of a sequence together.
        num_seqs: [1] int32; sequences from there on, and their tokens, are padding.
        alibi_slopes: [q_heads] float32; slope * (key position - query position) is added to scores.
        sinks: [q_heads] float32, a further logit for each head that takes part in the softmax only.
        cache_scales: [2, kv_heads] float32, of keys and values: the cache holds value / scale, rounded and
            limited to its type. None: 1.
        scale: factor of the dot products.
        sliding_window: W in tokens, 0 for none.
        soft_cap: c in c * tanh(score / c), applied before ALiBi; 0 for none.
        causal: whether a query sees only keys up to its own position.
        return_lse: also return the logarithm of the softmax's denominator, for merging partial results.

    Returns:
        (out [tokens, q_heads, head_dim] of q's dtype with zeros for padding, the updated kv_cache) and with
        return_lse [tokens, q_heads] float32, sinks included, -inf where no key is seen.

    Raises:
        ValueError: a shape, a dtype or an option is wrong.
        jax.errors.JaxRuntimeError: on XLA:CPU, at run time, a length, slot or block is out of range.
    """
    empty = jnp.zeros((0,), jnp.float32)
    slopes = empty if alibi_slopes is None else alibi_slopes
    sinks = empty if sinks is None else sinks
    scales = empty if cache_scales is None else cache_scales
    args = (q, k, v, kv_cache, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs, slopes, sinks, scales)
    _check(*args)
    if sliding_window < 0:
        raise ValueError(f"sliding_window is {sliding_window}; it must be 0 (none) or a number of tokens")
    if soft_cap < 0:
        raise ValueError(f"soft_cap is {soft_cap}; it must be 0 (none) or above")
    options = {"scale": float(scale), "sliding_window": int(sliding_window), "soft_cap": float(soft_cap),
               "causal": bool(causal), "return_lse": bool(return_lse)}
    forms = {"reference": functools.partial(paged_attention_reference, **options),
             "tpu": functools.partial(_tuned_pallas, **options)}
    if not return_lse and not scales.size and kv_cache.dtype in FLOATS:
        forms["cpu"] = functools.partial(_cpu, **options)
    return dispatch(args, **forms)


def _cpu(q, k, v, kv_cache, *rest, return_lse, **options):
    """The custom call, which is for float32 only; scales are absent."""
    q32, k32, v32, cache32 = (x.astype(jnp.float32) for x in (q, k, v, kv_cache))
    out, cache = paged_attention_cpu(q32, k32, v32, cache32, *rest[:-1], **options)
    return out.astype(q.dtype), cache.astype(kv_cache.dtype)


def _tuned_pallas(q, *rest, interpret, **options):
    from systolic.kernels.paged_attention.kernel import paged_attention_pallas
    from systolic.kernels.paged_attention.tuning import tuned

    return paged_attention_pallas(q, *rest, **options, tuning=tuned(q, rest[2], rest[3]), interpret=interpret)
