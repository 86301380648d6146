"""``torch.tpu``: the device module, named after ``torch.accelerator`` and ``torch.cuda``."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import dataclass

import torch

from . import _C, profiler  # noqa: F401  torch.tpu.profiler

__systolic__ = True

Stream = torch.Stream
Event = torch.Event
OutOfMemoryError = torch.OutOfMemoryError


@dataclass(frozen=True)
class DeviceProperties:
    """Name, platform ("tpu" or "cpu") and total memory in bytes of one device."""

    name: str
    platform: str
    total_memory: int


def is_available() -> bool:
    """True: with no TPU attached the device is XLA on the CPU (see :func:`get_device_name`)."""
    return True


def is_initialized() -> bool:
    """True once the XLA client was started."""
    runtime = sys.modules.get("systolic.device.runtime")  # not imported here: it loads jax
    return runtime is not None and runtime._state == "done"


def __getattr__(name: str):
    # torch.utils.checkpoint keeps the generator's state only if the module says that it is initialized.
    if name == "_initialized":
        return is_initialized()
    raise AttributeError(f"module 'torch.tpu' has no attribute {name!r}")


def init() -> None:
    """Start the XLA client now instead of at the first tensor."""
    _C.ensure_initialized()


def device_count() -> int:
    """Number of ``tpu`` devices of this process."""
    from .client import device_count as count

    return count()


def current_device() -> int:
    """Index of the current device of this thread."""
    return _C.current_device()


def _index(device) -> int:
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        index = device
    else:
        device = torch.device(device)
        if device.type != "tpu":
            raise ValueError(f"expected a tpu device, got {device}; use 'tpu' or 'tpu:N'")
        index = _C.current_device() if device.index is None else device.index
    if not 0 <= index < device_count():
        raise RuntimeError(
            f"tpu:{index} does not exist: this process has {device_count()} tpu device(s). On a machine without a "
            "TPU, XLA_FLAGS=--xla_force_host_platform_device_count=N gives N."
        )
    return index


def set_device(device) -> None:
    """Make ``device`` (int, str or torch.device) the current one of this thread."""
    _C.exchange_device(_index(device))


@contextlib.contextmanager
def device(device):
    """Make ``device`` the current one inside the block."""
    previous = _C.exchange_device(_index(device))
    try:
        yield
    finally:
        _C.exchange_device(previous)


def get_device_name(device=None) -> str:
    """Device kind, such as "TPU v6 lite"; "XLA on the CPU" when no TPU is attached."""
    from .client import kind

    _index(device)
    return kind()


def get_device_properties(device=None) -> DeviceProperties:
    """Name, platform and memory of a device."""
    from . import client

    index = _index(device)
    return DeviceProperties(client.kind(), client.devices()[index].platform, client.memory_info(index)[1])


def get_device_capability(device=None) -> None:
    """None: TPUs have no CUDA-like capability number."""
    _index(device)


def is_bf16_supported() -> bool:
    """True on every platform (slow for small batches on XLA:CPU)."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes that ``torch.autocast("tpu")`` accepts."""
    return [torch.bfloat16, torch.float16]


def synchronize(device=None) -> None:
    """Wait until all work launched on a device has finished."""
    from .launches import synchronize_device

    if _C.forked():
        _C.ensure_initialized()  # says why this process has no device
    synchronize_device(_index(device))


def current_stream(device=None) -> torch.Stream:
    """The current stream of a device."""
    return torch.accelerator.current_stream(_index(device))


def default_stream(device=None) -> torch.Stream:
    """Stream 0 of a device."""
    return torch.Stream(stream_id=0, device_index=_index(device), device_type=20)


def set_stream(stream) -> None:
    """Make a stream the current one of its device."""
    torch.accelerator.set_stream(stream)


def stream(stream):
    """Context manager that makes ``stream`` current; None changes nothing."""
    return contextlib.nullcontext() if stream is None else stream


def manual_seed(seed: int) -> None:
    """Seed the default generator of the current device."""
    _C.default_generator(_C.current_device()).manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the default generators of all devices."""
    for index in range(64 if not is_initialized() else device_count()):
        _C.default_generator(index).manual_seed(int(seed))


def seed() -> None:
    """Seed the current device's generator from the operating system."""
    _C.default_generator(_C.current_device()).seed()


def initial_seed() -> int:
    """Seed of the current device's default generator."""
    return _C.default_generator(_C.current_device()).initial_seed()


def get_rng_state(device=None) -> torch.Tensor:
    """State of a default generator: CPU uint8 tensor of 16 bytes (seed, offset)."""
    return _C.default_generator(_index(device)).get_state()


def set_rng_state(state: torch.Tensor, device=None) -> None:
    """Restore what :func:`get_rng_state` returned."""
    _C.default_generator(_index(device)).set_state(state)


def _is_in_bad_fork() -> bool:
    """Whether this process was forked after the device was used, and so cannot use it."""
    return _C.forked()


def empty_cache() -> None:
    """Nothing to release: buffers are freed when their tensors die."""


def memory_stats(device=None) -> dict:
    """Counters of a device, named as by ``torch.cuda.memory_stats``: ``allocated_bytes.all.peak`` and so on."""
    return torch.accelerator.memory_stats(_index(device))


def memory_allocated(device=None) -> int:
    """Bytes in live storages."""
    return torch.accelerator.memory_allocated(_index(device))


def max_memory_allocated(device=None) -> int:
    """Largest number of bytes in live storages since the last reset."""
    return torch.accelerator.max_memory_allocated(_index(device))


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def reset_peak_memory_stats(device=None) -> None:
    """Start a new peak measurement."""
    torch.accelerator.reset_peak_memory_stats(_index(device))


def reset_accumulated_memory_stats(device=None) -> None:
    """Start new sums of allocated and freed bytes."""
    torch.accelerator.reset_accumulated_memory_stats(_index(device))


def memory_summary(device=None, abbreviated: bool = False) -> str:
    """A table of what is in use, its peak and the limit; one line if ``abbreviated``."""
    from . import memory

    index = _index(device)
    return memory.summary(index, memory_stats(index), abbreviated)


def set_per_process_memory_fraction(fraction: float, device=None) -> None:
    """Let storages take at most ``fraction``, in (0, 1], of a device's memory (of the machine's on XLA:CPU).

    Beyond it ``torch.OutOfMemoryError`` is raised.  Scratch memory inside a running program does not count.
    """
    from . import memory

    memory.set_fraction(fraction, _index(device))


def get_per_process_memory_fraction(device=None) -> float:
    """What :func:`set_per_process_memory_fraction` set; 1.0 at first."""
    from . import memory

    return memory.get_fraction(_index(device))


def mem_get_info(device=None) -> tuple[int, int]:
    """(free, total) bytes of a device."""
    from .client import memory_info

    return memory_info(_index(device))


def debug():
    """Context manager: check indices, class labels and integer divisors, and run operators one by one.

    Without it an index out of bounds is clamped when read and dropped when written, and an integer divided
    by zero is -1 (see :mod:`systolic.device.debug`).
    """
    from .debug import DebugMode

    return DebugMode()


def fused():
    """Context manager: record operators and run them as one program when a value is needed.

    See :mod:`systolic.device.fused`.
    """
    from .fused import fused

    return fused()


def to_jax(tensor: torch.Tensor):
    """A ``jax.Array`` with a tensor's values (see :func:`systolic.device.interchange.to_jax`)."""
    from .interchange import to_jax as convert

    return convert(tensor)


def from_jax(array) -> torch.Tensor:
    """A tensor with a ``jax.Array``'s values (see :func:`systolic.device.interchange.from_jax`)."""
    from .interchange import from_jax as convert

    return convert(array)


def fallbacks() -> dict[str, int]:
    """Operators that ran on the CPU because they are not lowered, with the number of calls."""
    return dict(_C.fallback_counts())


def compilations() -> int:
    """Programs compiled by this process (programs loaded from disk do not count)."""
    from ..compile.executables import statistics

    return statistics.compilations
