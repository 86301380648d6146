"""Comparisons, logical and bitwise operators, and shifts."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from .numerics import is_number, promote
from .registry import Scalar, lower


def _comparison(name: str, fn) -> None:
    # Operands are rounded to their common dtype first: a bfloat16 tensor compares with
    # bfloat16(0.1), not with 0.1.
    def lowering(self, other):
        return fn(*promote(self, other))

    lower(name)(lowering)


for _name, _fn in {
    "eq": jnp.equal,
    "ne": jnp.not_equal,
    "lt": jnp.less,
    "le": jnp.less_equal,
    "gt": jnp.greater,
    "ge": jnp.greater_equal,
}.items():
    _comparison(_name, _fn)


def truth(x):
    """A tensor, number or :class:`Scalar` as booleans: whatever is not zero is true, NaN included."""
    if is_number(x):
        x = jnp.asarray(x.value if isinstance(x, Scalar) else bool(x))
    return x if x.dtype == np.bool_ else x != jnp.zeros_like(x)


def _logical(name: str, fn) -> None:
    def lowering(self, other):
        return fn(truth(self), truth(other))

    lower(name)(lowering)


for _name, _fn in {
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
}.items():
    _logical(_name, _fn)


@lower("logical_not")
def logical_not(self):
    return ~truth(self)


def _bitwise(name: str, fn) -> None:
    def lowering(self, other):
        return fn(*jnp.broadcast_arrays(*promote(self, other)))

    lower(name)(lowering)


def _left_shift(a, b):
    """Zero where the distance is negative or at least the width (XLA's own rule)."""
    return lax.shift_left(a, b)


def _right_shift(a, b):
    """Arithmetic for signed types; a distance out of range leaves only the sign."""
    if jnp.issubdtype(a.dtype, jnp.unsignedinteger):
        return lax.shift_right_logical(a, b)
    return lax.shift_right_arithmetic(a, b)


for _names, _fn in (
    (("bitwise_and",), jnp.bitwise_and),
    (("bitwise_or",), jnp.bitwise_or),
    (("bitwise_xor",), jnp.bitwise_xor),
    (("bitwise_left_shift", "__lshift__"), _left_shift),
    (("bitwise_right_shift", "__rshift__"), _right_shift),
):
    for _name in _names:
        _bitwise(_name, _fn)


@lower("bitwise_not")
def bitwise_not(self):
    return ~self
