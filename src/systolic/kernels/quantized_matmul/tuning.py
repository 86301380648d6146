"""Block sizes of the quantized matmul."""

from __future__ import annotations

import dataclasses

from systolic.kernels import tables
from systolic.kernels.generations import Generation, current_generation


@dataclasses.dataclass(frozen=True)
class Tuning:
    """rows, columns, depth: of a block of x [rows, depth] and of the weight [columns, depth].

    A block may stand over the end of M and N; ``depth`` divides K and holds whole groups of a scale or is part of one.
    """

    rows: int
    columns: int
    depth: int


def candidates(generation: Generation, rows: int, columns: int, width: int, groups: int) -> list[Tuning]:
    """Block sizes worth trying, the default first."""
    depths = [d for d in (2048, 1024, 512) if depth_fits(d, width, groups)] or [width]
    # A block covers M where it is small. Else wide blocks keep repeated reads of both operands below the matmul's time.
    blocks = [(rows, 1024), (rows, 512), (rows, 2048)]
    if rows > 256:
        blocks, depths = [(1024, 2048), (512, 1024), (256, 1024)], [d for d in depths if d <= 1024] or depths
    tunings = (Tuning(min(r, rows), min(c, columns), depth) for r, c in blocks for depth in depths)
    return list(dict.fromkeys(tunings))


def depth_fits(depth: int, width: int, groups: int) -> bool:
    """Whether blocks of ``depth`` cut K = width into equal parts along whole groups, or groups into whole blocks."""
    group = width // groups
    return width % depth == 0 and (depth % group == 0 or group % depth == 0)


def tuned(x, weight, weight_scale) -> Tuning:
    """The table's block sizes for these arrays on the generation in use, else the default."""
    generation = current_generation()
    (rows, width), columns, groups = x.shape, weight.shape[0], weight_scale.shape[0]
    key = key_of(rows, columns, width, groups, str(x.dtype), str(weight.dtype))
    found = tables.lookup("quantized_matmul", generation.name, key, Tuning)
    # The table's row block is for the largest M of its bucket.
    if found is not None:
        return dataclasses.replace(found, rows=min(found.rows, rows))
    return candidates(generation, rows, columns, width, groups)[0]


def key_of(rows: int, columns: int, width: int, groups: int, x_dtype: str, dtype: str) -> str:
    """The table's key: M is rounded up to a power of two."""
    bucket = 1 << max(0, rows - 1).bit_length()
    return f"{bucket} x {width} -> {columns}, {groups} groups, {x_dtype} x {dtype}"
