"""Moving modules: parameters that were shared stay shared.

``Module.to`` keeps a parameter's identity only where PyTorch can swap the data under it, which it refuses
between CPU and PrivateUse1 tensors.  It then makes one new parameter for every place, and a weight that is
tied in two places would come apart.
"""

from __future__ import annotations

import threading

import torch
from torch.nn import Module

_inside = threading.local()


def install() -> None:
    """Make ``Module._apply``, which is behind ``to``, ``cpu`` and ``tpu``, keep shared parameters shared."""
    original = Module._apply

    def apply(self, fn, recurse=True):
        if getattr(_inside, "yes", False):
            return original(self, fn, recurse)
        shared = _shared_parameters(self) if recurse else []
        _inside.yes = True
        try:
            result = original(self, fn, recurse)
        finally:
            _inside.yes = False
        for places in shared:
            module, name = places[0]
            for other, other_name in places[1:]:
                other._parameters[other_name] = module._parameters[name]
        return result

    Module._apply = apply


def _shared_parameters(root: Module) -> list[list[tuple[Module, str]]]:
    """The (module, name) places of each parameter that has more than one."""
    places: dict[int, list[tuple[Module, str]]] = {}
    for module in root.modules():
        for name, parameter in module._parameters.items():
            if isinstance(parameter, torch.Tensor):
                places.setdefault(id(parameter), []).append((module, name))
    return [found for found in places.values() if len(found) > 1]
