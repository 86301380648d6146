"""Products of matrices inside kernels, in full float32."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

dot = functools.partial(jax.lax.dot_general, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)
# Contracted dimensions: rows with columns, columns with columns, rows with rows.
PLAIN, BY_COLUMNS, BY_ROWS = (((1,), (0,)), ((), ())), (((1,), (1,)), ((), ())), (((0,), (0,)), ((), ()))

# A logarithm whose exponential is 0 in float32; less is not needed, and -inf would make NaN of a sum.
UNDERFLOW = -128.0


def indices(size: int):
    """Row and column of each element of a square matrix."""
    row = jax.lax.broadcasted_iota(jnp.int32, (size, size), 0)
    return row, jax.lax.broadcasted_iota(jnp.int32, (size, size), 1)


def sums(chosen, x):
    """For each row of ``chosen`` [R, C], bool: the sum of the rows of x [C, n] float32 that it chooses.

    A product with ones needs no second operand of full precision: three bfloat16 passes on three parts of x, which
    together have all its 24 bits, instead of the six of a float32 matmul.
    """
    ones = jnp.where(chosen, 1.0, 0.0).astype(jnp.bfloat16)
    total = jnp.zeros((chosen.shape[0], x.shape[1]), jnp.float32)
    for _ in range(3):
        # Cut off, not rounded: compilers may leave out a rounding to bfloat16 and back.
        bits = jax.lax.bitcast_convert_type(x, jnp.int32) & jnp.int32(-(1 << 16))
        part = jax.lax.bitcast_convert_type(bits, jnp.float32)
        total = total + dot(ones, part.astype(jnp.bfloat16), PLAIN, precision=None)
        x = x - part
    return total
