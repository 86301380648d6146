"""Bessel functions of the first and second kind, the modified ones, and Airy's function.

Everything is made of the power series for small arguments and, for large ones, of the integral

    K_v(z) = exp(-z) sqrt(2/z) * integral over s > 0 of exp(-s^2) cosh(v t) / sqrt(1 + s^2/(2z)) ds,
    t = 2 asinh(s / sqrt(2z)),

whose trapezoidal sum converges exponentially: the steps below give double precision from |z| = 1 for
real z, and from |z| = 2 for imaginary z, which is where J, Y and Airy's function for negative
arguments need it.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from .numerics import compute_float
from .registry import lower

_STEP, _NODES = 0.2, 33
_TERMS = 20  # of a power series in x^2/4 at x = 2
_EULER = 0.57721566490153286


def _integral(inverse, factor):
    """The integral of the module docstring for z = 1/``inverse``, with ``factor(s*s/z)`` in place of the cosh."""
    nodes = np.arange(_NODES) * _STEP
    weights = _STEP * np.exp(-nodes * nodes)
    weights[0] *= 0.5
    kind = inverse.real.dtype

    def column(values):
        return jnp.asarray(values.astype(kind)).reshape((-1,) + (1,) * inverse.ndim)

    w = column(nodes * nodes) * inverse
    return jnp.sum(column(weights) * factor(w) / jnp.sqrt(1 + 0.5 * w), axis=0)


def _imaginary(x):
    """1/(-i x): where K gives the oscillating functions."""
    return lax.complex(jnp.zeros_like(x), 1 / x)


def _one(w):
    return jnp.ones_like(w)


def _first(w):
    return 1 + w


def _third(w):
    """cosh(t/3) where cosh(t) = 1 + w, that is t = 2 asinh(sqrt(w/2))."""
    root = jnp.sqrt(0.5 * w)
    power = jnp.exp(2.0 / 3.0 * jnp.log(root + jnp.sqrt(1 + 0.5 * w)))
    return 0.5 * (power + 1 / power)


def _series(x, sign: int, order: int):
    """Sums over k of u^k / (k! (k+order)!), and the same times psi(k+1) + psi(k+order+1); u = sign x^2/4."""
    u = sign * 0.25 * x * x
    harmonic, shifted = 0.0, sum(1.0 / i for i in range(1, order + 1))
    term = jnp.full_like(x, 1.0 / math.factorial(order))
    plain, weighted = term, term * (shifted - 2 * _EULER)
    for k in range(1, _TERMS):
        harmonic, shifted = harmonic + 1.0 / k, shifted + 1.0 / (k + order)
        term = term * u / (k * (k + order))
        plain = plain + term
        weighted = weighted + term * (harmonic + shifted - 2 * _EULER)
    return plain, weighted


def _split(x, limit: float):
    """(x where it is small, x where it is large, which is which); the other places get the limit."""
    small = x <= limit
    edge = jnp.full_like(x, limit)
    return jnp.where(small, x, edge), jnp.where(small, edge, x), small


def _k(order: int, scaled: bool):
    """K of order 0 or 1; with ``scaled`` times exp(x)."""

    def function(x):
        near, far, small = _split(x, 2.0)
        large = jnp.sqrt(2 / far) * _integral(1 / far, _first if order else _one)
        large = large if scaled else large * jnp.exp(-far)
        plain, weighted = _series(near, 1, order)
        log = jnp.log(0.5 * near)
        if order:
            series = 1 / near + 0.5 * near * (log * plain - 0.5 * weighted)
        else:
            series = 0.5 * weighted - log * plain
        value = jnp.where(small, series * jnp.exp(near) if scaled else series, large)
        value = jnp.where(x == 0, np.asarray(np.inf, x.dtype), value)
        return jnp.where(x < 0, np.asarray(np.nan, x.dtype), value)

    return function


def _hankel(order: int, x):
    """(J, Y) of order 0 or 1 for ``x`` of at least 2, from K at the imaginary argument."""
    sums = _integral(_imaginary(x), _first if order else _one)
    # sin and cos of x - (2 order + 1) pi / 4, without rounding the difference
    cos, sin = jnp.cos(x), jnp.sin(x)
    turn = math.sqrt(0.5)
    c, s = ((sin - cos) * turn, -(sin + cos) * turn) if order else ((cos + sin) * turn, (sin - cos) * turn)
    size = 2 * jnp.sqrt(2 / x) / math.pi
    return size * (c * sums.real - s * sums.imag), size * (s * sums.real + c * sums.imag)


def _j(order: int):
    def function(x):
        near, far, small = _split(jnp.abs(x), 2.0)
        plain, _ = _series(near, -1, order)
        series = 0.5 * near * plain if order else plain
        value = jnp.where(small, series, _hankel(order, far)[0])
        value = jnp.where(jnp.isinf(x), jnp.zeros_like(x), value)
        return jnp.where(x < 0, -value, value) if order else value

    return function


def _y(order: int):
    def function(x):
        near, far, small = _split(x, 2.0)
        plain, weighted = _series(near, -1, order)
        log = jnp.log(0.5 * near)
        if order:
            series = (0.5 * near * (2 * log * plain - weighted) - 2 / near) / math.pi
        else:
            series = (2 * log * plain - weighted) / math.pi
        value = jnp.where(small, series, _hankel(order, far)[1])
        value = jnp.where(jnp.isposinf(x), jnp.zeros_like(x), value)
        value = jnp.where(x == 0, np.asarray(-np.inf, x.dtype), value)
        return jnp.where(x < 0, np.asarray(np.nan, x.dtype), value)

    return function


_AI_0, _AI_SLOPE = 0.35502805388781724, 0.25881940379280680  # Ai(0) and -Ai'(0)
_AIRY_LIMIT = 2.1  # 2/3 * 2.1**1.5 is 2


def _airy_ai(x):
    size = jnp.abs(x)
    near, far, small = _split(size, _AIRY_LIMIT)
    cube = jnp.where(x < 0, -near, near) ** 3
    even, odd = jnp.ones_like(x), jnp.where(x < 0, -near, near)
    series = _AI_0 * even - _AI_SLOPE * odd
    for k in range(1, _TERMS):
        even = even * cube / ((3 * k - 1) * (3 * k))
        odd = odd * cube / ((3 * k) * (3 * k + 1))
        series = series + _AI_0 * even - _AI_SLOPE * odd
    zeta = far * jnp.sqrt(far) * (2.0 / 3.0)
    scale = jnp.sqrt(far / 3) * jnp.sqrt(2 / zeta) / math.pi
    decaying = scale * jnp.exp(-zeta) * _integral(1 / zeta, _third)
    sums = _integral(_imaginary(zeta), _third)
    cos, sin, turn = jnp.cos(zeta), jnp.sin(zeta), math.sqrt(0.5)
    c, s = (cos + sin) * turn, (sin - cos) * turn  # of zeta - pi/4
    waving = 2 * scale * (c * sums.real - s * sums.imag)
    value = jnp.where(small, series, jnp.where(x < 0, waving, decaying))
    return jnp.where(jnp.isposinf(x), jnp.zeros_like(x), value)


def _spherical_j0(x):
    zero = x == 0
    value = jnp.sin(x) / jnp.where(zero, jnp.ones_like(x), x)
    return jnp.where(zero, jnp.ones_like(x), jnp.where(jnp.isinf(x), jnp.zeros_like(x), value))


def _register(name: str, function, argument: str) -> None:
    lower(f"special_{name}")(lambda **arguments: function(compute_float(arguments[argument])[0]))


_register("bessel_j0", _j(0), "self")
_register("bessel_j1", _j(1), "self")
_register("bessel_y0", _y(0), "self")
_register("bessel_y1", _y(1), "self")
_register("modified_bessel_i0", lambda x: lax.bessel_i0e(x) * jnp.exp(jnp.abs(x)), "self")
_register("modified_bessel_i1", lambda x: lax.bessel_i1e(x) * jnp.exp(jnp.abs(x)), "self")
_register("modified_bessel_k0", _k(0, scaled=False), "self")
_register("modified_bessel_k1", _k(1, scaled=False), "self")
_register("scaled_modified_bessel_k0", _k(0, scaled=True), "x")
_register("scaled_modified_bessel_k1", _k(1, scaled=True), "x")
_register("airy_ai", _airy_ai, "x")
_register("spherical_bessel_j0", _spherical_j0, "x")
