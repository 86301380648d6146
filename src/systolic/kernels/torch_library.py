"""Kernels as PyTorch operators on `tpu` tensors: schema, fake form, lowering, and the eager form made of them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ..compile.interpreter import register_custom

_library = torch.library.Library("systolic", "FRAGMENT")


def define(schema: str, fake: Callable, lower: Callable) -> None:
    """Define ``torch.ops.systolic.<name>``, functional and without gradients.

    Args:
        schema: ``name(Tensor a, ...) -> ...``.
        fake: result shapes and dtypes from fake tensors, with the arguments in order.
        lower: the operator on JAX arrays, with the arguments by name.
    """
    name = schema.partition("(")[0]
    _library.define(schema)
    torch.library.register_fake(f"systolic::{name}", fake, lib=_library)
    register_custom(f"systolic::{name}", lower)
    _library.impl(name, _eager(name), "PrivateUse1")


def _eager(name: str) -> Callable:
    """Operator by operator: one small compiled graph for each signature."""
    graphs: dict = {}

    def call(*arguments):
        from ..compile.trace import trace
        from .selection import forced

        packet = getattr(torch.ops.systolic, name)
        at = [i for i, a in enumerate(arguments) if isinstance(a, torch.Tensor)]
        tensors = [arguments[i].contiguous() for i in at]
        others = tuple(None if i in at else a for i, a in enumerate(arguments))
        key = (forced(), others, *((tuple(t.shape), t.dtype, t.device) for t in tensors))
        if key not in graphs:

            def function(*given):
                whole = list(others)
                for i, tensor in zip(at, given):
                    whole[i] = tensor
                return packet(*whole)

            graphs[key] = trace(function, tensors, {}, name)
        results = graphs[key].call(tensors)
        return results[0] if len(packet.default._schema.returns) == 1 else tuple(results)

    return call
