"""``torch.ops.systolic.causal_conv1d``: the kernel as a PyTorch operator; it returns the updated state."""

from __future__ import annotations

import torch

from ..torch_library import define


def _fake(x, weight, bias, state, slots, starts, resumed, silu):
    return torch.empty_like(x), torch.empty_like(state)


def _lower(x, weight, state, slots, starts, resumed, silu, bias=None):
    import jax.numpy as jnp

    from . import causal_conv1d

    slots, starts = slots.astype(jnp.int32), starts.astype(jnp.int32)
    return causal_conv1d(x, weight, bias, state, slots, starts, resumed, silu=silu)


define(
    "causal_conv1d(Tensor x, Tensor weight, Tensor? bias, Tensor state, Tensor slots, Tensor starts, Tensor resumed, "
    "bool silu) -> (Tensor, Tensor)",
    _fake, _lower,
)  # fmt: skip
