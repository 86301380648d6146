"""Reductions: sums, products, extrema, truth tests, moments and norms.

16-bit floats are accumulated in float32.  ``dim`` arguments may be None, a number or a list, with
negatives; a reduction over no listed dimension is over all.  Results are given the shape that
:func:`registry.out` names, which takes care of ``keepdim`` and of 0-d inputs.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from .numerics import canonical_dims, cast, is_complex, is_float, opmath, promote
from .registry import lower, out


def _accumulator(index: int = 0) -> np.dtype:
    return opmath(out(index).dtype)


def _shaped(x, index: int = 0):
    return x.reshape(out(index).shape)


def _count(x, dims) -> int:
    return math.prod(x.shape[d] for d in dims)


@lower("sum")
def sum_(self, dim=None, keepdim=False, dtype=None):
    """Sum; booleans and integers give int64 unless ``dtype`` says otherwise."""
    x = cast(cast(self, dtype) if dtype is not None else self, _accumulator())
    if x.dtype == np.bool_:
        return _shaped(jnp.any(x, axis=canonical_dims(dim, self.ndim)))
    return _shaped(jnp.sum(x, axis=canonical_dims(dim, self.ndim)))


@lower("nansum")
def nansum(self, dim=None, keepdim=False, dtype=None):
    """Sum with NaN counted as 0."""
    x = cast(cast(self, dtype) if dtype is not None else self, _accumulator())
    if is_float(x):
        x = jnp.where(jnp.isnan(x), jnp.zeros_like(x), x)
    return _shaped(jnp.sum(x, axis=canonical_dims(dim, self.ndim)))


@lower("mean")
def mean(self, dim=None, keepdim=False, dtype=None):
    dims = canonical_dims(dim, self.ndim)
    x = cast(cast(self, dtype) if dtype is not None else self, _accumulator())
    return _shaped(jnp.sum(x, axis=dims) / np.asarray(_count(x, dims), x.dtype))


@lower("prod")
def prod(self, dim=None, keepdim=False, dtype=None):
    """Product; booleans and integers give int64 unless ``dtype`` says otherwise."""
    x = cast(cast(self, dtype) if dtype is not None else self, _accumulator())
    if x.dtype == np.bool_:
        return _shaped(jnp.all(x, axis=canonical_dims(dim, self.ndim)))
    return _shaped(jnp.prod(x, axis=canonical_dims(dim, self.ndim)))


@lower("amax")
def amax(self, dim=(), keepdim=False):
    """Largest value; NaN wins."""
    return _shaped(jnp.max(self, axis=canonical_dims(dim, self.ndim)))


@lower("amin")
def amin(self, dim=(), keepdim=False):
    """Smallest value; NaN wins."""
    return _shaped(jnp.min(self, axis=canonical_dims(dim, self.ndim)))


@lower("aminmax", "_aminmax")
def aminmax(self, dim=None, keepdim=False):
    dims = canonical_dims(dim, self.ndim)
    return _shaped(jnp.min(self, axis=dims), 0), _shaped(jnp.max(self, axis=dims), 1)


def _position(self, dim, find):
    """Index (int64) of an extremum along ``dim``, or in the flattened tensor for None."""
    if self.dtype == np.bool_:
        self = self.astype(np.int8)
    if dim is None or self.ndim == 0:
        self, dim = self.reshape(-1), 0
    return find(self, dim % self.ndim, np.int64)


@lower("argmax")
def argmax(self, dim=None, keepdim=False):
    """Index of the first largest value; the first NaN if there is one."""
    return _shaped(_position(self, dim, lax.argmax))


@lower("argmin")
def argmin(self, dim=None, keepdim=False):
    """Index of the first smallest value; the first NaN if there is one."""
    return _shaped(_position(self, dim, lax.argmin))


def _extremum(self, dim, other, values, find, pairwise):
    if other is not None:
        return pairwise(self, other)
    if dim is None:
        return _shaped(values(self))
    chosen = values(self, axis=canonical_dims(dim, self.ndim))
    return _shaped(chosen, 0), _shaped(_position(self, dim, find), 1)


@lower("max")
def max_(self, dim=None, keepdim=False, other=None):
    """Of all, of two tensors (``other``), or values and first indices along ``dim``."""
    return _extremum(self, dim, other, jnp.max, lax.argmax, _promoted(jnp.maximum))


@lower("min")
def min_(self, dim=None, keepdim=False, other=None):
    """Of all, of two tensors (``other``), or values and first indices along ``dim``."""
    return _extremum(self, dim, other, jnp.min, lax.argmin, _promoted(jnp.minimum))


def _promoted(fn):
    return lambda a, b: fn(*promote(a, b))


def _nonzero(x):
    return x if x.dtype == np.bool_ else x != jnp.zeros_like(x)


@lower("any", "_is_any_true")
def any_(self, dim=None, keepdim=False):
    return _shaped(jnp.any(_nonzero(self), axis=_truth_dims(dim, self)))


@lower("all", "_is_all_true")
def all_(self, dim=None, keepdim=False):
    return _shaped(jnp.all(_nonzero(self), axis=_truth_dims(dim, self)))


def _truth_dims(dim, x):
    # any.dims and all.dims differ from the other reductions: an empty list reduces nothing.
    return () if isinstance(dim, (list, tuple)) and not dim else canonical_dims(dim, x.ndim)


@lower("count_nonzero")
def count_nonzero(self, dim=None):
    return _shaped(jnp.sum(_nonzero(self), axis=canonical_dims(dim, self.ndim), dtype=np.int64))


def _moments(self, dim, correction):
    """Variance with ``correction`` degrees of freedom taken off, and mean, over ``dim``."""
    dims = canonical_dims(dim, self.ndim)
    x = self.astype(opmath(self.dtype))
    count = _count(x, dims)
    centre = jnp.sum(x, axis=dims, keepdims=True) / np.asarray(count, x.dtype)
    spread = x - centre
    squares = spread.real**2 + spread.imag**2 if is_complex(x) else spread * spread
    total = jnp.sum(squares, axis=dims)
    degrees = cast(float(count), total.dtype) - cast(1 if correction is None else correction, total.dtype)
    return total / jnp.maximum(degrees, jnp.zeros_like(degrees)), centre


@lower("var")
def var(self, dim=None, correction=None, keepdim=False):
    """Variance; ``correction`` defaults to 1, and too few values give NaN or infinity."""
    return _shaped(_moments(self, dim, correction)[0])


@lower("std")
def std(self, dim=None, correction=None, keepdim=False):
    return _shaped(jnp.sqrt(_moments(self, dim, correction)[0]))


@lower("var_mean")
def var_mean(self, dim=None, correction=None, keepdim=False):
    variance, centre = _moments(self, dim, correction)
    return _shaped(variance, 0), _shaped(centre, 1)


@lower("std_mean")
def std_mean(self, dim=None, correction=None, keepdim=False):
    variance, centre = _moments(self, dim, correction)
    return _shaped(jnp.sqrt(variance), 0), _shaped(centre, 1)


def _magnitudes(self, dtype):
    x = cast(self, dtype) if dtype is not None else self
    return jnp.abs(x.astype(opmath(x.dtype)))


@lower("linalg_vector_norm", static_scalars=True)
def vector_norm(self, ord=2, dim=None, keepdim=False, dtype=None):
    """The ``ord``-norm of the magnitudes; 0 counts non-zeros, infinities give the extremum."""
    x, dims = _magnitudes(self, dtype), canonical_dims(dim, self.ndim)
    if ord == 0:
        return _shaped(jnp.sum(x != 0, axis=dims))
    if ord in (math.inf, -math.inf):
        # The norm over no elements is 0 for +inf; torch refuses -inf there before it comes here.
        return _shaped(
            jnp.max(x, axis=dims, initial=0) if ord > 0 else jnp.min(x, axis=dims, initial=math.inf)
        )
    total = _power_sum(x, ord, dims)
    if ord == 1:
        return _shaped(total)
    return _shaped(jnp.sqrt(total) if ord == 2 else total ** np.asarray(1 / ord, total.dtype))


def _power_sum(x, ord, dims):
    if ord == 1:
        return jnp.sum(x, axis=dims)
    return jnp.sum(x * x if ord == 2 else x ** np.asarray(ord, x.dtype), axis=dims)


@lower("linalg__powsum", static_scalars=True)
def power_sum(self, ord=2, dim=None, keepdim=False, dtype=None):
    """Sum of the magnitudes raised to ``ord``."""
    return _shaped(_power_sum(_magnitudes(self, dtype), ord, canonical_dims(dim, self.ndim)))


@lower("norm", static_scalars=True)
def norm(self, p=2, dim=None, keepdim=False, dtype=None):
    return vector_norm(self, 2 if p is None else p, dim, keepdim, dtype)


@lower("logsumexp")
def logsumexp(self, dim, keepdim=False):
    """Log of the sum of exponentials, stable; rows of only -inf, or of nothing, give -inf."""
    dims = canonical_dims(dim, self.ndim)
    x = cast(self, _accumulator())
    if 0 in x.shape:
        return _shaped(jnp.log(jnp.sum(jnp.exp(x), axis=dims)))
    top = jnp.max(x.real, axis=dims, keepdims=True)
    top = jnp.where(jnp.isinf(top), jnp.zeros_like(top), top).astype(x.dtype)
    return _shaped(jnp.log(jnp.sum(jnp.exp(x - top), axis=dims, keepdims=True)) + top)


@lower("hash_tensor")
def _hash_tensor(self, dim=(), keepdim=False, mode=0):
    """The exclusive or of the elements' bits, of floats as float64 and of integers as int64: uint64."""
    wide = np.float64 if is_float(self) else np.int64
    bits = lax.bitcast_convert_type(self.astype(wide), np.uint64)
    if self.size == 0:
        return jnp.zeros(out().shape, np.uint64)
    dims = canonical_dims(dim, self.ndim)
    return lax.reduce(bits, np.uint64(0), lax.bitwise_xor, dims).reshape(out().shape)
