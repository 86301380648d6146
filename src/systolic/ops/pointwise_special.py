"""Special functions: error functions, gamma family, Bessel functions of order 0 and 1, entropies."""

from __future__ import annotations

import math

import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
from jax import lax

from .numerics import compute_float
from .registry import lower


def _digamma(x):
    # torch: -inf at 0, +inf at -0; XLA's digamma has a NaN there.
    pole = jnp.copysign(jnp.full_like(x, np.inf), -x)
    return jnp.where(x == 0, pole, lax.digamma(x))


# Terms summed one by one for a negative second argument of zeta; beyond it the tail is dropped.
_ZETA_TERMS = 4096


def _zeta(x, q):
    """Hurwitz zeta with torch's rules: NaN for x < 1, poles at q = 0, -1, ..., integers x below 0."""

    def not_positive(state):
        step, a, _ = state
        return jnp.any(a <= 0) & (step < _ZETA_TERMS)

    def add_term(state):
        step, a, total = state
        inside = a <= 0
        term = lax.pow(jnp.where(inside, a, jnp.ones_like(a)), -x)
        return step + 1, jnp.where(inside, a + 1, a), total + jnp.where(inside, term, jnp.zeros_like(term))

    _, shifted, total = lax.while_loop(not_positive, add_term, (np.int32(0), q, jnp.zeros_like(q)))
    value = total + lax.zeta(x, shifted)
    value = jnp.where((q < 0) & (x != jnp.floor(x)), jnp.full_like(q, np.nan), value)
    value = jnp.where((q <= 0) & (q == jnp.floor(q)), jnp.full_like(q, np.inf), value)
    return jnp.where(x < 1, jnp.full_like(q, np.nan), value)


def _entropy(x):
    positive = x > 0
    value = -x * jnp.log(jnp.where(positive, x, jnp.ones_like(x)))
    outside = jnp.where(x == 0, jnp.zeros_like(x), jnp.full_like(x, -np.inf))
    return jnp.where(jnp.isnan(x), x, jnp.where(positive, value, outside))


_ERFCX_STEP, _ERFCX_NODES = 0.2, 33


def _erfcx(x):
    """``exp(x*x) * erfc(x)``; from 1 on by the trapezoidal sum of 1/(pi x) exp(-t*t)/(1 + (t/x)**2)."""
    size = jnp.abs(x)
    far = jnp.maximum(size, 1)
    nodes = np.arange(_ERFCX_NODES) * _ERFCX_STEP
    weights = 2 * _ERFCX_STEP / math.pi * np.exp(-nodes * nodes)
    weights[0] *= 0.5

    def column(values):
        return jnp.asarray(values.astype(x.dtype)).reshape((-1,) + (1,) * x.ndim)

    large = jnp.sum(column(weights) / (1 + jnp.square(column(nodes) / far)), axis=0) / far
    near = jnp.minimum(size, 1)
    value = jnp.where(size < 1, jnp.exp(near * near) * lax.erfc(near), large)
    value = jnp.where(x < 0, 2 * jnp.exp(x * x) - value, value)
    return jnp.where(jnp.isnan(x), x, value)


for _name, _fn in {
    "digamma": _digamma,
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": lax.erf_inv,
    "i0": lambda x: lax.bessel_i0e(x) * jnp.exp(jnp.abs(x)),
    "lgamma": lax.lgamma,
    "special_entr": _entropy,
    "special_erfcx": _erfcx,
    "special_i0e": lax.bessel_i0e,
    "special_i1": lambda x: lax.bessel_i1e(x) * jnp.exp(jnp.abs(x)),
    "special_i1e": lax.bessel_i1e,
    "special_log_ndtr": jsp.log_ndtr,
    "special_ndtri": jsp.ndtri,
}.items():

    def _make(fn):
        return lambda self: fn(compute_float(self)[0])

    lower(_name)(_make(_fn))


@lower("polygamma")
def polygamma(n, self):
    """The n-th derivative of digamma; the first also for negative arguments, by reflection."""
    (x,) = compute_float(self)
    if n == 0:
        return _digamma(x)
    if n == 1:
        reflected = x < 0.5
        value = lax.zeta(jnp.full_like(x, 2), jnp.where(reflected, 1 - x, x))
        sine = jnp.sin(x * np.asarray(math.pi, x.dtype))
        return jnp.where(reflected, np.asarray(math.pi**2, x.dtype) / (sine * sine) - value, value)
    factor = np.asarray((-1.0) ** (n + 1) * math.factorial(n), x.dtype)
    return factor * _zeta(jnp.full_like(x, n + 1), x)


@lower("igamma")
def igamma(self, other):
    """Regularized lower incomplete gamma function P(self, other)."""
    return lax.igamma(*jnp.broadcast_arrays(*compute_float(self, other)))


@lower("igammac")
def igammac(self, other):
    """Regularized upper incomplete gamma function Q(self, other)."""
    return lax.igammac(*jnp.broadcast_arrays(*compute_float(self, other)))


@lower("special_zeta")
def zeta(self, other):
    """Hurwitz zeta function."""
    return _zeta(*jnp.broadcast_arrays(*compute_float(self, other)))


def _times_log(x, log_y, y):
    # 0 wins over an infinite logarithm, NaN in y wins over 0.
    zero = x == 0
    product = x * jnp.where(zero, jnp.ones_like(log_y), log_y)
    return jnp.where(jnp.isnan(y), y, jnp.where(zero, jnp.zeros_like(product), product))


@lower("xlogy")
def xlogy(self, other):
    """``self * log(other)``; 0 where ``self`` is 0, NaN where ``other`` is NaN."""
    x, y = compute_float(self, other)
    return _times_log(x, jnp.log(y), y)


@lower("special_xlog1py")
def xlog1py(self, other):
    """``self * log1p(other)``; 0 where ``self`` is 0, NaN where ``other`` is NaN."""
    x, y = compute_float(self, other)
    return _times_log(x, jnp.log1p(y), y)
