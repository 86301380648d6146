"""Everything the C++ core calls by name."""

from __future__ import annotations

import threading
import types
import warnings

from .build import build_operator  # noqa: F401
from .fused import build_group, is_internal  # noqa: F401
from .client import device_count, memory_info  # noqa: F401
from .dynamic import index_by_mask  # noqa: F401
from .launches import (  # noqa: F401
    elapsed_ms,
    note_launch,
    query_device,
    query_event,
    record_event,
    synchronize_device,
    synchronize_event,
)
from .outside_dynamo import never_trace
from .transfers import (  # noqa: F401
    check_dtype,
    from_host,
    move_to,
    number_array,
    random_state,
    read_bytes,
    resized_bytes,
)

_state = "new"
# Other threads wait until the operators are registered.
_lock = threading.RLock()


def initialize() -> None:
    """Start the XLA client and register the operator table with PyTorch's dispatcher."""
    global _state
    with _lock:
        if _state != "new":  # "running": an operator that this very thread needs for it
            return
        _state = "running"
        try:
            _initialize()
        except BaseException:
            _state = "new"
            raise
        _state = "done"


def _initialize() -> None:
    from jax._src.interpreters.pxla import MeshExecutable
    from jax.stages import Compiled

    from .register import register_operators

    never_trace(Compiled.__call__)
    never_trace(MeshExecutable.create_cpp_call)
    for function in list(globals().values()):
        if isinstance(function, types.FunctionType):
            never_trace(function)
    register_operators()


def warn_fallback(name: str) -> None:
    """Called at the first CPU fallback of an operator."""
    warnings.warn(
        f"{name} is not lowered for tpu and runs on the CPU: its inputs are copied to the host and its results "
        "back. torch.tpu.fallbacks() counts such calls.",
        stacklevel=2,
    )
