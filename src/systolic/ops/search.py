"""Searching and counting: searchsorted, bucketize, histc, bincount, nonzero_static."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .numerics import cast, result_dtype
from .registry import lower, out


def _search(boundaries, values, right: bool):
    """Insertion points in each sorted row; boundaries ``[..., n]``, values ``[..., m]``."""
    side = "right" if right else "left"
    if boundaries.shape[-1] == 0 or values.size == 0:
        return jnp.zeros(values.shape, jnp.int64)
    rows = boundaries.reshape(-1, boundaries.shape[-1])
    queries = values.reshape(rows.shape[0], -1)
    found = jax.vmap(lambda row, query: jnp.searchsorted(row, query, side=side))(rows, queries)
    return found.reshape(values.shape)


@lower("searchsorted")
def _searchsorted(sorted_sequence, self, out_int32=False, right=False, side=None, sorter=None):
    dtype = result_dtype(sorted_sequence, self)
    sequence = sorted_sequence
    if sorter is not None:
        sequence = jnp.take_along_axis(sequence, sorter, axis=-1)
    sequence, values = sequence.astype(dtype), cast(self, dtype)
    right = right or side == "right"
    if sequence.ndim == 1:
        return _search(sequence, values.reshape(-1), right).reshape(out().shape)
    return _search(sequence, values, right)


@lower("bucketize")
def _bucketize(self, boundaries, out_int32=False, right=False):
    if boundaries.ndim != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.ndim})")
    dtype = result_dtype(boundaries, self)
    values = cast(self, dtype)
    return _search(boundaries.astype(dtype), values.reshape(-1), right).reshape(out().shape)


@lower("histc")
def _histc(self, bins=100, min=0, max=0):
    x = self.reshape(-1)
    low, high = cast(min, self.dtype), cast(max, self.dtype)
    if x.size:
        automatic = low == high
        low = jnp.where(automatic, jnp.min(x), low)
        high = jnp.where(automatic, jnp.max(x), high)
    flat = low == high
    one = jnp.ones((), self.dtype)
    low, high = jnp.where(flat, low - one, low), jnp.where(flat, high + one, high)
    bin_ = ((x - low) / (high - low) * cast(bins, self.dtype)).astype(jnp.int64)
    bin_ = jnp.where(x == high, bins - 1, jnp.minimum(bin_, bins - 1))
    bin_ = jnp.where((x >= low) & (x <= high), bin_, bins)
    return jnp.zeros((bins,), self.dtype).at[bin_].add(one, mode="drop")


@lower("bincount")
def _bincount(self, weights=None, minlength=0):
    spec = out()
    amounts = jnp.ones((), spec.dtype) if weights is None else cast(weights, spec.dtype)
    return jnp.zeros(spec.shape, spec.dtype).at[self.astype(jnp.int64)].add(amounts, mode="drop")


@lower("nonzero_static")
def _nonzero_static(self, size, fill_value=-1):
    if self.size == 0:
        return jnp.full(out().shape, fill_value, jnp.int64)
    x = self if self.ndim else self.reshape(1)
    found = jnp.nonzero(x, size=size, fill_value=fill_value)
    return jnp.stack(found[: out().shape[1]], -1) if out().shape[1] else jnp.zeros(out().shape, jnp.int64)
