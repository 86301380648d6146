"""Work lists of ragged kernels: which owner an item of work belongs to."""

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
