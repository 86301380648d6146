"""Upstream's small layers as single operators of a traced graph (fewer nodes: faster trace and compile).

Outside a trace each falls through to upstream's own code.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import is_fake
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

from ..kernels.decoder import torch_op  # noqa: F401  defines the operators

_norm = RMSNorm.forward_native
_rotary = RotaryEmbedding.forward_static
_silu = SiluAndMul.forward_native


def norm(self, x, residual=None):
    """RMSNorm.forward_native"""
    if not is_fake(x) or self.variance_size_override is not None:
        return _norm(self, x, residual)
    weight = self.weight if self.has_weight else None
    if residual is None:
        return torch.ops.systolic.rms_norm(x, weight, self.variance_epsilon)
    return torch.ops.systolic.add_rms_norm(x, residual, weight, self.variance_epsilon)


def rotary(positions, query, key, head_size, rotary_dim, cos_sin_cache, is_neox_style):
    """RotaryEmbedding.forward_static"""
    if not is_fake(query) or query.dim() != 2 or positions.dim() != 1:
        return _rotary(positions, query, key, head_size, rotary_dim, cos_sin_cache, is_neox_style)

    def turn(x):
        return torch.ops.systolic.rotary(positions, x, cos_sin_cache, head_size, rotary_dim, is_neox_style)

    return turn(query), None if key is None else turn(key)


def silu_and_mul(x):
    """SiluAndMul.forward_native"""
    return torch.ops.systolic.silu_and_mul(x) if is_fake(x) else _silu(x)


def apply() -> None:
    """Install the three forms."""
    RMSNorm.forward_native = norm
    RotaryEmbedding.forward_static = staticmethod(rotary)
    SiluAndMul.forward_native = staticmethod(silu_and_mul)
