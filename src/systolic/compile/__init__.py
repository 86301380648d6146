"""``torch.compile`` for the ``tpu`` device: graph to program, program to executable.

* :mod:`.backend` - the Dynamo backend ``"tpu"``, also the default for ``tpu`` tensors
* :mod:`.interpreter` - a graph of ATen operators run through the operator table
* :mod:`.repeats` - equal layers in a graph; :mod:`.stages` - a deep program as launches of one compiled layer
* :mod:`.executables` - compiling, counting, forbidding; the one door to XLA's compiler
* :mod:`.explain` - graph breaks, programs and their cost, for a function
* :mod:`.store` - programs on disk; :mod:`.stored` - their folder as a whole (`systolic cache`)
"""

from __future__ import annotations

from .executables import CompilationForbidden, forbid
from .explain import Explanation, explain

__all__ = ["CompilationForbidden", "Explanation", "explain", "forbid", "register_lazily"]


def register_lazily() -> None:
    """Make Dynamo know the backend and the device without importing Dynamo now."""
    import torch

    def load_interface():
        from .interface import TpuInterface

        return TpuInterface

    _when_imported("torch._dynamo.backends.registry", _register_backend)
    _when_imported("torch._dynamo.device_interface", lambda m: m.register_interface_for_device("tpu", load_interface()))
    original = torch._TorchCompileInductorWrapper.__call__

    def call(self, model, inputs):
        # Inductor cannot generate code for this device, so `torch.compile(m)` uses ours; other devices keep theirs.
        from .backend import graph_is_on_tpu, tpu_backend

        if graph_is_on_tpu(model, inputs):
            return tpu_backend(model, inputs)
        return original(self, model, inputs)

    torch._TorchCompileInductorWrapper.__call__ = call


def _register_backend(registry) -> None:
    def tpu(gm, example_inputs, **options):
        from .backend import tpu_backend

        return tpu_backend(gm, example_inputs, **options)

    registry.register_backend(tpu, name="tpu")


def _when_imported(name: str, action) -> None:
    """Run ``action(module)`` now if the module is loaded, else right after its first import."""
    import importlib.abc
    import importlib.util
    import sys

    if name in sys.modules:
        action(sys.modules[name])
        return

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, fullname, path=None, target=None):
            if fullname != name:
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(fullname)
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                action(module)

            spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Finder())
