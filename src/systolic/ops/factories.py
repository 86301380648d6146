"""Operators that make tensors from numbers.  The result's shape and dtype come from ``out()``;
dtype, layout, device, pin_memory and memory_format arguments have done their work by then."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from .numerics import cast
from .registry import lower, out


def filled(value):
    """The result of the current operator with every element equal to ``value``."""
    return jnp.broadcast_to(cast(value, out().dtype), out().shape)


@lower("zeros", "zeros_like", "new_zeros", "zero", "empty_like", "new_empty", "new_empty_strided")
def _zeros(**_):
    return filled(0)


@lower("empty", "empty_strided", "empty_permuted", view=True)
def _empty(**_):
    return filled(0)


@lower("ones", "ones_like", "new_ones")
def _ones(**_):
    return filled(1)


@lower("full", "full_like", "new_full")
def _full(fill_value, **_):
    return filled(fill_value)


@lower("fill")
def _fill(self, value):
    return filled(value)


@lower("scalar_tensor")
def _scalar_tensor(s, **_):
    return filled(s)


def _accumulator(dtype) -> np.dtype:
    """The type in which ATen's CPU kernel computes a range of ``dtype``."""
    if jnp.issubdtype(dtype, jnp.floating):
        return np.dtype(np.float64)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return np.dtype(np.complex128)
    return np.dtype(np.int64)


@lower("arange", "range", static_scalars=True)  # the result's size depends on them
def _arange(start=0, step=1, **_):
    dtype = _accumulator(out().dtype)
    count = jnp.arange(out().shape[0], dtype=np.int64)
    return cast(cast(start, dtype) + cast(step, dtype) * cast(count, dtype), out().dtype)


def _spaced(start, end, transform=lambda x: x):
    """``steps`` values from start to end, counted from both ends as ATen's CPU kernel does."""
    steps, dtype = out().shape[0], out().dtype
    wide = dtype if jnp.issubdtype(dtype, jnp.inexact) else np.dtype(np.float64)
    wide = np.dtype(np.float32) if wide.itemsize == 2 else wide
    first, last = cast(cast(start, dtype), wide), cast(cast(end, dtype), wide)
    count = jnp.arange(steps, dtype=np.int64)
    step = (last - first) / cast(max(steps - 1, 1), wide)
    rising = first + step * cast(count, wide)
    falling = last - step * cast(steps - 1 - count, wide)
    use_rising = count < steps // 2 if steps > 1 else count >= 0
    return transform(jnp.where(use_rising, rising, falling))


@lower("linspace")
def _linspace(start, end, steps, **_):
    return _spaced(start, end)


@lower("logspace")
def _logspace(start, end, steps, base=10.0, **_):
    return _spaced(start, end, lambda x: jnp.power(cast(base, x.dtype), x))


@lower("eye")
def _eye(**_):
    rows, columns = out().shape
    return cast(jnp.arange(rows)[:, None] == jnp.arange(columns), out().dtype)


@lower("tril_indices")
def _tril_indices(row, col, offset=0, **_):
    return jnp.asarray(np.stack(np.tril_indices(row, offset, col)))


@lower("triu_indices")
def _triu_indices(row, col, offset=0, **_):
    return jnp.asarray(np.stack(np.triu_indices(row, offset, col)))
