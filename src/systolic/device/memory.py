"""Memory of a device: limits and a table of what is in use (part of :mod:`torch.tpu`)."""

from __future__ import annotations

from ..settings import shown_bytes
from . import _C

_ROWS = (("Allocated memory", "allocated_bytes", True), ("Allocations", "allocation", False))


def set_fraction(fraction: float, index: int) -> None:
    """Limit the storages of a device to ``fraction`` of its total memory.

    Raises:
        TypeError: if ``fraction`` is not a number.
        ValueError: if it is not in (0, 1].
    """
    if isinstance(fraction, bool) or not isinstance(fraction, (int, float)):
        raise TypeError(f"the memory fraction must be a number in (0, 1], got {fraction!r}")
    if not 0 < fraction <= 1:
        raise ValueError(f"the memory fraction must be in (0, 1], got {fraction}")
    _C.set_memory_limit(index, max(1, int(fraction * total(index))))


def get_fraction(index: int) -> float:
    """The part of a device's total memory that its storages may take."""
    return _C.memory_limit(index) / total(index)


def total(index: int) -> int:
    """Total memory of a device in bytes; on XLA:CPU that of the machine."""
    from .client import memory_info

    return memory_info(index)[1]


def _size(nbytes: int) -> str:
    return shown_bytes(nbytes, decimals=2)


def summary(index: int, stats: dict, abbreviated: bool) -> str:
    """The statistics of a device as a table: current, peak, allocated and freed since the last reset."""
    lines = [
        f"Memory of tpu:{index}: {_size(stats['allocated_bytes.all.current'])} in use, limit "
        f"{_size(_C.memory_limit(index))} of {_size(total(index))}; out of memory {stats['num_ooms']} times"
    ]
    if abbreviated:
        return lines[0]
    lines.append(f"{'':18}{'current':>14}{'peak':>14}{'allocated':>14}{'freed':>14}")
    for title, name, in_bytes in _ROWS:
        values = [stats[f"{name}.all.{column}"] for column in ("current", "peak", "allocated", "freed")]
        lines.append(f"{title:18}" + "".join(f"{_size(v) if in_bytes else v:>14}" for v in values))
    return "\n".join(lines)
