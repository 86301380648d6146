"""Block sizes of attention inside segments."""

from __future__ import annotations

import dataclasses

from systolic.kernels import tables
from systolic.kernels.generations import Generation, current_generation


@dataclasses.dataclass(frozen=True)
class Tuning:
    """queries, keys: of a block; multiples of 16 and of 128."""

    queries: int
    keys: int


def candidates(generation: Generation, queries: int, keys: int) -> list[Tuning]:
    """Block sizes worth trying, the default first."""
    found = []
    for query_block, key_block in ((512, 512), (256, 1024), (1024, 512), (256, 512)):
        tuning = Tuning(min(query_block, -(-queries // 16) * 16), min(key_block, -(-keys // 128) * 128))
        if tuning not in found:
            found.append(tuning)
    return found


def tuned(q, k) -> Tuning:
    """The table's block sizes for these arrays on the generation in use, else the default."""
    generation = current_generation()
    key = key_of(q.shape[1], k.shape[1], q.shape[2], str(q.dtype))
    return tables.lookup("flash_attention", generation.name, key, Tuning) or candidates(
        generation, q.shape[1], k.shape[1])[0]  # fmt: skip


def key_of(queries: int, keys: int, dim: int, dtype: str) -> str:
    """The table's key: numbers of queries and keys are rounded up to powers of two."""
    buckets = [1 << max(0, n - 1).bit_length() for n in (queries, keys)]
    return f"{buckets[0]} x {buckets[1]} x {dim}, {dtype}"
