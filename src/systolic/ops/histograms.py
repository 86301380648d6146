"""Histograms over one or several dimensions with given or equal bins.

A value on an inner edge belongs to the bin above it, one on the last edge to the last bin; values
outside of the edges do not count.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np

from .registry import lower


def _edges(values, bins: int, limits, dtype):
    """``bins + 1`` equally spaced edges over ``limits`` or over what ``values`` span."""
    if limits is not None:
        low, high = (jnp.asarray(x, dtype) for x in limits)
    elif values.size == 0:
        low, high = jnp.zeros((), dtype), jnp.ones((), dtype)
    else:
        low, high = jnp.min(values), jnp.max(values)
    same = low == high
    half = jnp.asarray(0.5, dtype)
    low, high = jnp.where(same, low - half, low), jnp.where(same, high + half, high)
    place = np.arange(bins + 1)
    step = (high - low) / bins
    # As in linspace: from both ends, so that both are exact.
    return jnp.where(place < (bins + 1) // 2, low + step * place.astype(dtype), high - step * (bins - place).astype(dtype))


def _count(columns, edges, weight, density: bool):
    """Histogram of the rows of ``columns`` (a list of vectors) over ``edges`` (a list)."""
    shape = tuple(e.shape[0] - 1 for e in edges)
    dtype = edges[0].dtype
    inside, flat = True, 0
    for x, e, n in zip(columns, edges, shape):
        place = jnp.searchsorted(e, x, side="right") - 1
        place = jnp.where(x == e[-1], n - 1, place)
        inside = inside & (x >= e[0]) & (x <= e[-1])
        flat = flat * n + jnp.clip(place, 0, max(n - 1, 0))
    amount = jnp.ones(columns[0].shape, dtype) if weight is None else weight.reshape(-1).astype(dtype)
    amount = jnp.where(inside, amount, jnp.zeros((), dtype))
    counts = jnp.zeros((math.prod(shape),), dtype).at[flat].add(amount, mode="drop").reshape(shape)
    if density:
        counts = counts / jnp.sum(counts)
        for d, e in enumerate(edges):
            width = (e[1:] - e[:-1]).reshape((-1,) + (1,) * (len(edges) - 1 - d))
            counts = counts / width
    return counts


@lower("histogram.bin_ct")
def _histogram(self, bins=100, range=None, weight=None, density=False):
    """(counts ``[bins]``, edges ``[bins + 1]``)."""
    x = self.reshape(-1)
    edges = _edges(x, bins, range, x.dtype)
    return _count([x], [edges], weight, density), edges


@lower("histogram.bins_tensor")
def _histogram_of_edges(self, bins, weight=None, density=False):
    return _count([self.reshape(-1)], [bins], weight, density), bins


def _columns(self):
    rows = self.reshape(-1, self.shape[-1])
    return [rows[:, d] for d in range(rows.shape[1])]


def _limits(limits, d: int):
    return None if limits is None else limits[2 * d : 2 * d + 2]


@lower("_histogramdd_bin_edges")
def _histogramdd_bin_edges(self, bins, range=None, weight=None, density=False):
    """Edges of each dimension of points ``[..., dimensions]``."""
    return [_edges(x, n, _limits(range, d), x.dtype) for d, (x, n) in enumerate(zip(_columns(self), bins))]


@lower("_histogramdd_from_bin_cts")
def _histogramdd_from_bin_counts(self, bins, range=None, weight=None, density=False):
    columns = _columns(self)
    edges = [_edges(x, n, _limits(range, d), x.dtype) for d, (x, n) in enumerate(zip(columns, bins))]
    return _count(columns, edges, weight, density)


@lower("_histogramdd_from_bin_tensors")
def _histogramdd_from_bin_tensors(self, bins, weight=None, density=False):
    return _count(_columns(self), list(bins), weight, density)
