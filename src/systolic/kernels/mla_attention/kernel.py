"""Multi-head latent attention in Pallas for TPU: paged attention whose one key of a token has the value in it.

A block of the cache is fetched once for all heads and used twice, as keys and, its first columns, as values.
"""

from __future__ import annotations

import jax.numpy as jnp

from systolic.kernels.arguments import need
from systolic.kernels.paged_attention.kernel import paged_attention_pallas
from systolic.kernels.paged_attention.static import LANES
from systolic.kernels.paged_attention.tuning import Tuning


def mla_attention_pallas(q, new, cache, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs, cache_scale, *,
                         latent: int, scale: float, return_lse: bool, tuning: Tuning, interpret=False):  # fmt: skip
    """Same arguments and results as `mla_attention`; an absent cache_scale has shape [0].

    A sequence's new tokens are all written or, when the slot of its first one is -1, none.

    Raises:
        ValueError: the TPU form does not have a size, or the block sizes do not fit.
    """
    for name, size in (("the latent", latent), ("a row of the cache", cache.shape[2])):
        need(size % LANES == 0, f"{name} has {size} elements; on TPU that must be a multiple of {LANES}")
    behind = (0, cache.shape[2] - q.shape[2])
    q, new = jnp.pad(q, ((0, 0), (0, 0), behind)), jnp.pad(new, ((0, 0), behind))
    absent = jnp.zeros((0,), jnp.float32)
    out, cache, *lse = paged_attention_pallas(
        q, new[:, None], None, cache[:, None, None], block_table, seq_lens, query_start_loc, slot_mapping, num_seqs,
        absent, absent, cache_scale, scale=scale, sliding_window=0, soft_cap=0.0, causal=True, return_lse=return_lse,
        tuning=tuning, latent=latent, interpret=interpret,
    )  # fmt: skip
    return out, cache[:, 0, 0], *lse
