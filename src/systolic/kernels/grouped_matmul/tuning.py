"""Block sizes of the grouped matmul."""

from __future__ import annotations

import dataclasses

from systolic.kernels import tables
from systolic.kernels.generations import Generation, current_generation
from systolic.kernels.quantized_matmul.tuning import depth_fits


@dataclasses.dataclass(frozen=True)
class Tuning:
    """rows, columns, depth: of a block of x [rows, depth] and of a weight [columns, depth].

    rows: a multiple of 16; ``depth`` divides K and holds whole groups of a scale or is part of one.
    """

    rows: int
    columns: int
    depth: int


def candidates(generation: Generation, rows: int, columns: int, width: int, experts: int, groups: int) -> list[Tuning]:
    """Block sizes worth trying, the default first."""
    # Rows of a block that belong to other groups are computed in vain: no more than a group has on average.
    row_block = 16
    while row_block < min(256, rows // experts):
        row_block *= 2
    depths = [d for d in (2048, 1024, 512) if depth_fits(d, width, groups)] or [width]
    found = []
    for column_block in (1024, 512, 2048):
        for depth in depths:
            tuning = Tuning(row_block, min(column_block, columns), depth)
            if tuning not in found:
                found.append(tuning)
    return found


def tuned(x, weight, weight_scale) -> Tuning:
    """The table's block sizes for these arrays on the generation in use, else the default."""
    generation = current_generation()
    (experts, columns, width), rows, groups = weight.shape, x.shape[0], weight_scale.shape[1]
    key = key_of(rows, experts, columns, width, groups, str(x.dtype), str(weight.dtype))
    found = tables.lookup("grouped_matmul", generation.name, key, Tuning)
    return found or candidates(generation, rows, columns, width, experts, groups)[0]


def key_of(rows: int, experts: int, columns: int, width: int, groups: int, x_dtype: str, dtype: str) -> str:
    """The table's key: the number of rows is rounded up to a power of two."""
    bucket = 1 << max(0, rows - 1).bit_length()
    return f"{bucket} x {width} -> {experts} x {columns}, {groups} groups, {x_dtype} x {dtype}"
