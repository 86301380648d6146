"""``torch.ops.systolic.mla_attention``: the kernel as a PyTorch operator; it returns the updated cache."""

from __future__ import annotations

import torch

from ..torch_library import define


def _fake(q, new, cache, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs, cache_scale, latent, scale):
    tokens, heads, _ = q.shape
    return (q.new_empty(tokens, heads, latent), torch.empty_like(cache),
            q.new_empty(tokens, heads, dtype=torch.float32))  # fmt: skip


def _lower(q, new, cache, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs, cache_scale, latent, scale):
    import jax.numpy as jnp

    from . import mla_attention

    counts = (a.astype(jnp.int32) for a in (block_table, seq_lens, query_start_loc, slot_mapping, num_seqs))
    return mla_attention(q, new, cache, *counts, cache_scale, latent=latent, scale=scale, return_lse=True)


define(
    "mla_attention(Tensor q, Tensor new, Tensor cache, Tensor block_table, Tensor seq_lens, Tensor query_start_loc, "
    "Tensor slot_mapping, Tensor num_seqs, Tensor? cache_scale, int latent, float scale) -> (Tensor, Tensor, Tensor)",
    _fake, _lower,
)  # fmt: skip
