"""Sizes that the decoder stack's kernel is specialised on, and the order in which its weights are streamed."""

from __future__ import annotations

import dataclasses

from systolic.kernels.arguments import need
from systolic.kernels.decode_stack.tuning import Tuning
from systolic.kernels.pallas import sublanes

# A row of activations for each sequence: float32 tiles have eight.
ROWS = 8
LANES = 128
QKV, OUT, UP, DOWN = range(4)
# The matrices of each ring of VMEM buffers, in the order of their use; those of one ring have equal columns.
RINGS = ((QKV, UP), (OUT,), (DOWN,))


@dataclasses.dataclass(frozen=True)
class Matrix:
    """One weight of a layer, [2, half, columns]; a block is [2, rows, columns], the same rows of both halves.

    following: whose blocks come next in the ring; wraps: these are the next layer's.
    """

    half: int
    rows: int
    ring: int
    following: int
    wraps: bool

    @property
    def blocks(self) -> int:
        return self.half // self.rows


@dataclasses.dataclass(frozen=True)
class Static:
    """hidden, inner: of the residual and of the MLP; q_heads, kv_heads, dim: of attention; sizes of keys in tokens.

    piece: keys of one copy; pieces: copies of a key block; window: rows of one written tile of the cache.
    """

    layers: int
    hidden: int
    inner: int
    q_heads: int
    kv_heads: int
    dim: int
    qk_norm: bool
    epsilon: float
    scale: float
    page_size: int
    table_pages: int
    piece: int
    pieces: int
    window: int
    buffers: int
    key_buffers: int
    matrices: tuple[Matrix, ...]

    @property
    def group(self) -> int:
        return self.q_heads // self.kv_heads

    @property
    def key_block(self) -> int:
        return self.piece * self.pieces


def matrices(halves: tuple[int, ...], tuning: Tuning) -> tuple[Matrix, ...]:
    """The weights QKV, OUT, UP and DOWN with ``halves`` rows in each half.

    Raises:
        ValueError: a weight has no whole number of blocks, or fewer than there are buffers.
    """
    found: list[Matrix | None] = [None] * len(halves)
    for ring, members in enumerate(RINGS):
        rows = (tuning.up_rows, tuning.out_rows, tuning.down_rows)[ring]
        need(rows > 0 and rows % LANES == 0, f"a block has {rows} rows; they must be a multiple of {LANES}")
        for place, member in enumerate(members):
            need(halves[member] % rows == 0 and halves[member] // rows >= tuning.buffers,
                 f"half of a weight has {halves[member]} rows; they must be a multiple of a block's {rows}, at least "
                 f"{tuning.buffers} times: take smaller blocks or fewer buffers")  # fmt: skip
            wraps = place + 1 == len(members)
            found[member] = Matrix(halves[member], rows, ring, members[0 if wraps else place + 1], wraps)
    return tuple(found)


def static_sizes(qkv, out, down, kv_cache, block_table, *, qk_norm: bool, epsilon: float, scale: float,
                 tuning: Tuning) -> Static:  # fmt: skip
    """Of the arguments of `decode_stack`.

    Raises:
        ValueError: the TPU form does not have a size, or the block sizes do not fit.
    """
    layers, wide, hidden = qkv.shape
    kv_heads, page_size, dim = kv_cache.shape[3:]
    inner = down.shape[2]
    need(dim % LANES == 0, f"heads have {dim} elements; on TPU that must be a multiple of {LANES}")
    need(inner % LANES == 0, f"the MLP has {inner} columns; on TPU that must be a multiple of {LANES}")
    for name, size in (("hidden size", hidden), ("rows of qkv", wide)):
        need(size % (2 * LANES) == 0, f"{name} is {size}; on TPU it must be a multiple of {2 * LANES}")
    window = sublanes(kv_cache.dtype)
    need(page_size % window == 0,
         f"pages have {page_size} tokens; on TPU that must be a multiple of {window} for {kv_cache.dtype}")
    piece = min(page_size, tuning.keys)
    need(tuning.keys % piece == 0 and page_size % piece == 0 and piece % window == 0,
         f"keys is {tuning.keys}; it must be a multiple or a divisor of a page's {page_size} tokens, and of {window}")
    return Static(
        layers=layers, hidden=hidden, inner=inner, q_heads=out.shape[2] // dim, kv_heads=kv_heads, dim=dim,
        qk_norm=qk_norm, epsilon=epsilon, scale=scale, page_size=page_size, table_pages=block_table.shape[1],
        piece=piece, pieces=tuning.keys // piece, window=window, buffers=tuning.buffers,
        key_buffers=tuning.key_buffers, matrices=matrices((wide // 2, hidden // 2, inner, hidden // 2), tuning),
    )  # fmt: skip
