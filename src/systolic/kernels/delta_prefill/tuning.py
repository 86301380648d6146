"""Block sizes of the chunked gated delta net."""

from __future__ import annotations

import dataclasses

from systolic.kernels import tables
from systolic.kernels.delta_step.tuning import key_of
from systolic.kernels.generations import Generation, current_generation


@dataclasses.dataclass(frozen=True)
class Tuning:
    """chunk: tokens of a block, a power of two from 16 on; heads: of a block, a divisor of their number.

    The work of a token grows with the chunk, the number of updates of the state shrinks with it.
    """

    chunk: int
    heads: int


def candidates(generation: Generation, heads: int) -> list[Tuning]:
    """Block sizes worth trying, the default first: the heads of a block are independent, which hides latency."""
    return [Tuning(chunk, n) for chunk, n in ((64, 4), (64, 2), (32, 4), (128, 2), (64, 1)) if heads % n == 0]


def tuned(q, v, decay) -> Tuning:
    """The table's block sizes for these arrays on the generation in use, else the default."""
    generation = current_generation()
    key = key_of(q.shape[1], q.shape[2], v.shape[2], decay.ndim == 3)
    return tables.lookup("delta_prefill", generation.name, key, Tuning) or candidates(generation, q.shape[1])[0]
