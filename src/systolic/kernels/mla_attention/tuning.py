"""Block sizes of multi-head latent attention: those of paged attention, with one row of keys for all heads."""

from __future__ import annotations

from systolic.kernels import tables
from systolic.kernels.generations import Generation, current_generation
from systolic.kernels.paged_attention.tuning import Tuning

# Rows of queries, tokens times heads, of a block: its sums and softmax state stay in VMEM.
ROWS = 2048


def candidates(generation: Generation, tokens: int, heads: int, page_size: int, table_pages: int) -> list[Tuning]:
    """Block sizes worth trying, the default first."""
    query_block = 16
    while query_block < min(tokens, 64) and query_block * 2 * heads <= ROWS:
        query_block *= 2
    found = []
    for keys in (512, 1024, 256):
        pages = max(1, min(keys // page_size, table_pages))
        tuning = Tuning(query_block, pages)
        if tuning not in found:
            found.append(tuning)
    return found


def tuned(q, cache, block_table) -> Tuning:
    """The table's block sizes for these arrays on the generation in use, else the default."""
    generation = current_generation()
    tokens, heads, width = q.shape
    key = key_of(tokens, heads, width, cache.shape[1], str(cache.dtype))
    found = tables.lookup("mla_attention", generation.name, key, Tuning)
    return found or candidates(generation, tokens, heads, cache.shape[1], block_table.shape[1])[0]


def key_of(tokens: int, heads: int, width: int, page_size: int, cache_dtype: str) -> str:
    """The table's key: tokens are rounded up to a power of two."""
    bucket = 1 << max(0, tokens - 1).bit_length()
    return f"{bucket} tokens, {heads} heads of {width}, page {page_size}, {cache_dtype}"
