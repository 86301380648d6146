"""``torch.compile`` for the ``tpu`` device: graph to program, program to executable.

* :mod:`.backend` - the Dynamo backend ``"tpu"``, also the default for ``tpu`` tensors
* :mod:`.interpreter` - a graph of ATen operators run through the operator table
* :mod:`.repeats` - equal layers in a graph; :mod:`.stages`, :mod:`.chain` - a deep program as launches of one layer
* :mod:`.executables` - compiling, counting, forbidding; the one door to XLA's compiler
* :mod:`.higher_order` - branches, loops and attention with functions inside a graph
* :mod:`.explain` - graph breaks, programs and their cost, for a function; :mod:`.changes` - why it compiled again
* :mod:`.store` - programs on disk; :mod:`.stored` - their folder as a whole (`systolic cache`)
"""

from __future__ import annotations

import warnings

from .changes import Recompilation, recompilations
from .executables import CompilationForbidden, forbid
from .explain import Explanation, explain

__all__ = [
    "CompilationForbidden", "Explanation", "Recompilation", "explain", "forbid", "recompilations", "register_lazily",
]  # fmt: skip


def register_lazily() -> None:
    """Make Dynamo know the backend and the device without importing Dynamo now."""
    import torch

    def load_interface():
        from .interface import TpuInterface

        return TpuInterface

    _when_imported("torch._dynamo.backends.registry", _register_backend)
    _when_imported("torch._dynamo.device_interface", lambda m: m.register_interface_for_device("tpu", load_interface()))
    _when_imported("torch.nn.attention.flex_attention", _admit_flex_attention)
    _let_autocast_reach_inside()
    original = torch._TorchCompileInductorWrapper.__call__

    def call(self, model, inputs):
        # Inductor cannot generate code for this device, so `torch.compile(m)` uses ours; other devices keep theirs.
        from .backend import graph_is_on_tpu, tpu_backend

        if graph_is_on_tpu(model, inputs):
            if self.config:
                warnings.warn(
                    f"options and modes of Inductor have no effect on tpu: {', '.join(sorted(self.config))}; leave them "
                    'out, or name backend="tpu" and its own options',
                    stacklevel=2,
                )
            return tpu_backend(model, inputs)
        return original(self, model, inputs)

    torch._TorchCompileInductorWrapper.__call__ = call


def _register_backend(registry) -> None:
    def tpu(gm, example_inputs, **options):
        from .backend import tpu_backend

        return tpu_backend(gm, example_inputs, **options)

    registry.register_backend(tpu, name="tpu")


def _admit_flex_attention(module) -> None:
    """PyTorch checks the device against a list of those that its own kernels know."""
    import torch

    check = module._validate_device

    def _validate_device(query, key, value):
        if query.device.type != "tpu":
            check(query, key, value)

    module._validate_device = _validate_device

    @module.flex_attention_hop.py_impl(torch._C.DispatchKey.AutocastPrivateUse1)
    def under_autocast(query, key, value, *arguments):
        """As PyTorch does for its own devices: the operands are cast, what the functions compute is not."""
        dtype = torch.get_autocast_dtype("tpu")
        operands = [torch.amp.autocast_mode._cast(t, "tpu", dtype) for t in (query, key, value)]
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return module.flex_attention_hop(*operands, *arguments)


def _let_autocast_reach_inside() -> None:
    """Operators that take graphs leave autocast to what is in these; PyTorch says so for its own devices only."""
    import torch

    key = torch._C.DispatchKey.AutocastPrivateUse1
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(key)
    for operation in torch._ops._higher_order_ops.values():
        operation.fallthrough(key)


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
