"""What the drawn cases of paged caches share: ragged sequences, their blocks, and types of 8 bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np


def numpy_type(name: str):
    """NumPy's dtype of that name, with the narrow floats."""
    return np.dtype(getattr(ml_dtypes, name, name))


def sequences_of(rng, turn: int, tokens: int, sequences: int, table_pages: int, page_size: int):
    """A name, the new tokens of each live sequence, and the arrays that say what belongs to whom, by name.

    The blocks are drawn from ``sequences * table_pages + 3``.
    """
    label, lengths = _lengths(rng, turn, tokens, sequences, table_pages * page_size, page_size)
    live = len(lengths)
    counts = [n for n, _ in lengths]
    blocks = sequences * table_pages + 3
    table = np.zeros((sequences, table_pages), np.int32)
    table[:live] = rng.permutation(blocks)[: live * table_pages].reshape(live, table_pages)
    seq_lens = np.zeros(sequences, np.int32)
    seq_lens[:live] = [context for _, context in lengths]
    starts = np.full(sequences + 1, sum(counts), np.int32)
    starts[: live + 1] = np.concatenate([[0], np.cumsum(counts)])
    slots = np.full(tokens, -1, np.int32)
    for s, (n, context) in enumerate(lengths):
        if rng.random() < 0.1:
            continue  # a layer that shares a cache writes nothing
        position = np.arange(context - n, context)
        slots[starts[s] : starts[s] + n] = table[s, position // page_size] * page_size + position % page_size
    return label, counts, {
        "block_table": table, "seq_lens": seq_lens, "query_start_loc": starts, "slot_mapping": slots,
        "num_seqs": np.array([live], np.int32),
    }  # fmt: skip


def _lengths(rng, turn: int, tokens: int, sequences: int, longest: int, page_size: int):
    """A name and (new tokens, context) of each live sequence, for the turns of one program."""
    def context(n):
        return int(rng.integers(n, longest + 1))

    if turn == 0:
        return "nothing", []
    if turn == 1:
        return "one token", [(1, 1)]
    if turn == 2:  # contexts around the ends of pages, new tokens that cross them
        ends = [page_size * int(rng.integers(1, longest // page_size + 1)) for _ in range(sequences)]
        made = [(int(rng.integers(1, 8)), end + int(rng.integers(-1, 2))) for end in ends]
        return "page borders", [(min(n, c), min(c, longest)) for n, c in made]
    if turn == 3:
        return "maximum", [(1, longest)] * (sequences - 1) + [(tokens - sequences + 1, longest)]
    if turn == 4:
        return "decode", [(1, context(1)) for _ in range(sequences)]
    if turn == 5:
        return "prompt", [(tokens, tokens)]
    counts = rng.multinomial(int(rng.integers(1, tokens + 1)), rng.dirichlet(np.ones(sequences) * 0.7))
    return "mixed", [(int(n), context(int(n)) if n else int(rng.integers(0, longest))) for n in counts]


def hide_unseen(cache, ragged) -> None:
    """Put NaN where nobody may look: slots past each sequence and blocks that belong to none.

    cache: [blocks, page_size, ...], changed in place; ragged: the arrays of `sequences_of`.
    """
    if not np.issubdtype(cache.dtype, np.floating) and cache.dtype.kind != "V":
        return
    seen = np.zeros(cache.shape[:2], bool)
    for s in range(int(ragged["num_seqs"][0])):
        position = np.arange(ragged["seq_lens"][s])
        seen[ragged["block_table"][s, position // cache.shape[1]], position % cache.shape[1]] = True
    cache[~seen] = np.nan


def limited(x, dtype):
    """x rounded for an integer type, and within what a type of 8 bits can hold."""
    if dtype == np.int8:
        return np.clip(np.rint(x), -128, 127)
    if dtype.itemsize == 1:
        top = float(ml_dtypes.finfo(dtype).max)
        return np.clip(x, -top, top)
    return x
