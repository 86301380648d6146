"""Moving modules: parameters that were shared stay shared, and uninitialized ones uninitialized.

``Module.to`` keeps a parameter's identity only where PyTorch can swap the data under it, which it refuses
between CPU and PrivateUse1 tensors.  It then makes one new parameter for every place, and a weight that is
tied in two places would come apart, and the parameter of a lazy module would be a plain empty one.
"""

from __future__ import annotations

import threading

import torch
from torch.nn import Module
from torch.nn.parameter import UninitializedParameter

_inside = threading.local()


def install() -> None:
    """Make ``Module._apply``, which is behind ``to``, ``cpu`` and ``tpu``, keep what parameters are."""
    original = Module._apply

    def apply(self, fn, recurse=True):
        if getattr(_inside, "yes", False):
            return original(self, fn, recurse)
        shared = _shared_parameters(self) if recurse else []
        lazy = _uninitialized_parameters(self) if recurse else []
        _inside.yes = True
        try:
            result = original(self, fn, recurse)
        finally:
            _inside.yes = False
        for module, name in lazy:
            moved = module._parameters[name]
            if not isinstance(moved, UninitializedParameter):
                kept = UninitializedParameter(moved.requires_grad, moved.device, moved.dtype)
                module._parameters[name] = kept
        for places in shared:
            module, name = places[0]
            for other, other_name in places[1:]:
                other._parameters[other_name] = module._parameters[name]
        return result

    Module._apply = apply


def _uninitialized_parameters(root: Module) -> list[tuple[Module, str]]:
    """The (module, name) places of parameters whose shapes the first input will tell."""
    return [
        (module, name) for module in root.modules() for name, parameter in module._parameters.items()
        if isinstance(parameter, UninitializedParameter)
    ]  # fmt: skip


def _shared_parameters(root: Module) -> list[list[tuple[Module, str]]]:
    """The (module, name) places of each parameter that has more than one."""
    places: dict[int, list[tuple[Module, str]]] = {}
    for module in root.modules():
        for name, parameter in module._parameters.items():
            if isinstance(parameter, torch.Tensor):
                places.setdefault(id(parameter), []).append((module, name))
    return [found for found in places.values() if len(found) > 1]
