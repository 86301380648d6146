"""Shared arithmetic of windows over spatial dimensions (convolution, pooling, padding)."""

from __future__ import annotations

from typing import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from .numerics import opmath


def per_dim(value, count: int) -> tuple[int, ...]:
    """An int or a list of length 1 or ``count`` as a tuple of length ``count``."""
    values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if len(values) == 1:
        values *= count
    if len(values) != count:
        raise ValueError(f"expected 1 or {count} values, one per spatial dimension, got {values}")
    return values


def transpose_of(fn: Callable, shape: Sequence[int], gradient):
    """The gradient of a linear ``fn`` (one array of ``shape`` to one array) at ``gradient``.

    Computed in :func:`numerics.opmath` of the gradient's dtype.
    """
    gradient = gradient.astype(opmath(gradient.dtype))
    primal = jax.ShapeDtypeStruct(tuple(shape), gradient.dtype)
    return jax.linear_transpose(fn, primal)(gradient)[0]


def take_dim(x, index: np.ndarray, dim: int):
    """``x`` indexed along ``dim`` by a static 1-d index."""
    return jnp.take(x, jnp.asarray(index), axis=dim, mode="clip")
