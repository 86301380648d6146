"""``torch.ops.systolic.experts``: the mixture-of-experts feed-forward as a PyTorch operator."""

from __future__ import annotations

import torch

from ...compile.interpreter import register_custom

_library = torch.library.Library("systolic", "FRAGMENT")
_library.define("experts(Tensor x, Tensor w13, Tensor w2, Tensor ids, Tensor weights, str activation) -> Tensor")


@torch.library.register_fake("systolic::experts", lib=_library)
def _fake(x, *_):
    return torch.empty_like(x)


def _lower(x, w13, w2, ids, weights, activation):
    from . import experts

    return experts(x, w13, w2, ids, weights, activation=activation)


register_custom("systolic::experts", _lower)

_graphs: dict = {}


@torch.library.impl(_library, "experts", "PrivateUse1")
def _eager(x, w13, w2, ids, weights, activation):
    """Operator by operator: one small compiled graph for each signature."""
    from ...compile.trace import trace

    tensors = [t.contiguous() for t in (x, w13, w2, ids, weights)]
    key = (activation, *((tuple(t.shape), t.dtype, t.device) for t in tensors))
    if key not in _graphs:
        _graphs[key] = trace(lambda *given: torch.ops.systolic.experts(*given, activation), tensors, {}, "experts")
    return _graphs[key].call(tensors)[0]
