"""Block sizes of the decoder stack."""

from __future__ import annotations

import dataclasses
import math

from systolic.kernels import tables
from systolic.kernels.generations import Generation, current_generation

LANES = 128
# Of VMEM for the weights' buffers; keys, activations and the pipelined norms need the rest.
SHARE = 0.6
# A block's copy should take some times as long as its latency; with more there is nothing to win.
BLOCK_BYTES = 4 << 20
KEY_BLOCK_BYTES = 2 << 20


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Sizes that change speed and memory, never the result beyond rounding.

    up_rows, out_rows, down_rows: of each half of a block of qkv and gate_up, of the output projection, and of the down
    projection; multiples of 128.
    buffers: blocks of each kind in VMEM at a time, at least 2.
    keys: tokens of a block of the cache, a multiple or a divisor of a page.
    key_buffers: such blocks in VMEM at a time.
    """

    up_rows: int
    out_rows: int
    down_rows: int
    buffers: int
    keys: int
    key_buffers: int = 2


def candidates(generation: Generation, hidden: int, q_size: int, kv_size: int, inner: int, size: int,
               page_size: int, table_pages: int) -> list[Tuning]:  # fmt: skip
    """Block sizes worth trying, the default first.

    q_size, kv_size: heads times their elements, of queries and of keys; size: bytes of an element of the weights.
    """
    keys = page_size
    if page_size >= 512:
        keys = math.gcd(page_size, 512)
    else:
        target = min(512, KEY_BLOCK_BYTES // (2 * kv_size * size), page_size * table_pages)
        keys = max(1, target // page_size) * page_size
    found = []
    for buffers in (3, 2, 4):
        for target in (BLOCK_BYTES, BLOCK_BYTES // 2, BLOCK_BYTES // 4):
            rows = [_rows(common, columns * size, target, buffers) for common, columns in
                    ((math.gcd((q_size + 2 * kv_size) // 2, inner), hidden), (hidden // 2, q_size),
                     (hidden // 2, inner))]  # fmt: skip
            held = 2 * buffers * size * (rows[0] * hidden + rows[1] * q_size + rows[2] * inner)
            tuning = Tuning(*rows, buffers, keys)
            if held <= SHARE * generation.vmem and tuning not in found:
                found.append(tuning)
    return found or [Tuning(LANES, LANES, LANES, 2, keys)]


def _rows(total: int, row_bytes: int, target: int, buffers: int) -> int:
    """The largest divisor of ``total`` that is a multiple of 128 and whose block is within ``target``, or 128."""
    fits = (n for n in range(LANES, total // buffers + 1, LANES) if total % n == 0 and 2 * n * row_bytes <= target)
    return max(fits, default=LANES)


def tuned(qkv, out, down, kv_cache, block_table) -> Tuning:
    """The table's block sizes for these arrays on the generation in use, else the default."""
    generation = current_generation()
    hidden, q_size, inner = qkv.shape[2], out.shape[2], down.shape[2]
    kv_heads, page_size, dim = kv_cache.shape[3:]
    found = tables.lookup("decode_stack", generation.name,
                          key_of(hidden, q_size, kv_heads * dim, inner, page_size, str(qkv.dtype)), Tuning)  # fmt: skip
    return found or candidates(generation, hidden, q_size, kv_heads * dim, inner, qkv.dtype.itemsize, page_size,
                               block_table.shape[1])[0]  # fmt: skip


def key_of(hidden: int, q_size: int, kv_size: int, inner: int, page_size: int, dtype: str) -> str:
    """The table's key."""
    return f"{hidden}, {q_size} + 2 x {kv_size}, {inner}, page {page_size}, {dtype}"
