"""Elementwise choices: where, clamp, masked fill, threshold, and tests for special values."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from .numerics import cast, is_complex, is_float, opmath, promote
from .registry import lower


@lower("where")
def where(condition, self, other):
    a, b = promote(self, other)
    return jnp.where(condition.astype(np.bool_), a, b)


@lower("clamp")
def clamp(self, min=None, max=None):
    """Limit to [min, max], numbers or tensors; ``max`` wins where they cross, NaN propagates."""
    bounds = [bound for bound in (min, max) if bound is not None]
    x, *bounds = promote(self, *bounds)
    if min is not None:
        x = jnp.maximum(x, bounds.pop(0))
    if max is not None:
        x = jnp.minimum(x, bounds.pop(0))
    return x


@lower("clamp_min")
def clamp_min(self, min):
    return clamp(self, min=min)


@lower("clamp_max")
def clamp_max(self, max):
    return clamp(self, max=max)


@lower("masked_fill")
def masked_fill(self, mask, value):
    """``value`` (a number or 0-d tensor) in the dtype of ``self`` wherever ``mask`` is true."""
    return jnp.where(mask.astype(np.bool_), cast(value, self.dtype), self)


@lower("threshold")
def threshold(self, threshold, value):
    """``value`` where ``self <= threshold``, else ``self``; NaN stays."""
    return jnp.where(self <= cast(threshold, self.dtype), cast(value, self.dtype), self)


@lower("nan_to_num")
def nan_to_num(self, nan=None, posinf=None, neginf=None):
    """Replace NaN (default 0) and the infinities (default the dtype's largest finite values)."""
    if is_complex(self):
        parts = [nan_to_num(part, nan, posinf, neginf) for part in (self.real, self.imag)]
        return lax.complex(*parts)
    if not is_float(self):
        return self
    limits = jnp.finfo(self.dtype)
    replacements = (
        (jnp.isnan(self), 0.0 if nan is None else nan),
        (self == np.inf, limits.max if posinf is None else posinf),
        (self == -np.inf, limits.min if neginf is None else neginf),
    )
    result = self
    for where_, value in replacements:
        result = jnp.where(where_, cast(float(value), self.dtype), result)
    return result


@lower("isnan")
def isnan(self):
    return jnp.isnan(self) if is_float(self) or is_complex(self) else jnp.zeros(self.shape, np.bool_)


@lower("isinf")
def isinf(self):
    if is_complex(self):
        return jnp.isinf(self.real) | jnp.isinf(self.imag)
    return jnp.isinf(self) if is_float(self) else jnp.zeros(self.shape, np.bool_)


@lower("isposinf")
def isposinf(self):
    return _wide(self) == np.inf if is_float(self) else jnp.zeros(self.shape, np.bool_)


@lower("isneginf")
def isneginf(self):
    return _wide(self) == -np.inf if is_float(self) else jnp.zeros(self.shape, np.bool_)


def _wide(x):
    return x.astype(opmath(x.dtype))


@lower("signbit")
def signbit(self):
    """The sign bit of a float (true for -0.0), or whether an integer is negative."""
    if is_float(self):
        return jnp.signbit(_wide(self))
    if jnp.issubdtype(self.dtype, jnp.signedinteger):
        return self < 0
    return jnp.zeros(self.shape, np.bool_)
