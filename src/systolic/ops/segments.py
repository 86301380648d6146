"""Reductions over consecutive segments of a dimension (``segment_reduce``) and their gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .numerics import cast, opmath
from .registry import lower, out

_START = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -np.inf, "min": np.inf}


def _segments(lengths, offsets, axis: int, size: int):
    """(segment of each position, length of each segment), batched over the dimensions before ``axis``.

    Positions behind the last segment get the number of segments, which a scatter drops.
    """
    if offsets is None:
        ends = jnp.cumsum(lengths.astype(jnp.int64), axis=-1)
        starts = ends - lengths
    else:
        starts, ends = offsets[..., :-1].astype(jnp.int64), offsets[..., 1:].astype(jnp.int64)
    place = jnp.arange(size)
    flat = ends.reshape(-1, ends.shape[-1])
    ids = jax.vmap(lambda e: jnp.searchsorted(e, place, side="right"))(flat)
    return ids, (ends - starts).reshape(flat.shape)


def _rows(x, axis: int):
    """``x`` as [batch, axis, rest]."""
    return x.reshape((int(np.prod(x.shape[:axis])), x.shape[axis], -1))


def _scatter(values, ids, count: int, how: str, start):
    """Reduce ``values`` [batch, n, rest] into [batch, count, rest]."""

    def one(rows, segment):
        spot = jnp.full((count, rows.shape[1]), start, rows.dtype).at[segment]
        return getattr(spot, {"sum": "add", "mean": "add", "prod": "mul"}.get(how, how))(rows, mode="drop")

    return jax.vmap(one)(values, ids)


@lower("segment_reduce", static_scalars=True)
def _segment_reduce(
    data, reduce, lengths=None, indices=None, offsets=None, axis=0, unsafe=False, initial=None
):
    """``data`` with dimension ``axis`` reduced over each segment; an empty one gets ``initial``."""
    axis %= data.ndim
    count = out().shape[axis]
    x = _rows(data.astype(opmath(data.dtype)), axis)
    if x.size == 0 and count == 0:
        return jnp.zeros(out().shape, data.dtype)
    ids, sizes = _segments(lengths, offsets, axis, data.shape[axis])
    result = _scatter(x, ids, count, reduce, cast(_START[reduce] if initial is None else initial, x.dtype))
    if reduce == "mean":
        sizes = sizes[..., None]
        mean = result / jnp.maximum(sizes, 1).astype(x.dtype)
        empty = jnp.full_like(mean, np.nan) if initial is None else result
        result = jnp.where(sizes > 0, mean, empty)
    return result.reshape(out().shape)


@lower("_segment_reduce_backward", static_scalars=True)
def _segment_reduce_backward(
    grad, output, data, reduce, lengths=None, offsets=None, axis=0, initial=None
):
    axis %= data.ndim
    dtype = opmath(data.dtype)
    count = grad.shape[axis]
    if data.size == 0 or count == 0:
        return jnp.zeros(data.shape, dtype)
    x, g, y = (_rows(t.astype(dtype), axis) for t in (data, grad, output))
    ids, sizes = _segments(lengths, offsets, axis, data.shape[axis])

    def of_position(values):
        """The value of each position's segment; zero behind the last one."""
        taken = jnp.take_along_axis(values, jnp.minimum(ids, count - 1)[..., None], axis=1)
        return jnp.where((ids < count)[..., None], taken, jnp.zeros((), taken.dtype))

    if reduce == "sum":
        result = of_position(g)
    elif reduce == "mean":
        result = of_position(g / jnp.maximum(sizes, 1)[..., None].astype(dtype))
    elif reduce in ("max", "min"):
        best = of_position(y)
        hit = ((x == best) | (jnp.isnan(x) & jnp.isnan(best))).astype(dtype)
        shared = _scatter(hit, ids, count, "sum", 0)
        result = hit * of_position(g / jnp.maximum(shared, 1))
    else:
        # The product of the others, also where a factor is zero.
        zero = x == 0
        factor = jnp.where(zero, jnp.ones_like(x), x)
        start = cast(1.0 if initial is None else initial, dtype)
        product = of_position(_scatter(factor, ids, count, "prod", start)) / factor
        others = of_position(_scatter(zero.astype(dtype), ids, count, "sum", 0)) - zero
        result = jnp.where(others == 0, product, jnp.zeros((), dtype)) * of_position(g)
    return result.reshape(data.shape)
