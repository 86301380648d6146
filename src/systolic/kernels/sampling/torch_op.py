"""``torch.ops.systolic.sample_tokens``: the kernel as a PyTorch operator."""

from __future__ import annotations

import torch

from ..torch_library import define


def _fake(logits, *_):
    return logits.new_empty(logits.shape[0], dtype=torch.int32)


def _lower(logits, noise, temperature, top_k, top_p, min_p):
    import jax.numpy as jnp

    from . import sample_tokens

    return sample_tokens(logits, noise, temperature, top_k.astype(jnp.int32), top_p, min_p)


define(
    "sample_tokens(Tensor logits, Tensor noise, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p) -> Tensor",
    _fake, _lower,
)  # fmt: skip
