"""Cumulative operators along one dimension."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from .numerics import cast, is_complex, is_float, opmath
from .pointwise_binary import log_add_exp
from .registry import lower, out


def _scan(x, dim, scan):
    """Apply ``scan(x, axis)``; a 0-d tensor counts as one element."""
    if x.ndim == 0:
        return scan(x.reshape(1), 0).reshape(())
    return scan(x, dim % x.ndim)


@lower("cumsum")
def cumsum(self, dim, dtype=None):
    """Cumulative sum; booleans and integers give int64 unless ``dtype`` says otherwise."""
    x = cast(cast(self, dtype) if dtype is not None else self, opmath(out(0).dtype))
    return _scan(x, dim, lax.cumsum)


@lower("cumprod")
def cumprod(self, dim, dtype=None):
    """Cumulative product; booleans and integers give int64 unless ``dtype`` says otherwise."""
    x = cast(cast(self, dtype) if dtype is not None else self, opmath(out(0).dtype))
    return _scan(x, dim, lax.cumprod)


@lower("logcumsumexp", "_logcumsumexp")
def logcumsumexp(self, dim):
    x = cast(self, opmath(out(0).dtype))
    if is_complex(x):
        return _scan(x, dim, lambda x, axis: lax.associative_scan(log_add_exp, x, axis=axis))
    return _scan(x, dim, lax.cumlogsumexp)


def _running_extremum(self, dim, not_worse):
    """Running extremum and the index where it was last met; NaN wins over all that follows."""
    if self.ndim == 0:
        return self, jnp.zeros((), np.int64)
    if self.size == 0:
        return self, jnp.zeros(self.shape, np.int64)
    dim = dim % self.ndim

    def later_wins(left, right):
        (a, i), (b, j) = left, right
        take = not_worse(b, a)
        if is_float(a):
            take = jnp.isnan(b) | (~jnp.isnan(a) & take)
        return jnp.where(take, b, a), jnp.where(take, j, i)

    positions = lax.broadcasted_iota(np.int64, self.shape, dim)
    return lax.associative_scan(later_wins, (self, positions), axis=dim)


@lower("cummax")
def cummax(self, dim):
    """Running maximum and indices (int64); the last of equal values is named."""
    return _running_extremum(self, dim, jnp.greater_equal)


@lower("cummin")
def cummin(self, dim):
    """Running minimum and indices (int64); the last of equal values is named."""
    return _running_extremum(self, dim, jnp.less_equal)
