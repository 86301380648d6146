"""Operators that order values: sort, topk, kthvalue, median and mode.

NaN counts as the largest value.  Where PyTorch leaves the index among equal values open, equal
values keep the order of their indices: topk names the lowest ones, kthvalue and median the index
that a stable sort puts at their position.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from .numerics import is_float, opmath
from .registry import lower, out


def _rows(x, dim):
    """``x`` with ``dim`` moved last; a 0-d tensor becomes one element."""
    return x.reshape(1) if x.ndim == 0 else jnp.moveaxis(x, dim, -1)


def _results(dim, *rows):
    """Undo :func:`_rows` for each result."""
    return tuple(
        jnp.moveaxis(x, -1, dim) if out(index).shape else x.reshape(()) for index, x in enumerate(rows)
    )


def _index_dtype(size: int) -> np.dtype:
    return np.dtype(np.int32 if size < 2**31 else np.int64)


def _sort_pairs(x):
    """Stable sort of (value, position) pairs."""
    positions = lax.broadcasted_iota(_index_dtype(x.shape[-1]), x.shape, x.ndim - 1)
    return lax.sort((x, positions), dimension=x.ndim - 1, is_stable=True, num_keys=1)


def _sort_packed(x):
    """The same for types of at most 32 bits: value and position in one integer of 64 bits.

    XLA:CPU sorts one integer operand about four times as fast as pairs of a float and an index.
    """
    if is_float(x):
        # On the bits, not the floats: XLA:CPU compares subnormal floats as zeros.
        bits = lax.bitcast_convert_type(x.astype(np.float32), np.int32)
        magnitude = bits & np.int32(0x7FFFFFFF)
        bits = jnp.where((magnitude == 0) | (magnitude > 0x7F800000), magnitude, bits)
        # Flipping the magnitude bits of negative floats makes their order that of integers.
        key = (bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))).astype(np.int64)
    else:
        key = x.astype(np.int64) - (2**31 if x.dtype == np.uint32 else 0)
    positions = lax.broadcasted_iota(np.int64, x.shape, x.ndim - 1)
    ordered = lax.sort((key << 32) | positions, dimension=x.ndim - 1, is_stable=False)
    order = (ordered & 0xFFFFFFFF).astype(_index_dtype(x.shape[-1]))
    return jnp.take_along_axis(x, order, axis=-1, mode="promise_in_bounds"), order


def _sort_rows(x):
    """Values and positions of the last dimension in ascending stable order, NaN last."""
    key = x.astype(np.uint8) if x.dtype == np.bool_ else x
    if x.dtype.itemsize > 4 or x.shape[-1] >= 2**31:
        values, order = _sort_pairs(key)
    else:  # accelerators have no 64-bit integer units
        values, order = lax.platform_dependent(key, cpu=_sort_packed, default=_sort_pairs)
    return values.astype(x.dtype), order


@lower("sort")
def sort(self, dim=-1, descending=False, stable=False):
    """Values and indices (int64); always stable.  NaN comes last, or first when descending."""
    x = _rows(self, dim)
    if descending:
        # Sorting the reversed row and reversing the result keeps equal values in their order.
        values, order = _sort_rows(jnp.flip(x, -1))
        return _results(dim, jnp.flip(values, -1), x.shape[-1] - 1 - jnp.flip(order, -1))
    return _results(dim, *_sort_rows(x))


@lower("topk")
def topk(self, k, dim=-1, largest=True, sorted=True):
    """The ``k`` largest (or smallest) values in order, with indices; ties by the lowest index."""
    x = _rows(self, dim)
    if is_float(x):
        key = x.astype(opmath(x.dtype))
        # XLA orders NaN by its sign bit, so the bit is set to put NaN first, or last for the smallest.
        nan = np.copysign(np.asarray(np.nan, key.dtype), 1 if largest else -1)
        key = jnp.where(jnp.isnan(key), nan, key if largest else -key)
    else:
        key = x.astype(np.uint8) if x.dtype == np.bool_ else x
        key = key if largest else ~key
    _, order = lax.top_k(key, k)
    values = jnp.take_along_axis(x, order, axis=-1, mode="promise_in_bounds")
    return _results(dim, values, order)


def _pick(values, order, position):
    """Values and indices at ``position`` of each sorted row, in the shapes of the results."""
    position = jnp.broadcast_to(jnp.asarray(position, order.dtype), values.shape[:-1])[..., None]
    picked = [jnp.take_along_axis(a, position, axis=-1, mode="promise_in_bounds") for a in (values, order)]
    return picked[0].reshape(out(0).shape), picked[1].reshape(out(1).shape)


@lower("kthvalue")
def kthvalue(self, k, dim=-1, keepdim=False):
    """The ``k``-th smallest value (``k`` from 1) and its index."""
    return _pick(*_sort_rows(_rows(self, dim)), k - 1)


def _nan_count(x):
    if not is_float(x):
        return jnp.zeros(x.shape[:-1], np.int32)
    return jnp.sum(jnp.isnan(x), axis=-1, dtype=np.int32)


@lower("median")
def median(self, dim=None, keepdim=False):
    """Lower median, of all values or (with indices) along ``dim``; NaN if there is any NaN."""
    return _median(self, dim, ignore_nan=False)


@lower("nanmedian")
def nanmedian(self, dim=None, keepdim=False):
    """Lower median of what is not NaN; NaN only where nothing else is left."""
    return _median(self, dim, ignore_nan=True)


def _median(self, dim, ignore_nan):
    if dim is None and self.size == 0:  # torch: NaN, or the smallest integer
        return jnp.full((), np.nan if is_float(self) else np.iinfo(self.dtype).min, self.dtype)
    x = self.reshape(-1) if dim is None else _rows(self, dim)
    size = x.shape[-1]
    values, order = _sort_rows(x)
    present = size - _nan_count(x)
    if ignore_nan:
        position = jnp.maximum((present - 1) // 2, 0)
    else:  # the first NaN follows the last number
        position = jnp.where(present < size, present, (size - 1) // 2)
    if dim is None:
        return values[position]
    return _pick(values, order, position)


@lower("mode")
def mode(self, dim=-1, keepdim=False):
    """Most frequent value (the smallest of equals) and the index of its last occurrence."""
    x = _rows(self, dim)
    values, order = _sort_rows(x)
    place = lax.broadcasted_iota(order.dtype, values.shape, values.ndim - 1)
    starts = jnp.concatenate(
        [jnp.ones_like(values[..., :1], np.bool_), values[..., 1:] != values[..., :-1]], axis=-1
    )
    run_start = lax.cummax(jnp.where(starts, place, jnp.zeros_like(place)), axis=values.ndim - 1)
    # The run length is largest at the end of the longest run; argmax takes the first such run.
    last = lax.argmax(place - run_start, values.ndim - 1, order.dtype)
    return _pick(values, order, last)
