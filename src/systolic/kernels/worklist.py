"""Work lists of ragged kernels: which owner an item of work belongs to, and which segments are in a block of rows."""

from __future__ import annotations

import jax.numpy as jnp


def spread(counts, size: int):
    """Owner and rank within the owner of items 0..size-1, where owner s has counts[s] items; and the total.

    counts: int32 [owners].  Items beyond the total go to the last owner.  All results are int32.
    """
    ends = jnp.cumsum(counts, dtype=jnp.int32)
    item = jnp.arange(size, dtype=jnp.int32)
    owner = jnp.searchsorted(ends, item, side="right").astype(jnp.int32)
    owner = jnp.minimum(owner, counts.shape[0] - 1)
    return owner, item - (ends - counts)[owner], ends[-1]


def visits_of(sizes, rows: int, block: int):
    """Visits of the segments that share ``rows`` rows one after the other: one for each segment in each block of rows.

    sizes: int32 [segments].  The rows beyond the last one are a segment of their own, with the number ``segments``.

    Returns (segment, block, start, stop, rank, total), int32, the first five with one entry a visit: the segment, the
    block, the segment's rows in it, how many of the segment's visits come before; and the number of visits, which
    is positive where ``rows`` is.  Entries beyond it mean nothing.
    """
    segments = sizes.shape[0]
    end = jnp.sum(sizes, dtype=jnp.int32)
    sizes = jnp.concatenate([sizes, (rows - end)[None]]).astype(jnp.int32)
    starts = jnp.cumsum(sizes, dtype=jnp.int32) - sizes
    counts = jnp.where(sizes > 0, (starts + sizes - 1) // block - starts // block + 1, 0)
    segment, rank, total = spread(counts, -(-rows // block) + segments)
    at = starts[segment] // block + rank
    start = jnp.maximum(starts[segment] - at * block, 0)
    stop = jnp.minimum(starts[segment] + sizes[segment] - at * block, block)
    return segment, at, start, stop, rank, total
