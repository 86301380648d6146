"""Block sizes of the decode step of state space duality."""

from __future__ import annotations

import dataclasses

from systolic.kernels import tables
from systolic.kernels.generations import Generation, current_generation


@dataclasses.dataclass(frozen=True)
class Tuning:
    """heads: of one block of a state; divides the heads of a group, or is all heads."""

    heads: int


def candidates(generation: Generation, heads: int, groups: int) -> list[Tuning]:
    """Block sizes worth trying, the default first: larger blocks hide more of the copies' latency."""
    return [Tuning(n) for n in (64, 32, 16, 8) if heads // groups % n == 0] or [Tuning(heads)]


def tuned(x, b) -> Tuning:
    """The table's block sizes for these arrays on the generation in use, else the default."""
    generation = current_generation()
    key = key_of(x.shape[1], b.shape[1], x.shape[2], b.shape[2])
    return tables.lookup("ssd_step", generation.name, key, Tuning) or candidates(
        generation, x.shape[1], b.shape[1])[0]  # fmt: skip


def key_of(heads: int, groups: int, width: int, states: int) -> str:
    """The table's key."""
    return f"{heads} heads of {width} x {states}, {groups} groups"
