"""The ``tpu`` device of PyTorch.

Public names live in ``torch.tpu`` (see :mod:`systolic.device.tpu`).  PyTorch calls :func:`autoload`
through the ``torch.backends`` entry point, so ``import torch`` is enough.  Nothing here imports JAX:
that waits for the first tensor on the device.
"""

from __future__ import annotations


def autoload() -> None:
    """Register the device with PyTorch.  Calling it again does nothing."""
    import sys

    import torch

    if "tpu" in torch.__dict__ and getattr(torch.tpu, "__systolic__", False):
        return
    from . import _C  # noqa: F401  registers allocator, guard, hooks and kernels

    torch.utils.rename_privateuse1_backend("tpu")
    from . import tpu

    torch._register_device_module("tpu", tpu)
    sys.modules.setdefault("torch.tpu", tpu)
    torch.utils.generate_methods_for_privateuse1_backend(
        for_tensor=True, for_module=True, for_packed_sequence=True, for_storage=False
    )
    from ..compile import register_lazily
    from . import interchange, modules, printing, shape_functions
    from .outside_dynamo import never_trace_module

    never_trace_module(tpu)
    printing.install()
    shape_functions.install()
    modules.install()
    interchange.install()
    register_lazily()
