"""Elementwise functions of one tensor: rounding, signs, exponentials, trigonometry, complex parts.

Floating functions turn integers into torch's default dtype and compute 16-bit floats in float32.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from .numerics import cast, compute_float, is_complex, is_float, opmath
from .registry import lower, out


def _floating(name: str, fn) -> None:
    """Register ``fn`` as a function whose result is always floating (or complex)."""

    def lowering(self):
        return fn(compute_float(self)[0])

    lower(name)(lowering)


def _log2(x):
    # The logarithm of the mantissa is added to the exponent, so powers of two are exact: torch's
    # log2(8192) is 13, while log(x) / log(2) in float32 gives 12.999999.
    plain = jnp.log2(x)
    if not is_float(x):
        return plain
    mantissa, exponent = jnp.frexp(x)
    small = mantissa < math.sqrt(0.5)
    mantissa = jnp.where(small, mantissa * 2, mantissa)
    exponent = exponent.astype(x.dtype) - small.astype(x.dtype)
    exact = exponent + jnp.log(mantissa) * np.asarray(1 / math.log(2), x.dtype)
    normal = (x >= np.finfo(x.dtype).tiny) & (x < np.inf)
    return jnp.where(normal, exact, plain)


def _sinc(x):
    scaled = x * np.asarray(math.pi, x.dtype)
    return jnp.where(x == 0, jnp.ones_like(x), jnp.sin(scaled) / jnp.where(x == 0, jnp.ones_like(x), scaled))


for _name, _fn in {
    "acos": jnp.arccos,
    "acosh": jnp.arccosh,
    "asin": jnp.arcsin,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan,
    "atanh": jnp.arctanh,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": _log2,
    "reciprocal": lambda x: jnp.ones_like(x) / x,
    "rsqrt": lax.rsqrt,
    "sin": jnp.sin,
    "sinc": _sinc,
    "sinh": jnp.sinh,
    "sqrt": jnp.sqrt,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "deg2rad": lambda x: x * np.asarray(math.pi / 180, x.dtype),
    "rad2deg": lambda x: x * np.asarray(180 / math.pi, x.dtype),
}.items():
    _floating(_name, _fn)


def _rounding(name: str, fn) -> None:
    """Register a rounding function; integers are returned as they are."""

    def lowering(self):
        return fn(self.astype(opmath(self.dtype))) if is_float(self) else self

    lower(name)(lowering)


for _name, _fn in {
    "ceil": jnp.ceil,
    "floor": jnp.floor,
    "trunc": jnp.trunc,
    "frac": lambda x: x - jnp.trunc(x),
}.items():
    _rounding(_name, _fn)


@lower("round")
def round_(self, decimals=0):
    """Round half to even; with ``decimals``, scale by a power of ten, round and scale back."""
    if not is_float(self):
        return self
    x = self.astype(opmath(self.dtype))
    if decimals == 0:
        return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)
    power = np.asarray(10.0 ** abs(decimals), x.dtype)
    if decimals > 0:
        return lax.round(x * power, lax.RoundingMethod.TO_NEAREST_EVEN) / power
    return lax.round(x / power, lax.RoundingMethod.TO_NEAREST_EVEN) * power


@lower("neg")
def neg(self):
    return -self


@lower("abs")
def abs_(self):
    if self.dtype == np.bool_ or jnp.issubdtype(self.dtype, jnp.unsignedinteger):
        return self
    return jnp.abs(self)


@lower("sign")
def sign(self):
    """-1, 0 or 1; NaN gives 0, as in PyTorch."""
    if self.dtype == np.bool_:
        return self
    zero = jnp.zeros_like(self)
    return (self > zero).astype(self.dtype) - (self < zero).astype(self.dtype)


@lower("sgn")
def sgn(self):
    """:func:`sign` for reals; ``z / |z|``, and 0 for 0, for complex numbers."""
    if not is_complex(self):
        return sign(self)
    magnitude = jnp.abs(self)
    safe = jnp.where(magnitude == 0, jnp.ones_like(magnitude), magnitude)
    return jnp.where(magnitude == 0, jnp.zeros_like(self), self / safe.astype(self.dtype))


@lower("angle")
def angle(self):
    """Argument of a complex number; for reals 0, or pi where negative, and NaN stays NaN."""
    if is_complex(self):
        return jnp.arctan2(self.imag, self.real)
    (x,) = compute_float(self)
    result = jnp.where(x < 0, jnp.full_like(x, math.pi), jnp.zeros_like(x))
    return jnp.where(jnp.isnan(x), x, result)


@lower("conj_physical", "_conj_physical")
def conj_physical(self):
    return jnp.conj(self) if is_complex(self) else self


@lower("complex")
def complex_(real, imag):
    """A complex tensor from its two parts (both float32 or both float64, broadcast)."""
    if real.dtype != imag.dtype:
        raise RuntimeError(f"complex: the parts have dtypes {real.dtype} and {imag.dtype}; give both the same")
    part = np.dtype(np.float32) if out(0).dtype == np.complex64 else np.dtype(np.float64)
    real, imag = jnp.broadcast_arrays(cast(real, part), cast(imag, part))
    return lax.complex(real, imag)


@lower("polar")
def polar(abs, angle):
    """A complex tensor from magnitude and angle in radians."""
    return complex_(abs * jnp.cos(angle), abs * jnp.sin(angle))


@lower("frexp")
def frexp(self):
    """Mantissa in [0.5, 1) and int32 exponent; infinities and NaN keep exponent 0."""
    return jnp.frexp(self.astype(opmath(self.dtype)))
