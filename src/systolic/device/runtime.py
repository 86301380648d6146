"""Everything the C++ core calls by name."""

from __future__ import annotations

import warnings

from .build import build_operator  # noqa: F401
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
from .transfers import (  # noqa: F401
    check_dtype,
    from_host,
    move_to,
    number_array,
    random_state,
    read_bytes,
    resized_bytes,
)

_initialized = False


def initialize() -> None:
    """Start the XLA client and register the operator table with PyTorch's dispatcher."""
    global _initialized
    if _initialized:
        return
    _initialized = True
    from .register import register_operators

    register_operators()


def warn_fallback(name: str) -> None:
    """Called at the first CPU fallback of an operator."""
    warnings.warn(
        f"{name} is not lowered for tpu and runs on the CPU: its inputs are copied to the host and its results "
        "back. torch.tpu.fallbacks() counts such calls.",
        stacklevel=2,
    )
