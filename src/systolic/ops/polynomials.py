"""Orthogonal polynomials: their three-term recurrences, and closed forms where those lose no accuracy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from .numerics import compute_float
from .registry import lower


def _recurrence(x, n, first, step):
    """The polynomial of degree ``n`` (an array of x's shape): 1, ``first``, then ``step(k, p_k, p_k-1)``."""
    highest = jnp.max(n, initial=0)

    def more(state):
        k, _, current = state
        return (k < highest) & jnp.any((k < n) & ~jnp.isnan(current))

    def advance(state):
        k, previous, current = state
        following = step(k.astype(x.dtype), current, previous)
        going = k < n
        return k + 1, jnp.where(going, current, previous), jnp.where(going, following, current)

    start = (jnp.ones((), n.dtype), jnp.ones_like(x), jnp.where(n == 0, jnp.ones_like(x), first))
    _, _, value = lax.while_loop(more, advance, start)
    return jnp.where(n < 0, jnp.zeros_like(x), value)


def _chebyshev(first, closed, from_degree: int, shifted: bool):
    """A kind of Chebyshev polynomials: ``closed(theta, n)`` replaces the recurrence inside (-1, 1)."""

    def function(x, n):
        x = 2 * x - 1 if shifted else x
        inside = (jnp.abs(x) < 1) & (n > from_degree)
        degree = jnp.where(inside, jnp.zeros_like(n), n)
        value = _recurrence(x, degree, first(x), lambda k, current, previous: 2 * x * current - previous)
        theta = jnp.arccos(jnp.where(inside, x, jnp.zeros_like(x)))
        return jnp.where(inside, closed(theta, n.astype(x.dtype)), value)

    return function


_CHEBYSHEV = {
    "t": (lambda x: x, lambda angle, n: jnp.cos(n * angle)),
    "u": (lambda x: 2 * x, lambda angle, n: jnp.sin((n + 1) * angle) / jnp.sin(angle)),
    "v": (lambda x: 2 * x - 1, lambda angle, n: jnp.cos((n + 0.5) * angle) / jnp.cos(0.5 * angle)),
    "w": (lambda x: 2 * x + 1, lambda angle, n: jnp.sin((n + 0.5) * angle) / jnp.sin(0.5 * angle)),
}  # fmt: skip


def _hermite(factor: int):
    """Physicists' (factor 2) or probabilists' (1) polynomials; NaN where PyTorch's are: past their range."""

    def function(x, n):
        limit = 512 if x.dtype == np.float64 else 128
        value = _recurrence(
            x, jnp.minimum(n, limit), factor * x,
            lambda k, current, previous: factor * (x * current - k * previous),
        )  # fmt: skip
        return jnp.where(n > limit, np.asarray(np.nan, x.dtype), value)

    return function


def _laguerre(x, n):
    value = _recurrence(
        x, n, 1 - x, lambda k, current, previous: ((2 * k + 1 - x) * current - k * previous) / (k + 1)
    )
    return jnp.where((x == 0) & (n >= 0), jnp.ones_like(x), value)


def _legendre(x, n):
    return _recurrence(x, n, x, lambda k, current, previous: ((2 * k + 1) * x * current - k * previous) / (k + 1))


def _register(name: str, function) -> None:
    @lower(name)
    def lowering(x, n):
        x, n = compute_float(x, n)
        x, n = jnp.broadcast_arrays(x, n)
        return function(x, n.astype(np.int64))


for _kind, (_first, _closed) in _CHEBYSHEV.items():
    _from_degree = 6 if _kind in "tu" else 8
    _register(f"special_chebyshev_polynomial_{_kind}", _chebyshev(_first, _closed, _from_degree, False))
    _register(f"special_shifted_chebyshev_polynomial_{_kind}", _chebyshev(_first, _closed, _from_degree, True))
_register("special_hermite_polynomial_h", _hermite(2))
_register("special_hermite_polynomial_he", _hermite(1))
_register("special_laguerre_polynomial_l", _laguerre)
_register("special_legendre_polynomial_p", _legendre)
