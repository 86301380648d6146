"""``torch.ops.systolic.grouped_matmul``: the kernel as a PyTorch operator."""

from __future__ import annotations

from ..torch_library import define


def _fake(x, weight, group_sizes, weight_scale):
    return x.new_empty(x.shape[0], weight.shape[1])


def _lower(x, weight, group_sizes, weight_scale=None):
    import jax.numpy as jnp

    from . import grouped_matmul

    return grouped_matmul(x, weight, group_sizes.astype(jnp.int32), weight_scale)


define("grouped_matmul(Tensor x, Tensor weight, Tensor group_sizes, Tensor? weight_scale) -> Tensor", _fake, _lower)
