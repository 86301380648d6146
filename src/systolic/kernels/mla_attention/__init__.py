"""Multi-head latent attention (arXiv:2405.04434) over a paged cache of latents, in the absorbed form.

The projections from the latent to each head's keys and values are part of the queries and of what follows the result,
so that all heads attend to the same rows: a latent and a rotated part as key, the latent as value.
Public names: `mla_attention`, `cache_shape`, `mla_attention_reference`.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp

from systolic.kernels.arguments import CACHES, FLOATS, names, need, need_batch
from systolic.kernels.mla_attention.reference import mla_attention_reference
from systolic.kernels.selection import dispatch

__all__ = ["cache_shape", "mla_attention", "mla_attention_reference"]


def cache_shape(num_blocks: int, block_size: int, latent: int, rope: int) -> tuple[int, ...]:
    """Shape of one layer's cache: a row of the latent, the rotated part and zeros up to a multiple of 128.

    Without the zeros XLA may order the dimensions of the cache otherwise, and copy all of it for each call.
    """
    return (num_blocks, block_size, -(-(latent + rope) // 128) * 128)


def mla_attention(q, new, cache, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs, cache_scale=None, *,
                  latent: int, scale: float, return_lse: bool = False):
    """Writes this step's rows into the cache, then attends over it, each query to the keys up to its own position.

    Sequence s owns the tokens query_start_loc[s] .. query_start_loc[s+1]-1 of q and new, which stand at the positions
    seq_lens[s]-n .. seq_lens[s]-1: prompts, single tokens and mixtures.

    Args:
        q: [tokens, heads, latent + rope] float32 or bfloat16, the part for the latent first.
        new: [tokens, latent + rope] float32 or bfloat16: latent (normalised) and rotated key of the new tokens.
        cache: `cache_shape(...)` float32, bfloat16, int8, float8_e4m3fn or float8_e5m2, zeros behind each row's
            latent + rope elements; donate it to have it updated in place.
        block_table: [sequences, pages] int32, block numbers of each sequence in order.
        seq_lens: [sequences] int32, context length with the new tokens.
        query_start_loc: [sequences + 1] int32, rising.
        slot_mapping: [tokens] int32 or int64, block * block_size + offset, the place that block_table gives; -1
            writes nothing: for padding, and for all new tokens of a sequence together.
        num_seqs: [1] int32; sequences from there on, and their tokens, are padding.
        cache_scale: [1] float32; the cache holds value / scale, rounded and limited to its type. None: 1.
        latent: elements of the latent, which are the value.
        scale: factor of the dot products.
        return_lse: also return the logarithm of the softmax's denominator, for merging partial results.

    Returns:
        (out [tokens, heads, latent] of q's dtype with zeros for padding, the updated cache) and with return_lse
        [tokens, heads] float32, -inf where no key is seen.

    Raises:
        ValueError: a shape or a dtype is wrong, or on TPU a size that the kernel does not have: the latent and a
            row of the cache must be multiples of 128, a page a power of two of tokens from 8 on.
    """
    cache_scale = jnp.zeros((0,), jnp.float32) if cache_scale is None else cache_scale
    args = (q, new, cache, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs, cache_scale)
    _check(*args, latent)
    options = {"latent": int(latent), "scale": float(scale), "return_lse": bool(return_lse)}
    return dispatch(args, reference=functools.partial(mla_attention_reference, **options),
                    tpu=functools.partial(_tuned_pallas, **options))  # fmt: skip


def _check(q, new, cache, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs, cache_scale, latent) -> None:
    need(q.ndim == 3 and q.size > 0, f"q has shape {q.shape}; it must be [tokens, heads, latent + rope], not empty")
    tokens, _, width = q.shape
    need(0 < latent <= width, f"latent is {latent}; it must be from 1 to q's {width} elements")
    need(new.shape == (tokens, width), f"new has shape {new.shape}; it must be {(tokens, width)}")
    need(cache.ndim == 3 and cache.shape[2] >= width and cache.size > 0,
         f"cache has shape {cache.shape}; it must be [num_blocks, block_size, {width} or more], not empty")
    for name, array in (("q", q), ("new", new)):
        need(array.dtype in FLOATS, f"{name} has dtype {array.dtype}; it must be one of {names(FLOATS)}")
    need(cache.dtype in CACHES, f"cache has dtype {cache.dtype}; it must be one of {names(CACHES)}")
    need(cache_scale.shape in ((0,), (1,)) and cache_scale.dtype == jnp.float32,
         f"cache_scale is {cache_scale.dtype}{cache_scale.shape}; it must be float32 of shape (1,)")
    need(block_table.ndim == 2 and block_table.size > 0,
         f"block_table has shape {block_table.shape}; it must be [sequences, pages], not empty")
    need_batch(tokens, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs)


def _tuned_pallas(q, new, cache, block_table, *rest, interpret, **options):
    from systolic.kernels.mla_attention.kernel import mla_attention_pallas
    from systolic.kernels.mla_attention.tuning import tuned

    return mla_attention_pallas(q, new, cache, block_table, *rest, **options, tuning=tuned(q, cache, block_table),
                                interpret=interpret)  # fmt: skip
