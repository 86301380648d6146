"""``torch.ops.systolic.flash_attention``: the kernel as a PyTorch operator."""

from __future__ import annotations

import torch

from ..torch_library import define


def _fake(q, *_):
    return torch.empty_like(q, memory_format=torch.contiguous_format)


def _lower(q, k, v, q_segments, kv_segments, scale, causal=False, soft_cap=0.0):
    import jax.numpy as jnp

    from . import flash_attention

    return flash_attention(q, k, v, q_segments.astype(jnp.int32), kv_segments.astype(jnp.int32), scale=scale,
                           causal=causal, soft_cap=soft_cap)  # fmt: skip


define(
    "flash_attention(Tensor q, Tensor k, Tensor v, Tensor q_segments, Tensor kv_segments, float scale, "
    "bool causal=False, float soft_cap=0.0) -> Tensor",
    _fake, _lower,
)  # fmt: skip
