"""``torch.ops.systolic.decode_stack``: the kernel as a PyTorch operator; it returns the updated cache."""

from __future__ import annotations

import torch

from ..torch_library import define


def _fake(x, input_norm, qkv, q_norm, k_norm, out, post_norm, gate_up, down, kv_cache, block_table, seq_lens,
          cos_sin_cache, epsilon, scale):
    return torch.empty_like(x), torch.empty_like(kv_cache)


def _lower(x, input_norm, qkv, q_norm, k_norm, out, post_norm, gate_up, down, kv_cache, block_table, seq_lens,
           cos_sin_cache, epsilon, scale):
    import jax.numpy as jnp

    from . import decode_stack

    return decode_stack(x, input_norm, qkv, q_norm, k_norm, out, post_norm, gate_up, down, kv_cache,
                        block_table.astype(jnp.int32), seq_lens.astype(jnp.int32), cos_sin_cache, epsilon=epsilon,
                        scale=scale)  # fmt: skip


define(
    "decode_stack(Tensor x, Tensor input_norm, Tensor qkv, Tensor? q_norm, Tensor? k_norm, Tensor out, "
    "Tensor post_norm, Tensor gate_up, Tensor down, Tensor kv_cache, Tensor block_table, Tensor seq_lens, "
    "Tensor cos_sin_cache, float epsilon, float scale) -> (Tensor, Tensor)",
    _fake, _lower,
)  # fmt: skip
