"""Registering the operator table with PyTorch's dispatcher."""

from __future__ import annotations

import torch

from .. import ops
from ..ops import registry
from . import _C

# Registered in C++ (csrc/minimal.cpp), or made of other operators in a way that must stay.  PyTorch makes zeros in
# the likeness of fake tensors, which have no storage that a program could take.
_KEEP = {"copy_", "clone", "detach", "alias", "lift", "lift_fresh", "_to_copy", "contiguous", "set_", "resize_",
         "empty", "empty_strided", "empty_like", "zeros_like", "as_strided", "view",
         "_unsafe_view", "_reshape_alias", "item",
         # PyTorch has no meta kernel that tells the sizes of these.
         "_batch_norm_with_update.out", "_native_batch_norm_legit.out",
         "_native_batch_norm_legit.no_stats_out"}  # fmt: skip


def _several_lists(name: str, overload: str) -> bool:
    """Functional and ``out=`` forms of list operators that PyTorch makes of the in-place ones."""
    if not name.startswith(("_foreach_", "_fused_", "_amp_")):
        return False
    schema = getattr(getattr(torch.ops.aten, name), overload or "default")._schema
    returned = [str(r.type) == "List[Tensor]" for r in schema.returns]
    written = [str(a.type) == "List[Tensor]" for a in schema.arguments if a.is_out]
    return any(written) or (any(returned) and len(returned) > 1)


# The CPU has kernels of its own for these, for precision; elsewhere PyTorch makes them of other operators.
_OWN_KERNELS = {"silu_backward", "mish_backward", "native_channel_shuffle"}


def register_operators() -> None:
    """Give every operator of the table, and every one with a PyTorch decomposition, a kernel."""
    from .decomposed import decomposable
    from .dynamic import KERNELS, register_dynamic
    from .meta_kernels import register_meta

    ops.load()
    for name, overload, implicit, explicit, registered in _C.list_operators():
        qualified = f"{name}.{overload}" if overload else name
        composite = implicit and qualified not in _OWN_KERNELS
        if composite or registered or name in _KEEP or qualified in _KEEP or qualified in KERNELS:
            continue
        record = registry.find(name, overload)
        if record is not None:
            if record.view or _several_lists(name, overload):
                continue
            _C.register_operator(f"aten::{name}", overload, record.static_scalars)
        elif not explicit and decomposable(name, overload):
            _C.register_operator(f"aten::{name}", overload, True)
    register_dynamic()
    register_meta()
