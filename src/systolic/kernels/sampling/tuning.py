"""Block sizes of sampling."""

from __future__ import annotations

import dataclasses

from systolic.kernels import tables
from systolic.kernels.generations import Generation, current_generation


@dataclasses.dataclass(frozen=True)
class Tuning:
    """columns: of the vocabulary that one turn of an inner loop looks at, a multiple of 128."""

    columns: int


def candidates(generation: Generation, vocabulary: int) -> list[Tuning]:
    """Block sizes worth trying, the default first."""
    whole = -(-vocabulary // 128) * 128
    return list(dict.fromkeys(Tuning(min(columns, whole)) for columns in (4096, 2048, 8192)))


def tuned(logits) -> Tuning:
    """The table's block sizes for these logits on the generation in use, else the default."""
    generation = current_generation()
    found = tables.lookup("sampling", generation.name, key_of(logits.shape[1]), Tuning)
    return found or candidates(generation, logits.shape[1])[0]


def key_of(vocabulary: int) -> str:
    """The table's key."""
    return f"vocabulary {vocabulary}"
