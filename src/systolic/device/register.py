"""Registering the operator table with PyTorch's dispatcher."""

from __future__ import annotations

from .. import ops
from ..ops import registry
from . import _C

# Registered in C++ (csrc/minimal.cpp), or made of other operators in a way that must stay.
_KEEP = {"copy_", "clone", "detach", "alias", "lift", "lift_fresh", "_to_copy", "contiguous", "set_", "resize_",
         "empty", "empty_strided", "empty_like", "as_strided", "view", "_reshape_alias", "item"}  # fmt: skip


def register_operators() -> None:
    """Give every operator of the table, and every one with a PyTorch decomposition, a kernel."""
    from .decomposed import decomposable
    from .dynamic import KERNELS, register_dynamic

    ops.load()
    for name, overload, implicit, explicit, registered in _C.list_operators():
        if implicit or registered or name in _KEEP or (f"{name}.{overload}" if overload else name) in KERNELS:
            continue
        record = registry.find(name, overload)
        if record is not None:
            if record.view:
                continue
            _C.register_operator(f"aten::{name}", overload, record.static_scalars)
        elif not explicit and decomposable(name, overload):
            _C.register_operator(f"aten::{name}", overload, True)
    register_dynamic()
