"""The small pieces of a decoder layer as single operators: RMS norm, rotary embedding, gated SiLU.

As one node of a graph instead of up to forty, a deep model is traced and compiled in a fraction of
the time; :mod:`.torch_op` makes them PyTorch operators.  On XLA:CPU each is one custom call for
float32 arrays, and the bits of a row do not depend on the other rows nor on their number; other
dtypes and platforms use :mod:`.reference`, a few lines of ``jax.numpy`` that XLA fuses.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from systolic.kernels.cpu.calls import add_rms_norm_cpu, rms_norm_cpu, rotary_cpu, silu_and_mul_cpu
from systolic.kernels.decoder.reference import (
    add_rms_norm_reference,
    rms_norm_reference,
    rotary_reference,
    silu_and_mul_reference,
)
from systolic.kernels.selection import dispatch, forced

__all__ = ["add_rms_norm", "rms_norm", "rotary", "silu_and_mul"]


def rms_norm(x, weight, *, epsilon: float):
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis, computed in float32 (arXiv:1910.07467).

    Squares beyond float32 are infinite, so a row with a finite |x| above about 1e19 gives zeros.

    Args:
        x: [..., d], any floating dtype.
        weight: [d], any floating dtype, or None.
        epsilon: added to the mean of the squares.

    Returns:
        x's shape and dtype.

    Raises:
        ValueError: the weight's shape is not [d].
    """
    _check_weight(x, weight)
    given = (x,) if weight is None else (x, weight)
    return _run("rms_norm", forced(), given, epsilon=epsilon)


def add_rms_norm(x, residual, weight, *, epsilon: float):
    """(rms_norm(x + residual), x + residual); the sum is kept in float32 until both results are rounded.

    Args:
        x: [..., d], any floating dtype.
        residual: x's shape, any floating dtype.
        weight: [d], any floating dtype, or None.
        epsilon: added to the mean of the squares.

    Returns:
        Two arrays of x's shape and dtype.

    Raises:
        ValueError: the residual's shape is not x's, or the weight's is not [d].
    """
    if residual.shape != x.shape:
        raise ValueError(f"residual has shape {residual.shape}; it must be x's shape {x.shape}")
    _check_weight(x, weight)
    given = (x, residual) if weight is None else (x, residual, weight)
    return _run("add_rms_norm", forced(), given, epsilon=epsilon)


def rotary(positions, x, cos_sin_cache, *, head_size: int, rotary_dim: int, neox: bool):
    """Rotary position embedding (arXiv:2104.09864) of queries or keys.

    Args:
        positions: [T] integers. As in jax.numpy, a negative one counts from the end and one out of
            range is moved to the nearest row of the cache.
        x: [T, heads * head_size], any floating dtype.
        cos_sin_cache: [P, rotary_dim], cosines then sines, any floating dtype.
        head_size: elements of a head.
        rotary_dim: the first elements of each head that are rotated; even.
        neox: pair the two halves of these elements, otherwise neighbours.

    Returns:
        x's shape and dtype.

    Raises:
        ValueError: shapes and sizes do not fit together.
    """
    if positions.ndim != 1 or x.ndim != 2 or positions.shape[0] != x.shape[0]:
        raise ValueError(f"positions has shape {positions.shape} and x {x.shape}; "
                         "they must be [T] and [T, heads * head_size]")
    if head_size < 1 or x.shape[1] % head_size:
        raise ValueError(f"x has {x.shape[1]} columns; that must be a multiple of head_size {head_size}")
    if rotary_dim % 2 or not 0 < rotary_dim <= head_size:
        raise ValueError(f"rotary_dim is {rotary_dim}; it must be even and from 2 to head_size {head_size}")
    if cos_sin_cache.ndim != 2 or cos_sin_cache.shape[1] != rotary_dim or cos_sin_cache.shape[0] < 1:
        raise ValueError(f"cos_sin_cache has shape {cos_sin_cache.shape}; "
                         f"it must be [P, {rotary_dim}] with P > 0")
    given = (positions, x, cos_sin_cache)
    return _run("rotary", forced(), given, head_size=head_size, rotary_dim=rotary_dim, neox=neox)


def silu_and_mul(x):
    """silu(x[..., :d]) * x[..., d:] with d half of the last axis.

    Args:
        x: [..., 2 d], any floating dtype.

    Returns:
        [..., d] in x's dtype.

    Raises:
        ValueError: the last axis is odd.
    """
    if x.shape[-1] % 2:
        raise ValueError(f"x has {x.shape[-1]} columns; that must be an even number, gate then up")
    return _run("silu_and_mul", forced(), (x,))


def _check_weight(x, weight) -> None:
    if weight is not None and weight.shape != x.shape[-1:]:
        raise ValueError(f"weight has shape {weight.shape}; it must be {x.shape[-1:]}, x's last axis")


_FORMS = {
    "rms_norm": (rms_norm_reference, rms_norm_cpu),
    "add_rms_norm": (add_rms_norm_reference, add_rms_norm_cpu),
    "rotary": (rotary_reference, rotary_cpu),
    "silu_and_mul": (silu_and_mul_reference, silu_and_mul_cpu),
}


# Jitted so that layers with equal shapes share one trace; `choice` keys it by what `force` asks for.
@functools.partial(jax.jit, static_argnames=("name", "choice", "epsilon", "head_size", "rotary_dim", "neox"))
def _run(name, choice, given, **static):
    reference, cpu = (functools.partial(form, **static) for form in _FORMS[name])
    indices = (jnp.int32, jnp.int64) if name == "rotary" else ()
    if all(a.dtype == jnp.float32 or a.dtype in indices for a in given) and all(a.size for a in given):
        return dispatch(given, reference=reference, cpu=cpu)
    return reference(*given)
