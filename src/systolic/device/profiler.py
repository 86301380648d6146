"""``torch.tpu.profiler``: traces of XLA's own profiler, for TensorBoard and XProf.

``torch.profiler`` with ``ProfilerActivity.PrivateUse1`` shows launches by operator and waits for each one.
The traces of this module come from XLA: they show what runs inside a program and how launches overlap.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from . import _C

_running: str | None = None


def start(directory: str | os.PathLike) -> None:
    """Start an XPlane trace that :func:`stop` writes below ``directory/plugins/profile``.

    Raises:
        RuntimeError: if a trace is already running; XLA has one profiler for a process.
    """
    global _running
    if _running is not None:
        raise RuntimeError(f"a trace into {_running} is already running: call torch.tpu.profiler.stop() first")
    _C.ensure_initialized()
    import jax

    jax.profiler.start_trace(os.fspath(directory))
    _running = os.fspath(directory)


def stop() -> list[Path]:
    """Wait for launched work, end the trace and return the XPlane files written.

    Raises:
        RuntimeError: if no trace is running.
    """
    global _running
    if _running is None:
        raise RuntimeError("no trace is running: call torch.tpu.profiler.start(directory) first")
    import jax

    from .client import device_count
    from .launches import synchronize_device

    for index in range(device_count()):
        synchronize_device(index)
    directory, _running = _running, None
    jax.profiler.stop_trace()
    runs = sorted((Path(directory) / "plugins" / "profile").iterdir())
    return sorted(runs[-1].glob("*.xplane.pb")) if runs else []


@contextlib.contextmanager
def trace(directory: str | os.PathLike):
    """Trace the block: ``with torch.tpu.profiler.trace("logs"): step()``; view it with TensorBoard or XProf."""
    start(directory)
    try:
        yield
    finally:
        stop()


@contextlib.contextmanager
def annotate(name: str):
    """Name the block on the host's row of an XPlane trace."""
    import jax

    with jax.profiler.TraceAnnotation(name):
        yield
