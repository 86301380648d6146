"""The kernels that have a Pallas form, with what proves each: cases, a float64 oracle, bounds, compile entries.

A kernel's folder has a module ``proof`` with the name ``PROOF``, a :class:`Proof`.  `systolic kernels` works on these
records alone.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

from systolic.kernels import tables
from systolic.kernels.names import NAMES


@dataclasses.dataclass(frozen=True)
class Bound:
    """Largest |result - oracle|: absolute + relative * |oracle|, elementwise; and why it is that."""

    absolute: float
    relative: float
    reason: str


@dataclasses.dataclass(frozen=True)
class Case:
    """One call: arrays by argument name, static options, block sizes; what the sizes of the case are called."""

    label: str
    arrays: Mapping[str, Any]
    options: Mapping[str, Any]
    tuning: Any


@dataclasses.dataclass(frozen=True)
class Work:
    """What one call does with some block sizes, and what any implementation has to do; the estimate's input.

    hbm_bytes: read and written, padding and repeated reads included; matmul_flops: by type of the operands
    ("bfloat16", "int8", "float8_e4m3fn", "float32"), padding included; vector_ops: float32 elementwise operations;
    copies: DMA descriptors; grid_steps: where the grid is the kernel's only loop, else 0.  least_bytes, least_flops: of
    the operands and results once, without padding.
    """

    hbm_bytes: float
    matmul_flops: Mapping[str, float]
    vector_ops: float
    copies: float
    least_bytes: float
    least_flops: Mapping[str, float]
    grid_steps: float = 0


@dataclasses.dataclass(frozen=True)
class Entry:
    """One shape to compile: arguments as (shape, dtype name), positions that are donated, static options.

    kernel, key: where the table of block sizes has it.  candidates: block sizes worth trying on a generation, the
    default first; work: what a call does with them.
    """

    kernel: str
    key: str
    label: str
    arguments: Mapping[str, tuple[tuple[int, ...], str]]
    donated: tuple[str, ...]
    options: Mapping[str, Any]
    candidates: Callable[[str], list]
    work: Callable[[str, Any], Work]

    def chosen(self, generation: str):
        """The table's block sizes, else the default."""
        options = self.candidates(generation)
        return tables.lookup(self.kernel, generation, self.key, type(options[0])) or options[0]


@dataclasses.dataclass(frozen=True)
class Proof:
    """A kernel and its proof.

    pallas, reference: take the arrays by name and the options; ``pallas`` also ``tuning`` and ``interpret``.
    Both return a tuple of arrays.  draw(seed, index): the index-th case; cases with the same ``index //
    DRAWS_PER_PROGRAM`` differ in run-time values only.  oracle(case): the results in float64 (NumPy).
    bound(case, output): for each output by position.
    """

    name: str
    summary: str
    pallas: Callable
    reference: Callable
    draw: Callable[[int, int], Case]
    oracle: Callable[[Case], tuple]
    bound: Callable[[Case, int], Bound]
    entries: tuple[Entry, ...]
    tuning: type


# Compiling in interpret mode takes seconds, running a case a fraction of one.
DRAWS_PER_PROGRAM = 8


def proof(name: str) -> Proof:
    """The record of a kernel.  Raises ValueError for an unknown name."""
    if name not in NAMES:
        raise ValueError(f"there is no kernel {name!r}; the kernels are {', '.join(NAMES)}")
    return importlib.import_module(f"systolic.kernels.{name}.proof").PROOF
