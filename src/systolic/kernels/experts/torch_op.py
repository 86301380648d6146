"""``torch.ops.systolic.experts``: the mixture-of-experts feed-forward as a PyTorch operator."""

from __future__ import annotations

import torch

from ..torch_library import define


def _fake(x, *_):
    return torch.empty_like(x)


def _lower(x, w13, w2, ids, weights, activation):
    from . import experts

    return experts(x, w13, w2, ids, weights, activation=activation)


define("experts(Tensor x, Tensor w13, Tensor w2, Tensor ids, Tensor weights, str activation) -> Tensor", _fake, _lower)
