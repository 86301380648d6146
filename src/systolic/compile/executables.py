"""From a JAX function to an executable: compiling, counting, persisting.

Every program of the device passes through :func:`build`: eager operators, compiled graphs, kernels.
It is therefore the one place that counts compilations, that can forbid them, and that keeps
programs on disk.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import pickle
import threading
import time
import warnings
from dataclasses import dataclass

from ..device import client
from . import store

log = logging.getLogger("systolic.compile")


class CompilationForbidden(RuntimeError):
    """A program had to be compiled inside :func:`forbid`."""


@dataclass
class Statistics:
    """Counts since the process started; times in seconds."""

    compilations: int = 0
    compile_seconds: float = 0.0
    trace_seconds: float = 0.0
    cache_hits: int = 0
    load_seconds: float = 0.0


statistics = Statistics()
_lock = threading.RLock()
_observers: list = []
_forbidden = threading.local()


@contextlib.contextmanager
def forbid(reason: str):
    """Raise :class:`CompilationForbidden` for any compilation by this thread inside the block."""
    previous = getattr(_forbidden, "reason", None)
    _forbidden.reason = reason
    try:
        yield
    finally:
        _forbidden.reason = previous


def on_compilation(observer) -> None:
    """Call ``observer(name, seconds)`` after each compilation (not for cache hits)."""
    _observers.append(observer)


def build(name: str, identity, make, index: int):
    """An executable for device ``index`` and the plan that goes with it.

    ``identity`` is any object whose ``repr`` says, together with versions and flags, what the program
    is; None keeps it out of the disk cache.  ``make()`` returns ``(function, input_specs,
    donated_positions, plan)`` and is only called when no stored program fits.  The function takes
    positional arrays and returns a tuple.
    """
    key = None
    if identity is not None:
        text = f"{client.fingerprint()}|{index}|{name}|{identity!r}"
        key = hashlib.sha256(text.encode()).hexdigest()
        started = time.perf_counter()
        found = _load(key, index)
        if found is not None:
            statistics.cache_hits += 1
            statistics.load_seconds += time.perf_counter() - started
            return found
    reason = getattr(_forbidden, "reason", None)
    if reason:
        raise CompilationForbidden(f"{name} would be compiled now, but {reason}")
    started = time.perf_counter()
    function, specs, donated, plan = make()
    compiled, trace_seconds, compile_seconds = _compile(function, specs, donated, index)
    with _lock:
        statistics.compilations += 1
        statistics.compile_seconds += compile_seconds
        statistics.trace_seconds += trace_seconds
    log.debug("compiled %s in %.0f ms (traced in %.0f ms)", name, compile_seconds * 1e3, trace_seconds * 1e3)
    for observer in _observers:
        observer(name, time.perf_counter() - started)
    if key is not None:
        _save(key, compiled, plan)
    return compiled, plan


def _compile(function, specs, donated, index):
    import jax

    started = time.perf_counter()
    sharding = client.sharding(index)
    inputs = [jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for shape, dtype in specs]
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        lowered = jax.jit(function, donate_argnums=tuple(donated), out_shardings=sharding).lower(*inputs)
        traced = time.perf_counter()
        compiled = lowered.compile()
    return compiled, traced - started, time.perf_counter() - traced


def _load(key, index):
    payload = store.read(key)
    if payload is None:
        return None
    if client.is_cpu():
        from ..kernels.cpu.build import load

        # A stored program names its custom calls: they must be registered, and LAPACK's set up, before it runs.
        load()
        _set_up_lapack()
    try:
        from jax.experimental import serialize_executable

        executable, in_tree, out_tree, plan = pickle.loads(payload)
        compiled = serialize_executable.deserialize_and_load(
            executable, in_tree, out_tree, execution_devices=[client.devices()[index]]
        )
        return compiled, plan
    except Exception as error:  # a torn or foreign file: never fatal, the program is compiled again
        log.warning("stored program %s cannot be used (%s); compiling it again", key[:12], error)
        store.discard(key)
        return None


@functools.cache
def _set_up_lapack() -> None:
    """Resolve LAPACK's functions, which JAX otherwise does while it lowers a program that uses them."""
    from jaxlib import lapack

    lapack._lapack.initialize()


def _save(key, compiled, plan) -> None:
    if not store.enabled():
        return
    from jax.experimental import serialize_executable

    try:
        executable, in_tree, out_tree = serialize_executable.serialize(compiled)
        store.write(key, pickle.dumps((executable, in_tree, out_tree, plan)))
    except Exception as error:
        log.warning("program could not be stored (%s); it will be compiled again next time", error)
