"""Block sizes of state space duality over ragged sequences."""

from __future__ import annotations

import dataclasses

from systolic.kernels import tables
from systolic.kernels.generations import Generation, current_generation
from systolic.kernels.ssd_step.tuning import key_of


@dataclasses.dataclass(frozen=True)
class Tuning:
    """chunk: tokens of a block, a multiple of 16; heads: of a block, a divisor of a group's, or all heads.

    On a TPU the channels of a block's heads, and of its groups, are all there are or a multiple of 128.
    """

    chunk: int
    heads: int


def candidates(generation: Generation, heads: int, groups: int, width: int, states: int) -> list[Tuning]:
    """Block sizes worth trying, the default first."""
    blocks = [n for n in (8, 16, 4, 2, 1) if heads // groups % n == 0 and n * width % 128 == 0]
    whole = groups > 1 and states % 128
    return [Tuning(chunk, n) for n in ([] if whole else blocks) or [heads] for chunk in (128, 64, 256)]


def tuned(x, b) -> Tuning:
    """The table's block sizes for these arrays on the generation in use, else the default."""
    generation = current_generation()
    sizes = x.shape[1], b.shape[1], x.shape[2], b.shape[2]
    return tables.lookup("ssd_prefill", generation.name, key_of(*sizes), Tuning) or candidates(generation, *sizes)[0]
