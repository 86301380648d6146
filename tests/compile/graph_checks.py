"""What the tests of compiled graphs share: a comparison with the CPU, and counts of graphs and programs."""

from __future__ import annotations

import warnings

import torch
from torch.utils._pytree import tree_leaves, tree_map

from systolic.compile.executables import statistics


def programs() -> int:
    """Programs made so far, compiled or loaded from disk."""
    return statistics.compilations + statistics.cache_hits


def graphs() -> int:
    """Graphs that Dynamo handed to the backend so far.  (Its own counter has those of eager ``torch.cond`` too.)"""
    return statistics.graphs


def to_tpu(values):
    """The tensors of a tree as leaves on the device, with the same ``requires_grad``."""
    return tree_map(
        lambda v: v.detach().tpu().requires_grad_(v.requires_grad) if isinstance(v, torch.Tensor) else v, values
    )


def leaf(*shape):
    """Normal numbers that want a gradient."""
    return torch.randn(*shape, requires_grad=True)


def check(function, *hosts, compiled=None, whole=True, rtol=None, atol=None, **options):
    """The compiled function on the device equals the plain one on the CPU, and so do gradients where inputs want them.

    With ``whole`` the function must be one graph, and no graph may be cut into several programs.
    """
    compiled = compiled or torch.compile(function, backend="tpu", fullgraph=whole, **options)
    devices = to_tpu(hosts)
    with warnings.catch_warnings():
        if whole:
            warnings.filterwarnings("error", message="a compiled graph is cut")
        got, want = tree_leaves(compiled(*devices)), tree_leaves(function(*hosts))
        assert len(got) == len(want)
        for a, b in zip(got, want):
            if isinstance(b, torch.Tensor):
                assert a.device.type == "tpu"
                torch.testing.assert_close(a.detach().cpu(), b.detach(), rtol=rtol, atol=atol)
            else:
                assert a == b
        if any(isinstance(h, torch.Tensor) and h.requires_grad for h in tree_leaves(hosts)):
            for results in (got, want):  # squares, so that gradients depend on the results
                sum(t.square().sum() for t in results if isinstance(t, torch.Tensor) and t.requires_grad).backward()
            for d, h in zip(tree_leaves(devices), tree_leaves(hosts)):
                if isinstance(h, torch.Tensor) and h.requires_grad:
                    torch.testing.assert_close(d.grad.cpu(), h.grad, rtol=rtol, atol=atol)
                    h.grad = None
    return compiled
