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
from collections import Counter
from dataclasses import dataclass

from ..device import client
from . import store
from .chain import Chain, Wiring

log = logging.getLogger("systolic.compile")


class CompilationForbidden(RuntimeError):
    """A program had to be compiled inside :func:`forbid`."""


@dataclass
class Statistics:
    """Counts since the process started; times in seconds.  ``graphs`` are those that Dynamo handed over."""

    graphs: int = 0
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
    They are None for a program from disk.  ``changed``: what differs from the closest earlier program of the same
    graph or operator, empty for its first.
    """

    name: str
    from_disk: bool
    trace_seconds: float
    compile_seconds: float
    flops: float | None
    bytes: float | None
    size: int | None
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.from_disk:
            how = f"loaded in {self.compile_seconds * 1e3:.0f} ms"
        else:
            how = f"traced in {self.trace_seconds * 1e3:.0f} ms, compiled in {self.compile_seconds * 1e3:.0f} ms"
        figures = ((self.flops, "flops"), (self.bytes, "bytes moved"), (self.size, "bytes stored"))
        parts = [f"{self.name}: {how}", *(f"{value:.3g} {unit}" for value, unit in figures if value)]
        return ", ".join(parts) + "".join(f"\n    changed: {line}" for line in self.changed)


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


def _cost(name, lowered, wiring) -> dict[str, float]:
    """XLA's estimate for one run of all parts of a program, by figure; empty where nobody asks."""
    total: Counter = Counter()
    try:
        costs = [part.cost_analysis() or {} for part in lowered] if _recordings else []
        for stage in (run[0] for run in wiring.runs) if wiring and costs else range(len(costs)):
            total.update(costs[stage])
    except Exception as error:  # an estimate that a backend may not give
        log.debug("no cost estimate for %s: %s", name, error)
    return total


def _record(built: Built) -> None:
    for programs in _recordings:
        programs.append(built)


def build(name: str, identity, make, index: int, changed: tuple[str, ...] = (), apart: bool = False):
    """An executable for device ``index`` and the plan that goes with it.

    ``name`` is for people.  ``identity`` is any object whose ``repr`` says, together with versions and flags, what
    the program is; None keeps it out of the disk cache.  ``make()`` returns ``(function, input_specs,
    donated_positions, plan)`` and is only called when no stored program fits.  The function takes
    positional arrays and returns a tuple.  ``changed``: see :class:`Built`.  With ``apart``, equal layers of a deep
    program are compiled once (:mod:`.stages`).
    """
    key = None
    if identity is not None:
        from ..kernels.selection import forced

        text = f"{client.fingerprint()}|{forced()}|{index}|{apart}|{identity!r}"
        key = hashlib.sha256(text.encode()).hexdigest()
        started = time.perf_counter()
        found = _load(key, index)
        if found is not None:
            statistics.cache_hits += 1
            seconds = time.perf_counter() - started
            statistics.load_seconds += seconds
            log.debug("loaded %s in %.0f ms", name, seconds * 1e3)
            program, plan, size = found
            _record(Built(name, True, 0.0, seconds, None, None, size, changed))
            return program.entry_point(index), plan
    reason = getattr(_forbidden, "reason", None)
    if reason:
        raise CompilationForbidden(f"{name} would be compiled now, but {reason}")
    started = time.perf_counter()
    function, specs, donated, plan = make()
    program, cost, trace_seconds, compile_seconds = _compile(name, function, specs, donated, index, apart)
    with _lock:
        statistics.compilations += 1
        statistics.compile_seconds += compile_seconds
        statistics.trace_seconds += trace_seconds
    log.debug("compiled %s in %.0f ms (traced in %.0f ms)", name, compile_seconds * 1e3, trace_seconds * 1e3)
    for observer in _observers:
        observer(name, time.perf_counter() - started)
    size = None if key is None else _save(key, program, plan, name)
    figures = cost.get("flops"), cost.get("bytes accessed"), size
    _record(Built(name, False, trace_seconds, compile_seconds, *figures, changed))
    return program.entry_point(index), plan


@dataclass
class Program:
    """A compiled program: one executable, or several with the wiring between them (:mod:`.stages`)."""

    executables: list
    wiring: Wiring | None

    def entry_point(self, index: int):
        """The program as a callable, for device ``index``."""
        calls = [_entry_point(compiled) for compiled in self.executables]
        return calls[0] if self.wiring is None else Chain(self.wiring, calls, index)


def _entry_point(compiled):
    """JAX's own C++ function of an executable: half a microsecond less a call than ``jax.stages.Compiled``."""
    return compiled._executable.create_cpp_call(compiled._params) or compiled


def _compile(name, function, specs, donated, index, apart: bool):
    """(program, estimated cost, seconds of tracing, seconds of compiling)."""
    import jax

    from . import stages

    started = time.perf_counter()
    sharding = client.sharding(index)

    def trace(function, specs, donated):
        inputs = [jax.ShapeDtypeStruct(shape, dtype, sharding=sharding) for shape, dtype in specs]
        return jax.jit(function, donate_argnums=tuple(donated), out_shardings=sharding).trace(*inputs)

    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        traced = trace(function, specs, donated)
        parts, wiring = (apart and stages.split(traced.jaxpr, donated)) or (None, None)
        all_traced = [traced] if parts is None else [trace(p.function, p.specs, p.donated) for p in parts]
        lowered = [t.lower() for t in all_traced]
        traced_at = time.perf_counter()
        program = Program([part.compile() for part in lowered], wiring)
    seconds = time.perf_counter() - traced_at
    return program, _cost(name, lowered, wiring), traced_at - started, seconds


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

        parts, wiring, plan = pickle.loads(payload)
        devices = [client.devices()[index]]
        loaded = [serialize_executable.deserialize_and_load(*part, execution_devices=devices) for part in parts]
        return Program(loaded, wiring), plan, len(payload)
    except Exception as error:  # a torn or foreign file: never fatal, the program is compiled again
        log.warning("stored program %s cannot be used (%s); compiling it again", key[:12], error)
        store.discard(key)
        return None


@functools.cache
def _set_up_lapack() -> None:
    """Resolve LAPACK's functions, which JAX otherwise does while it lowers a program that uses them."""
    from jaxlib import lapack

    lapack._lapack.initialize()


def _save(key, program: Program, plan, name: str) -> int | None:
    """Store a program; returns its size in bytes."""
    if not store.enabled():
        return None
    from jax.experimental import serialize_executable

    try:
        parts = [serialize_executable.serialize(compiled) for compiled in program.executables]
        payload = pickle.dumps((parts, program.wiring, plan))
        store.write(key, payload, name)
        return len(payload)
    except Exception as error:
        log.warning("program could not be stored (%s); it will be compiled again next time", error)
        return None
