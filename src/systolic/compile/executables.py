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


@dataclass(frozen=True)
class Built:
    """One program: its name and what it took.

    Times in seconds.  ``size`` is that of its file in bytes, None when it is not kept.  ``flops`` and ``bytes`` (read
    and written) are XLA's estimate for one run of the program as it was traced; our own kernels count nothing in it.
    They are None for a program from disk.
    """

    name: str
    from_disk: bool
    trace_seconds: float
    compile_seconds: float
    flops: float | None
    bytes: float | None
    size: int | None

    def __str__(self) -> str:
        if self.from_disk:
            how = f"loaded in {self.compile_seconds * 1e3:.0f} ms"
        else:
            how = f"traced in {self.trace_seconds * 1e3:.0f} ms, compiled in {self.compile_seconds * 1e3:.0f} ms"
        figures = ((self.flops, "flops"), (self.bytes, "bytes moved"), (self.size, "bytes stored"))
        return ", ".join([f"{self.name}: {how}", *(f"{value:.3g} {unit}" for value, unit in figures if value)])


statistics = Statistics()
_recordings: list[list[Built]] = []
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


@contextlib.contextmanager
def recording():
    """The programs that any thread compiles or loads inside the block, as a list of :class:`Built` that grows."""
    programs: list[Built] = []
    _recordings.append(programs)
    try:
        yield programs
    finally:
        _recordings.remove(programs)


def _cost(name, lowered) -> dict:
    try:
        return (_recordings and lowered.cost_analysis()) or {}
    except Exception as error:  # an estimate that a backend may not give
        log.debug("no cost estimate for %s: %s", name, error)
        return {}


def _record(built: Built) -> None:
    for programs in _recordings:
        programs.append(built)


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
            seconds = time.perf_counter() - started
            statistics.load_seconds += seconds
            log.debug("loaded %s in %.0f ms", name, seconds * 1e3)
            compiled, plan, size = found
            _record(Built(name, True, 0.0, seconds, None, None, size))
            return _entry_point(compiled), plan
    reason = getattr(_forbidden, "reason", None)
    if reason:
        raise CompilationForbidden(f"{name} would be compiled now, but {reason}")
    started = time.perf_counter()
    function, specs, donated, plan = make()
    compiled, cost, trace_seconds, compile_seconds = _compile(name, function, specs, donated, index)
    with _lock:
        statistics.compilations += 1
        statistics.compile_seconds += compile_seconds
        statistics.trace_seconds += trace_seconds
    log.debug("compiled %s in %.0f ms (traced in %.0f ms)", name, compile_seconds * 1e3, trace_seconds * 1e3)
    for observer in _observers:
        observer(name, time.perf_counter() - started)
    size = None if key is None else _save(key, compiled, plan, name)
    _record(Built(name, False, trace_seconds, compile_seconds, cost.get("flops"), cost.get("bytes accessed"), size))
    return _entry_point(compiled), plan


def _entry_point(compiled):
    """JAX's own C++ function of an executable: half a microsecond less a call than ``jax.stages.Compiled``."""
    return compiled._executable.create_cpp_call(compiled._params) or compiled


def _compile(name, function, specs, donated, index):
    import jax

    started = time.perf_counter()
    sharding = client.sharding(index)
    inputs = [jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for shape, dtype in specs]
    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        lowered = jax.jit(function, donate_argnums=tuple(donated), out_shardings=sharding).lower(*inputs)
        traced = time.perf_counter()
        compiled = lowered.compile()
    return compiled, _cost(name, lowered), traced - started, time.perf_counter() - traced


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
        return compiled, plan, len(payload)
    except Exception as error:  # a torn or foreign file: never fatal, the program is compiled again
        log.warning("stored program %s cannot be used (%s); compiling it again", key[:12], error)
        store.discard(key)
        return None


@functools.cache
def _set_up_lapack() -> None:
    """Resolve LAPACK's functions, which JAX otherwise does while it lowers a program that uses them."""
    from jaxlib import lapack

    lapack._lapack.initialize()


def _save(key, compiled, plan, name: str) -> int | None:
    """Store a program; returns its size in bytes."""
    if not store.enabled():
        return None
    from jax.experimental import serialize_executable

    try:
        executable, in_tree, out_tree = serialize_executable.serialize(compiled)
        payload = pickle.dumps((executable, in_tree, out_tree, plan))
        store.write(key, payload, name)
        return len(payload)
    except Exception as error:
        log.warning("program could not be stored (%s); it will be compiled again next time", error)
        return None
