"""The work list of one paged attention call, computed by XLA before the kernel starts.

The kernel runs over it with scalars only, so its cost follows live tokens, not the shapes.
All arrays are int32 and end in SMEM.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from systolic.kernels.worklist import spread

# Fields of a visit: one sequence inside one block of queries.
SEQUENCE, START, STOP, POSITION, FIRST, LAST, LIMIT = range(7)
VISIT_FIELDS = 7
# Fields of a write: one aligned window of a page that takes new tokens.
PAGE, ROW, SOURCE, SHIFT, FROM, TO = range(6)
WRITE_FIELDS = 6


class Schedule(NamedTuple):
    """visits [7 * max_visits]: field f of visit p stands at f * max_visits + p.

    SEQUENCE; START, STOP: its tokens inside the query block; POSITION: of the token START; FIRST, LAST: its key
    blocks (LAST excluded); LIMIT: keys from there on are not read.
    blocks [query_blocks + 1]: the first visit of each query block, then the number of visits.
    writes [6 * max_writes]: PAGE, ROW of the window; SOURCE: aligned row of the padded new tokens; SHIFT: rows
    from there to the row that belongs to the window's first; FROM, TO: the window's rows that are new.
    write_count [1].
    """

    visits: jnp.ndarray
    blocks: jnp.ndarray
    writes: jnp.ndarray
    write_count: jnp.ndarray


def build(block_table, seq_lens, query_start_loc, slot_mapping, num_seqs, *, tokens: int, query_block: int,
          key_block: int, page_size: int, window_rows: int, sliding_window: int, causal: bool) -> Schedule:  # fmt: skip
    """The work list; arguments as in `paged_attention`, sizes in tokens.

    ``tokens`` is the padded number of queries, a multiple of ``query_block``; ``window_rows`` divides ``page_size``.
    """
    sequences = block_table.shape[0]
    begin, end = query_start_loc[:-1], query_start_loc[1:]
    count = jnp.where(jnp.arange(sequences, dtype=jnp.int32) < num_seqs[0], end - begin, 0)
    first_position = seq_lens - count

    query_blocks = tokens // query_block
    size = query_blocks + sequences
    first_block = begin // query_block
    per_sequence = jnp.where(count > 0, (end - 1) // query_block - first_block + 1, 0)
    owner, rank, visits = spread(per_sequence, size)
    block = first_block[owner] + rank
    base = block * query_block
    start, stop = jnp.maximum(begin[owner], base), jnp.minimum(end[owner], base + query_block)
    position = first_position[owner] + start - begin[owner]
    last_position = position + stop - start - 1
    limit = seq_lens[owner]
    if causal:
        limit = jnp.minimum(limit, last_position + 1)
    elif sliding_window:
        limit = jnp.minimum(limit, last_position + sliding_window)
    lowest = jnp.maximum(position - sliding_window + 1, 0) if sliding_window else jnp.zeros_like(position)
    fields = [owner, start - base, stop - base, position, lowest // key_block, -(-limit // key_block), limit]
    live = jnp.arange(size, dtype=jnp.int32) < visits
    block = jnp.where(live, block, query_blocks)
    blocks = jnp.searchsorted(block, jnp.arange(query_blocks + 1, dtype=jnp.int32)).astype(jnp.int32)

    write_size = slot_mapping.shape[0] // window_rows + 2 * sequences
    # A layer that shares an earlier layer's cache writes nothing: its sequences have no slots.
    kept = slot_mapping[jnp.minimum(begin, slot_mapping.shape[0] - 1)] >= 0
    first_window = first_position // window_rows
    windows = jnp.where((count > 0) & kept, (seq_lens - 1) // window_rows - first_window + 1, 0)
    owner, rank, writes = spread(windows, write_size)
    top = (first_window[owner] + rank) * window_rows
    page = block_table[owner, jnp.minimum(top // page_size, block_table.shape[1] - 1)]
    # The new tokens stand window_rows further down in the padded array.
    source = begin[owner] + top - first_position[owner] + window_rows
    aligned = source // 8 * 8
    write_fields = [page, top % page_size, aligned, source - aligned,
                    jnp.maximum(first_position[owner] - top, 0),
                    jnp.minimum(seq_lens[owner] - top, window_rows)]  # fmt: skip
    return Schedule(jnp.concatenate(fields).astype(jnp.int32), blocks, jnp.concatenate(write_fields).astype(jnp.int32),
                    writes.reshape(1))  # fmt: skip
