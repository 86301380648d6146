"""Block sizes of paged attention."""

from __future__ import annotations

import dataclasses

from systolic.kernels import tables
from systolic.kernels.generations import Generation, current_generation

# What a block of keys and values should hold: large enough to hide the latency of its copies.
KEY_BLOCK_BYTES = 2 << 20


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Sizes that change speed and memory, never the result beyond rounding.

    query_block: tokens of a block of queries, a multiple of 16.
    pages: of the cache in one block of keys.
    head_parts: the kernel runs over the key/value heads in so many parts; divides their number.
    buffers: key blocks in VMEM at a time, at least 2.
    small_tokens: sequences with at most so many queries in a block take the path for few rows.
    chunk_rows: rows (queries times heads of a group) that the other path works on at a time.
    unroll_heads: the path for few rows has the heads one after the other in its code.
    """

    query_block: int
    pages: int
    head_parts: int = 1
    buffers: int = 3
    small_tokens: int = 1
    chunk_rows: int = 128
    unroll_heads: bool = True


def candidates(generation: Generation, tokens: int, q_heads: int, kv_heads: int, dim: int, page_size: int,
               cache_bytes: int, table_pages: int) -> list[Tuning]:  # fmt: skip
    """Block sizes worth trying, the default first; ``cache_bytes`` is the size of one element of the cache."""
    group = q_heads // kv_heads
    # Two cores share the heads of a v5p device.
    parts = 2 if generation.name == "v5p" and kv_heads % 2 == 0 else 1
    query_block = 16
    while query_block < min(tokens, 64) and query_block * 2 * group <= 1024:
        query_block *= 2
    page_bytes = 2 * kv_heads // parts * page_size * dim * cache_bytes
    unroll = kv_heads // parts <= 8
    found = []
    for target in (KEY_BLOCK_BYTES, KEY_BLOCK_BYTES // 2, 2 * KEY_BLOCK_BYTES):
        # Scores of a block are kept in registers and VMEM: more than 1,024 keys would not stay there.
        pages = max(1, min(target // page_bytes, 1024 // page_size, table_pages))
        tuning = Tuning(query_block, pages, head_parts=parts, unroll_heads=unroll)
        if tuning not in found:
            found.append(tuning)
    return found


def tuned(q, kv_cache, block_table) -> Tuning:
    """The table's block sizes for these arrays on the generation in use, else the default."""
    generation = current_generation()
    tokens, q_heads, dim = q.shape
    kv_heads, page_size = kv_cache.shape[2], kv_cache.shape[3]
    size = kv_cache.dtype.itemsize
    options = candidates(generation, tokens, q_heads, kv_heads, dim, page_size, size, block_table.shape[1])
    key = key_of(tokens, q_heads, kv_heads, dim, page_size, str(kv_cache.dtype))
    return tables.lookup("paged_attention", generation.name, key, Tuning) or options[0]


def key_of(tokens: int, q_heads: int, kv_heads: int, dim: int, page_size: int, cache_dtype: str) -> str:
    """The table's key: the number of tokens is rounded up to a power of two."""
    bucket = 1 << max(0, tokens - 1).bit_length()
    return f"tokens {bucket}, heads {q_heads}/{kv_heads}x{dim}, page {page_size}, {cache_dtype}"
