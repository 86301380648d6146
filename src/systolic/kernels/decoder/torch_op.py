"""``torch.ops.systolic.{rms_norm, add_rms_norm, rotary, silu_and_mul}``: used in traced graphs.

They have a fake and a graph implementation only; eager code runs the ordinary PyTorch form.
"""

from __future__ import annotations

import torch

from ...compile.interpreter import register_custom

_library = torch.library.Library("systolic", "FRAGMENT")
_library.define("rms_norm(Tensor x, Tensor? weight, float epsilon) -> Tensor")
_library.define("add_rms_norm(Tensor x, Tensor residual, Tensor? weight, float epsilon) -> (Tensor, Tensor)")
_library.define(
    "rotary(Tensor positions, Tensor x, Tensor cos_sin_cache, int head_size, int rotary_dim, bool neox) -> Tensor"
)
_library.define("silu_and_mul(Tensor x) -> Tensor")


@torch.library.register_fake("systolic::rms_norm", lib=_library)
def _(x, weight, epsilon):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.register_fake("systolic::add_rms_norm", lib=_library)
def _(x, residual, weight, epsilon):
    return (torch.empty_like(x, memory_format=torch.contiguous_format),
            torch.empty_like(x, memory_format=torch.contiguous_format))  # fmt: skip


@torch.library.register_fake("systolic::rotary", lib=_library)
def _(positions, x, cos_sin_cache, head_size, rotary_dim, neox):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@torch.library.register_fake("systolic::silu_and_mul", lib=_library)
def _(x):
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)


def _lowered(name):
    def lower(**arguments):
        from .. import decoder

        return getattr(decoder, name)(**arguments)

    return lower


def _lower_norm(x, weight=None, epsilon=1e-6):
    return _lowered("rms_norm")(x=x, weight=weight, epsilon=epsilon)


def _lower_add_norm(x, residual, weight=None, epsilon=1e-6):
    return _lowered("add_rms_norm")(x=x, residual=residual, weight=weight, epsilon=epsilon)


register_custom("systolic::rms_norm", _lower_norm)
register_custom("systolic::add_rms_norm", _lower_add_norm)
register_custom("systolic::rotary", _lowered("rotary"))
register_custom("systolic::silu_and_mul", _lowered("silu_and_mul"))
