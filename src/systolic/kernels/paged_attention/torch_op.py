"""``torch.ops.systolic.paged_attention``: the kernel as a PyTorch operator.

The operator is functional: it returns the updated cache.  :func:`attend` writes it back, which inside
a compiled program becomes an in-place update of the donated cache.
"""

from __future__ import annotations

import functools

import torch

from ..torch_library import define

def _fake(q, k, v, kv_cache, *_):
    return torch.empty_like(q), torch.empty_like(kv_cache)


def _lower(q, k, v, kv_cache, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs, alibi_slopes=None,
           sinks=None, scale=1.0, sliding_window=0, soft_cap=0.0):  # fmt: skip
    import jax.numpy as jnp

    from . import paged_attention

    def wide(x):
        return x.astype(jnp.float32) if x is not None and x.dtype == jnp.float16 else x

    def logits(x):
        return None if x is None else x.astype(jnp.float32)

    out, cache = paged_attention(
        wide(q), wide(k), wide(v), wide(kv_cache), block_table, seq_lens, query_start_loc, slot_mapping, num_seqs,
        logits(alibi_slopes), logits(sinks), scale=scale, sliding_window=sliding_window, soft_cap=soft_cap,
    )  # fmt: skip
    return out.astype(q.dtype), cache.astype(kv_cache.dtype)


define(
    "paged_attention(Tensor q, Tensor k, Tensor v, Tensor kv_cache, Tensor block_table, Tensor seq_lens, "
    "Tensor query_start_loc, Tensor slot_mapping, Tensor num_seqs, Tensor? alibi_slopes, Tensor? sinks, float scale, "
    "int sliding_window, float soft_cap) -> (Tensor, Tensor)",
    _fake, _lower,
)  # fmt: skip


def attend(q, k, v, kv_cache, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs, alibi_slopes, sinks,
           scale: float, sliding_window: int, soft_cap: float) -> torch.Tensor:  # fmt: skip
    """Attention of this step's tokens; ``kv_cache`` is updated in place.

    Arguments as in :func:`systolic.kernels.paged_attention.paged_attention`.  Returns [tokens, heads, dim].
    """
    tensors = (q, k, v, kv_cache, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs)
    if _is_traced(q):
        out, cache = torch.ops.systolic.paged_attention(*tensors, alibi_slopes, sinks, scale, sliding_window, soft_cap)
        kv_cache.copy_(cache)
        return out
    step = _eager(alibi_slopes is not None, sinks is not None, scale, sliding_window, soft_cap)
    extras = [t for t in (alibi_slopes, sinks) if t is not None]
    return step([*tensors, *extras])


def _is_traced(tensor) -> bool:
    from torch._subclasses.fake_tensor import is_fake

    return is_fake(tensor)


@functools.cache
def _eager(has_alibi: bool, has_sinks: bool, scale: float, sliding_window: int, soft_cap: float):
    """The operator with the cache update as a small compiled graph, traced per concrete signature."""
    graphs = {}

    def function(*tensors):
        extras = list(tensors[9:])
        alibi = extras.pop(0) if has_alibi else None
        sinks = extras.pop(0) if has_sinks else None
        return attend(*tensors[:9], alibi, sinks, scale, sliding_window, soft_cap)

    def call(tensors):
        from ...compile.trace import trace
        from ..selection import forced

        tensors = [t.contiguous() for t in tensors]
        key = (forced(), *((tuple(t.shape), t.dtype) for t in tensors))
        if key not in graphs:
            graphs[key] = trace(function, tensors, {}, "paged_attention")
        return graphs[key].call(list(tensors))[0]

    return call
