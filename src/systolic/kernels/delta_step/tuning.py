"""Block sizes of the gated delta net's decode step."""

from __future__ import annotations

import dataclasses

from systolic.kernels import tables
from systolic.kernels.generations import Generation, current_generation


@dataclasses.dataclass(frozen=True)
class Tuning:
    """heads: of one block of a state; divides their number, and is all of them or a multiple of 8."""

    heads: int


def candidates(generation: Generation, heads: int) -> list[Tuning]:
    """Block sizes worth trying, the default first: larger blocks hide more of the copies' latency."""
    return [Tuning(n) for n in (32, 16, 8) if heads % n == 0] or [Tuning(heads)]


def tuned(q, v, decay) -> Tuning:
    """The table's block sizes for these arrays on the generation in use, else the default."""
    generation = current_generation()
    key = key_of(q.shape[1], q.shape[2], v.shape[2], decay.ndim == 3)
    return tables.lookup("delta_step", generation.name, key, Tuning) or candidates(generation, q.shape[1])[0]


def key_of(heads: int, width: int, value_width: int, by_channel: bool) -> str:
    """The table's key."""
    return f"{heads} heads of {width} x {value_width}, decay by {'channel' if by_channel else 'head'}"
