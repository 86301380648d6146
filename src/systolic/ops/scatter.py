"""gather and the scatter family: one index for every element, along one dimension.

Out-of-range indices follow the rule of ``indexing``: reads clamp, writes are dropped.
"""

from __future__ import annotations

import jax.numpy as jnp

from .indexing import at_dim, read_positions, write_positions
from .numerics import cast, opmath
from .registry import lower, out


def _prepared(self, dim, *others):
    """Operands with at least one dimension, and ``dim`` counted from the start."""
    x = self if self.ndim else self.reshape(1)
    return (x, dim % x.ndim, *(o if o.ndim else o.reshape(1) for o in others))


def _corner(x, shape):
    """The part of ``x`` that an index of ``shape`` covers."""
    return x[tuple(slice(0, n) for n in shape)]


@lower("gather")
def _gather(self, dim, index, sparse_grad=False):
    x, dim, i = _prepared(self, dim, index)
    if index.size == 0 or self.size == 0:
        return jnp.zeros(out().shape, self.dtype)
    rows = x[tuple(slice(None) if d == dim else slice(0, n) for d, n in enumerate(i.shape))]
    picked = jnp.take_along_axis(rows, read_positions(i, x.shape[dim]), axis=dim, mode="clip")
    return picked.reshape(out().shape)


def _grid(index, dim: int, size: int):
    """Index tuple with one array a dimension: iota, except ``index`` at ``dim``."""
    grid = []
    for d, n in enumerate(index.shape):
        if d == dim:
            grid.append(write_positions(index, size))
        else:
            grid.append(jnp.arange(n, dtype=jnp.int32).reshape((n,) + (1,) * (index.ndim - 1 - d)))
    return tuple(grid)


def _apply(x, dim: int, index, source, how: str):
    """``x`` with ``source`` written by ``how`` (a method of ``Array.at``) at ``index``."""
    if index.size == 0 or x.size == 0:
        return x
    if x.dtype == jnp.bool_:
        how = {"add": "max", "multiply": "min"}.get(how, how)
    return getattr(x.at[_grid(index, dim, x.shape[dim])], how)(source, mode="drop")


@lower("scatter")
def _scatter(self, dim, index, src=None, value=None, reduce=None):
    x, dim, i = _prepared(self, dim, index)
    if src is None:
        source = cast(value, self.dtype)
    else:
        source = _corner(cast(src, self.dtype).reshape(src.shape or (1,)), i.shape)
    how = {None: "set", "add": "add", "multiply": "multiply"}[reduce]
    return _apply(x, dim, i, source, how).reshape(self.shape)


@lower("scatter_add")
def _scatter_add(self, dim, index, src):
    wide = opmath(self.dtype)  # one rounding of the sum, whatever the number of terms
    x, dim, i, source = _prepared(self.astype(wide), dim, index, cast(cast(src, self.dtype), wide))
    return _apply(x, dim, i, _corner(source, i.shape), "add").reshape(self.shape).astype(self.dtype)


def _extreme(dtype, largest: bool):
    if dtype == jnp.bool_:
        return largest
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.inf if largest else -jnp.inf
    return jnp.iinfo(dtype).max if largest else jnp.iinfo(dtype).min


def _reduce_at(self, write, reduce: str, include_self: bool):
    """Shared body of scatter_reduce and index_reduce.

    ``write(x, source, how)`` writes by a method of ``Array.at``; a source of None stands for the
    operator's own source.
    """
    dtype = self.dtype
    how = {"sum": "add", "mean": "add", "prod": "multiply", "amax": "max", "amin": "min"}[reduce]
    start = self
    hit = None
    if not include_self:
        identity = {"add": 0, "multiply": 1, "max": _extreme(dtype, False), "min": _extreme(dtype, True)}[how]
        hit = write(jnp.zeros(self.shape, jnp.bool_), jnp.ones((), jnp.bool_), "set")
        start = jnp.where(hit, cast(identity, dtype), self)
    result = write(start.astype(opmath(dtype)) if how in ("add", "multiply") else start, None, how)
    if reduce == "mean":
        base = jnp.ones if include_self else jnp.zeros
        count = jnp.maximum(write(base(self.shape, jnp.int64), jnp.ones((), jnp.int64), "add"), 1)
        if jnp.issubdtype(dtype, jnp.integer):
            result = result // count.astype(dtype)
        else:
            result = result / count.astype(result.dtype)
    return result if hit is None else jnp.where(hit, result, self.astype(result.dtype))


@lower("scatter_reduce.two")
def _scatter_reduce(self, dim, index, src, reduce, include_self=True):
    x, dim, i, source = _prepared(self, dim, index, src)
    source = _corner(source, i.shape)

    def write(target, values, how):
        return _apply(target, dim, i, source.astype(target.dtype) if values is None else values, how)

    return _reduce_at(x, write, reduce, include_self).reshape(self.shape)


@lower("index_reduce")
def _index_reduce(self, dim, index, source, reduce, include_self=True):
    x, dim, i = _prepared(self, dim, index)
    rows = source.reshape(x.shape[:dim] + (i.shape[0],) + x.shape[dim + 1 :])
    spot = at_dim(dim, write_positions(i, x.shape[dim]))

    def write(target, values, how):
        values = rows.astype(target.dtype) if values is None else values
        return getattr(target.at[spot], how)(values, mode="drop")

    return _reduce_at(x, write, reduce, include_self).reshape(self.shape)
