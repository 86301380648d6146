"""The operator table: one record for each ATen operator that Systolic lowers to JAX.

A record is a plain Python function of JAX values.  Eager dispatch, `torch.compile`, export and
ahead-of-time compilation all call it through :func:`call`, so an operator is translated in
exactly one place.

Contract of a lowering
----------------------
* ``@lower("add")`` covers every overload of the base name and its in-place and ``out=`` forms:
  ``add.Tensor``, ``add.Scalar``, ``add_.Tensor``, ``add.out``.  ``@lower("max.dim")`` covers the
  overload ``dim`` only (and its in-place/out forms) and wins over ``@lower("max")``.
* Arguments arrive **by the schema's name** as keywords.  Python keywords get a trailing
  underscore (``from_``).  Arguments left at their default value may be missing: give defaults.
  ``out=`` arguments and ``generator`` are never passed.
* A tensor is a ``jax.Array`` (usually a tracer).  A number of schema type ``Scalar`` is a Python
  number or, when it is a run-time value, a :class:`Scalar`; with ``static_scalars=True`` it is
  always a Python number.  ``dtype`` arguments are ``torch.dtype`` (see ``numerics.jdtype``).
* 64-bit mode is on while a lowering runs.  JAX's own type promotion is never relied on: cast
  operands with ``numerics.promote`` or to ``out(i).dtype`` first.
* :func:`out` tells shape and dtype of each result, as PyTorch's own meta kernels computed them.
  The caller casts each result to that dtype and checks the shape, so a lowering may return a
  wider dtype but never a wrong shape.
* ``rng=True``: the lowering gets a keyword ``key``, a ``uint32[2]`` array for `jax.random`.
* ``view=True``: only used inside graphs; in eager mode the C++ core makes aliasing views.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple


class Spec(NamedTuple):
    """Shape and NumPy/JAX dtype of one result."""

    shape: tuple[int, ...]
    dtype: Any


@dataclass(frozen=True)
class Scalar:
    """A run-time number: ``kind`` is bool, int, float or complex; ``value`` a 0-d JAX value."""

    kind: type
    value: Any


@dataclass(frozen=True)
class Record:
    """One lowering; see the module docstring for what ``fn`` receives."""

    name: str
    fn: Callable[..., Any]
    static_scalars: bool = False
    rng: bool = False
    view: bool = False


_records: dict[str, Record] = {}
_state = threading.local()


def lower(*names: str, static_scalars: bool = False, rng: bool = False, view: bool = False):
    """Register a lowering under each ATen name.  A second record for a name is an error."""

    def register(fn):
        for name in names:
            if name in _records:
                raise ValueError(f"operator {name!r} is already lowered by {_records[name].fn}")
            _records[name] = Record(name, fn, static_scalars, rng, view)
        return fn

    return register


def base_name(name: str) -> str:
    """``"add_"`` -> ``"add"``; dunder names such as ``__and__`` keep theirs."""
    if name.startswith("__"):
        return "__" + name.strip("_").removeprefix("i") + "__" if name.startswith("__i") else name
    return name.removesuffix("_")


def find(name: str, overload: str = "") -> Record | None:
    """The record for an operator, given without its namespace, or None."""
    base = base_name(name)
    if overload:
        functional = overload.removesuffix("_out")
        record = _records.get(f"{base}.{functional}")
        if record is not None:
            return record
    return _records.get(base)


def records() -> dict[str, Record]:
    """All records by name (do not modify)."""
    return _records


def out(index: int = 0) -> Spec:
    """Shape and dtype of result ``index`` of the operator that is being lowered."""
    return _state.outs[index]


@contextlib.contextmanager
def expecting(specs: list[Spec]):
    """Make ``specs`` what :func:`out` answers inside the block."""
    previous = getattr(_state, "outs", None)
    _state.outs = specs
    try:
        yield
    finally:
        _state.outs = previous


def call(record: Record, specs: list[Spec], arguments: dict[str, Any]) -> list[Any]:
    """Run a lowering; return its results cast to ``specs``, or raise if a shape is wrong."""
    import jax

    with expecting(specs):
        results = record.fn(**arguments)
    if not isinstance(results, (tuple, list)):
        results = (results,)
    if len(results) != len(specs):
        raise RuntimeError(f"lowering of {record.name} returned {len(results)} results, expected {len(specs)}")
    done = []
    for index, (result, spec) in enumerate(zip(results, specs)):
        if spec is None:  # an optional result that this call does not produce
            done.append(None)
            continue
        if tuple(result.shape) != tuple(spec.shape):
            raise RuntimeError(
                f"lowering of {record.name}: result {index} has shape {tuple(result.shape)}, expected {tuple(spec.shape)}"
            )
        done.append(result if result.dtype == spec.dtype else jax.lax.convert_element_type(result, spec.dtype))
    return done
