"""``torch.ops.systolic.ssd_step``: the kernel as a PyTorch operator; it returns the updated state."""

from __future__ import annotations

import torch

from ..torch_library import define


def _fake(x, dt, a, b, c, d, dt_bias, state, slots, softplus, dt_low, dt_high):
    return torch.empty_like(x), torch.empty_like(state)


def _lower(x, dt, a, b, c, state, slots, softplus, dt_low, dt_high, d=None, dt_bias=None):
    import jax.numpy as jnp

    from . import ssd_step

    return ssd_step(x, dt, a, b, c, d, dt_bias, state, slots.astype(jnp.int32), softplus=softplus,
                    dt_limit=(dt_low, dt_high))  # fmt: skip


define(
    "ssd_step(Tensor x, Tensor dt, Tensor a, Tensor b, Tensor c, Tensor? d, Tensor? dt_bias, Tensor state, "
    "Tensor slots, bool softplus, float dt_low, float dt_high) -> (Tensor, Tensor)",
    _fake, _lower,
)  # fmt: skip
