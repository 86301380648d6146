"""Multi-head latent attention in plain jax.numpy: the meaning of the kernel, on any platform."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from systolic.kernels.narrow import limited


def mla_attention_reference(q, new, cache, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs, cache_scale,
                            *, latent: int, scale: float, return_lse: bool = False):
    """Same arguments and results as `mla_attention`; an absent cache_scale has shape [0].

    Gathers the rows of a whole block table for every token: meant for checks and small sizes.
    """
    tokens, heads, width = q.shape
    blocks, block_size, _ = cache.shape
    sequences, pages = block_table.shape
    factor = cache_scale[0] if cache_scale.size else jnp.float32(1)
    rows = limited(new.astype(jnp.float32) / factor, cache.dtype).astype(cache.dtype)
    # A block number past the end is dropped by the scatter, which -1 would not be.
    block = jnp.where(slot_mapping < 0, blocks, slot_mapping // block_size)
    behind = ((0, 0), (0, cache.shape[2] - width))
    cache = cache.at[block, slot_mapping % block_size].set(jnp.pad(rows, behind), mode="drop")

    token = jnp.arange(tokens, dtype=jnp.int32)
    live = (token >= query_start_loc[0]) & (token < query_start_loc[num_seqs[0]])
    # The last sequence that starts at or before the token; empty sequences start where the next does.
    sequence = jnp.sum(token[:, None] >= query_start_loc[None, 1:], axis=1, dtype=jnp.int32)
    sequence = jnp.clip(sequence, 0, sequences - 1)
    position = seq_lens[sequence] - query_start_loc[sequence + 1] + token
    held = cache[block_table].reshape(sequences, pages * block_size, -1)[sequence, :, :width]
    held = held.astype(jnp.float32) * factor

    options = {"precision": jax.lax.Precision.HIGHEST}
    scores = jnp.einsum("thd,tld->thl", q.astype(jnp.float32) * scale, held, **options)
    seen = (jnp.arange(pages * block_size) <= position[:, None]) & live[:, None]
    scores = jnp.where(seen[:, None], scores, -jnp.inf)
    lse = jax.nn.logsumexp(scores, axis=-1)  # -inf where nothing is seen
    weights = jnp.where(seen[:, None], jnp.exp(scores - jnp.where(lse == -jnp.inf, 0.0, lse)[:, :, None]), 0.0)
    # Slots that nobody may see can hold anything, NaN included.
    values = jnp.where(seen[:, :, None], held[:, :, :latent], 0.0)
    out = jnp.einsum("thl,tld->thd", weights, values, **options).astype(q.dtype)
    return (out, cache, lse) if return_lse else (out, cache)
