"""Elementwise arithmetic of two or three operands, with PyTorch's promotion.

Integer division by zero, which raises on PyTorch's CPU, cannot raise inside a program: here the
quotient is -1 for truncating and -1 or -2 for floor division, and the remainder is the dividend
(XLA's rule, plus the floor correction where the signs differ).  The smallest integer divided by -1
is itself.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from .numerics import cast, compute, compute_float, is_complex, is_float, is_number, promote
from .registry import lower


def _is_one(x) -> bool:
    return isinstance(x, (int, float)) and x == 1


def _scaled(x, alpha):
    """``alpha * x`` in the dtype of ``x``; nothing to do for the number 1."""
    if _is_one(alpha):
        return x
    factor = cast(alpha, x.dtype)
    return x & factor if x.dtype == np.bool_ else x * factor


@lower("add")
def add(self, other, alpha=1):
    a, b = compute(self, other)
    b = _scaled(b, alpha)
    return a | b if a.dtype == np.bool_ else a + b


@lower("sub")
def sub(self, other, alpha=1):
    a, b = compute(self, other)
    return a - _scaled(b, alpha)


@lower("rsub")
def rsub(self, other, alpha=1):
    a, b = compute(self, other)
    return b - _scaled(a, alpha)


@lower("mul")
def mul(self, other):
    a, b = compute(self, other)
    return a & b if a.dtype == np.bool_ else a * b


def _floor_quotient(a, b):
    """Quotient rounded to -inf.  Floats follow Python's ``//``, so that ``0.1 * 3 // 0.1`` agrees."""
    a, b = jnp.broadcast_arrays(a, b)
    zero = jnp.zeros_like(a)
    rest = lax.rem(a, b)
    if is_float(a):
        negative = (rest != zero) & ((b < zero) != (rest < zero))
        quotient = (a - rest) / b - negative.astype(a.dtype)
        floored = jnp.floor(quotient)
        floored = floored + (quotient - floored > 0.5).astype(a.dtype)
        floored = jnp.where(quotient != zero, floored, jnp.copysign(zero, a / b))
        return jnp.where(b == zero, a / b, floored)
    quotient = lax.div(a, b)
    if jnp.issubdtype(a.dtype, jnp.unsignedinteger):
        return quotient
    negative = (rest != zero) & ((b < zero) != (rest < zero))
    return quotient - negative.astype(a.dtype)


@lower("div")
def div(self, other, rounding_mode=None):
    """True division (integers become floats), or ``rounding_mode`` "trunc" or "floor"."""
    if rounding_mode is None:
        a, b = compute_float(self, other)
        return a / b
    a, b = jnp.broadcast_arrays(*compute(self, other))
    if rounding_mode == "floor":
        return _floor_quotient(a, b)
    return jnp.trunc(a / b) if is_float(a) else lax.div(a, b)


@lower("floor_divide")
def floor_divide(self, other):
    return _floor_quotient(*compute(self, other))


@lower("remainder")
def remainder(self, other):
    """Remainder with the divisor's sign, as Python's ``%``."""
    a, b = jnp.broadcast_arrays(*compute(self, other))
    rest = lax.rem(a, b)
    if jnp.issubdtype(a.dtype, jnp.unsignedinteger):
        return rest
    zero = jnp.zeros_like(a)
    return jnp.where((rest != zero) & ((b < zero) != (rest < zero)), rest + b, rest)


@lower("fmod")
def fmod(self, other):
    """Remainder with the dividend's sign, as C's ``fmod``."""
    return lax.rem(*jnp.broadcast_arrays(*compute(self, other)))


def _integer_power(base, exponent):
    """Wrapping integer power by squaring; a negative exponent gives 0 unless the base is 1 or -1."""
    bits = 8 * base.dtype.itemsize
    one = jnp.ones_like(base)

    def step(_, state):
        result, square, rest = state
        return jnp.where(rest & one == one, result * square, result), square * square, rest >> one

    result, _, _ = lax.fori_loop(0, bits, step, (one, base, exponent))
    if jnp.issubdtype(base.dtype, jnp.unsignedinteger):
        return result
    odd = exponent & one == one
    inverse = jnp.where(base == one, one, jnp.zeros_like(base))
    inverse = jnp.where(base == -one, jnp.where(odd, -one, one), inverse)
    return jnp.where(exponent < 0, inverse, result)


# Exponents that PyTorch's CPU kernel computes without pow().
_EXACT_POWERS = {
    0.5: jnp.sqrt,
    2: lambda x: x * x,
    3: lambda x: x * x * x,
    -0.5: lax.rsqrt,
    -1: lambda x: 1 / x,
    -2: lambda x: 1 / (x * x),
}


@lower("pow", static_scalars=True)
def pow_(self, exponent):
    if isinstance(exponent, (bool, int, float)) and not is_number(self):
        (base, _) = compute(self, exponent)
        if exponent == 0:
            return jnp.ones_like(base)
        if exponent == 1:
            return base
        if exponent in _EXACT_POWERS and (not is_complex(base) or exponent in (2, 3)):
            if is_float(base) or is_complex(base) or exponent in (2, 3):
                return _EXACT_POWERS[exponent](base)
    a, b = jnp.broadcast_arrays(*compute(self, exponent))
    if a.dtype == np.bool_:
        return a | ~b
    if is_float(a) or is_complex(a):
        return lax.pow(a, b)
    return _integer_power(a, b)


def _binary(name: str, fn, operands=compute) -> None:
    """Register ``fn`` of two broadcast operands in one dtype."""

    def lowering(self, other):
        return fn(*jnp.broadcast_arrays(*operands(self, other)))

    lower(name)(lowering)


def _ignore_nan(choose):
    def choose_number(a, b):
        if not is_float(a):
            return choose(a, b)
        return jnp.where(jnp.isnan(a), b, jnp.where(jnp.isnan(b), a, choose(a, b)))

    return choose_number


def _hypot(a, b):
    # The larger leg is taken out, so that squares neither overflow nor vanish.
    a, b = jnp.abs(a), jnp.abs(b)
    longer, shorter = jnp.maximum(a, b), jnp.minimum(a, b)
    ratio = shorter / jnp.where(longer == 0, jnp.ones_like(longer), longer)
    length = longer * jnp.sqrt(1 + ratio * ratio)
    return jnp.where(jnp.isinf(a) | jnp.isinf(b), jnp.full_like(a, np.inf), length)


def log_add_exp(a, b):
    """``log(exp(a) + exp(b))`` of two arrays of one floating or complex dtype, without overflow."""
    if is_complex(a):
        swap = a.real < b.real
        a, b = jnp.where(swap, b, a), jnp.where(swap, a, b)
        return a + jnp.log1p(jnp.exp(b - a))
    same_infinity = jnp.isinf(a) & (a == b)
    return jnp.where(same_infinity, a, jnp.maximum(a, b) + jnp.log1p(jnp.exp(-jnp.abs(a - b))))


def _logaddexp2(a, b):
    same_infinity = jnp.isinf(a) & (a == b)
    inverse_ln2 = np.asarray(1 / np.log(2), a.dtype)
    total = jnp.maximum(a, b) + jnp.log1p(jnp.exp2(-jnp.abs(a - b))) * inverse_ln2
    return jnp.where(same_infinity, a, total)


for _name, _fn, _operands in (
    ("maximum", jnp.maximum, promote),
    ("minimum", jnp.minimum, promote),
    ("fmax", _ignore_nan(jnp.maximum), promote),
    ("fmin", _ignore_nan(jnp.minimum), promote),
    ("atan2", jnp.arctan2, compute_float),
    ("copysign", jnp.copysign, compute_float),
    ("gcd", jnp.gcd, promote),
    ("hypot", _hypot, compute),
    ("lcm", jnp.lcm, promote),
    ("logaddexp", log_add_exp, compute_float),
    ("logaddexp2", _logaddexp2, compute_float),
    ("nextafter", lax.nextafter, promote),
):
    _binary(_name, _fn, _operands)


@lower("heaviside")
def heaviside(self, values):
    """0 below zero (and for NaN), 1 above it, ``values`` at zero."""
    x, at_zero = promote(self, values)
    zero = jnp.zeros_like(x)
    return jnp.where(x == zero, at_zero, (x > zero).astype(x.dtype))


@lower("ldexp")
def ldexp(self, other):
    """``self * 2 ** other``."""
    a, b = compute_float(self, other)
    return a * jnp.exp2(b)


@lower("lerp")
def lerp(self, end, weight):
    """Linear interpolation; each end is exact, because the nearer one is the starting point."""
    a, b, w = compute(self, end, weight)
    near = jnp.abs(w) < 0.5 if is_complex(w) else w < 0.5
    return jnp.where(near, a + w * (b - a), b - (b - a) * (1 - w))


@lower("addcmul")
def addcmul(self, tensor1, tensor2, value=1):
    a, b, c = compute(self, tensor1, tensor2)
    return a + _scaled(b, value) * c


@lower("addcdiv")
def addcdiv(self, tensor1, tensor2, value=1):
    a, b, c = compute_float(self, tensor1, tensor2)
    return a + _scaled(b, value) / c
