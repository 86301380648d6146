"""``torch.ops.systolic.quantized_matmul``: the kernel as a PyTorch operator."""

from __future__ import annotations

import torch

from ..torch_library import define


def _fake(x, weight, weight_scale, x_scale, out_dtype):
    return x.new_empty(x.shape[0], weight.shape[0], dtype=out_dtype)


def _lower(x, weight, weight_scale, x_scale=None, out_dtype=None):
    """A uint8 weight [N, K / 2] holds two 4-bit integers a byte, the low half for the even column."""
    import jax
    import jax.numpy as jnp

    from . import quantized_matmul

    if weight.dtype == jnp.uint8:
        weight = jax.lax.bitcast_convert_type(weight, jnp.int4).reshape(weight.shape[0], 2 * weight.shape[1])
    name = str(out_dtype).removeprefix("torch.")
    return quantized_matmul(x, weight, weight_scale, x_scale, out_dtype=name)


define(
    "quantized_matmul(Tensor x, Tensor weight, Tensor weight_scale, Tensor? x_scale, ScalarType out_dtype) -> Tensor",
    _fake, _lower,
)  # fmt: skip
