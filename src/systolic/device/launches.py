"""Launched work: events, streams and synchronisation.

XLA orders programs by their data.  What is kept here is one result of each launch that may still
run: waiting for these results is waiting for the work, also for work whose results nobody kept. Such a
result's memory is not free before its program has run anyway; the next launch lets go of it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

from . import _C

_pending: dict[int, deque] = {}


def note_launch(array, index: int) -> None:
    """Remember a result of a program that was just started on device ``index``."""
    queue = _pending.get(index)
    if queue is None:
        queue = _pending[index] = deque()
    while queue:
        if not _ready(queue[0]):
            break
        queue.popleft()
    if not _ready(array):
        queue.append(array)


def _ready(array) -> bool:
    # A donated array was consumed by a later launch, which is in the queue itself.
    return array.is_deleted() or array.is_ready()


def _wait(arrays) -> None:
    for array in arrays:
        try:
            array.block_until_ready()
        except RuntimeError:
            if not array.is_deleted():
                raise


def _unready(index: int) -> list:
    return [array for array in list(_pending.get(index, ())) if not _ready(array)]


@dataclass
class Recorded:
    """What had been launched on a device when an event was recorded."""

    index: int
    work: list
    recorded_at: float
    finished_at: float | None = field(default=None)

    def done(self) -> bool:
        self.work = [a for a in self.work if not _ready(a)]
        if not self.work and self.finished_at is None:
            self.finished_at = time.perf_counter()
        return not self.work

    def wait(self) -> None:
        _wait(self.work)
        self.done()


def record_event(index: int) -> Recorded:
    _C.flush(index)  # what fused mode recorded comes before the event
    recorded = Recorded(index, _unready(index), time.perf_counter())
    if not recorded.work:
        recorded.finished_at = recorded.recorded_at
    return recorded


def query_event(recorded: Recorded) -> bool:
    return recorded.done()


def synchronize_event(recorded: Recorded) -> None:
    recorded.wait()


def elapsed_ms(first: Recorded, second: Recorded) -> float:
    """Milliseconds between the completion of the work of two events, seen from the host."""
    first.wait()
    second.wait()
    return (second.finished_at - first.finished_at) * 1e3


def query_device(index: int) -> bool:
    _C.flush(index)
    return not _unready(index)


def synchronize_device(index: int) -> None:
    _C.flush(index)
    _wait(_unready(index))
    _pending.pop(index, None)
