"""``torch.ops.systolic.delta_step``: the kernel as a PyTorch operator; it returns the updated state."""

from __future__ import annotations

import torch

from ..torch_library import define


def _fake(q, k, v, decay, beta, state, slots, scale):
    return torch.empty_like(v), torch.empty_like(state)


def _lower(q, k, v, decay, beta, state, slots, scale):
    import jax.numpy as jnp

    from . import delta_step

    return delta_step(q, k, v, decay, beta, state, slots.astype(jnp.int32), scale=scale)


define(
    "delta_step(Tensor q, Tensor k, Tensor v, Tensor decay, Tensor beta, Tensor state, Tensor slots, float scale) "
    "-> (Tensor, Tensor)",
    _fake, _lower,
)  # fmt: skip
