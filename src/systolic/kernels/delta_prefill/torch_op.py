"""``torch.ops.systolic.delta_prefill``: the kernel as a PyTorch operator; it returns the updated state."""

from __future__ import annotations

import torch

from ..torch_library import define


def _fake(q, k, v, decay, beta, state, slots, starts, resumed, scale):
    return torch.empty_like(v), torch.empty_like(state)


def _lower(q, k, v, decay, beta, state, slots, starts, resumed, scale):
    import jax.numpy as jnp

    from . import delta_prefill

    slots, starts = slots.astype(jnp.int32), starts.astype(jnp.int32)
    return delta_prefill(q, k, v, decay, beta, state, slots, starts, resumed, scale=scale)


define(
    "delta_prefill(Tensor q, Tensor k, Tensor v, Tensor decay, Tensor beta, Tensor state, Tensor slots, Tensor starts, "
    "Tensor resumed, float scale) -> (Tensor, Tensor)",
    _fake, _lower,
)  # fmt: skip
