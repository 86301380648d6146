"""Attention inside segments of packed sequences, without a cache: encoders, several images or texts in one call.

Public names: `flash_attention`, `flash_attention_reference`.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp

from systolic.kernels.arguments import need
from systolic.kernels.flash_attention.reference import flash_attention_reference
from systolic.kernels.selection import dispatch

__all__ = ["flash_attention", "flash_attention_reference"]


def flash_attention(q, k, v, q_segments, kv_segments, *, scale: float, causal: bool = False, soft_cap: float = 0.0):
    """softmax(scale * q k^T) v, where a query sees the keys of its own segment.

    Args:
        q: [q_heads, T, head_dim] float32 or bfloat16; q_heads is a multiple of kv_heads.
        k, v: [kv_heads, S, head_dim] of q's dtype.
        q_segments: [T] int32; a query with a negative one is padding and gives zeros.
        kv_segments: [S] int32.
        scale: factor of the dot products.
        causal: a query at index i sees only keys up to index i.
        soft_cap: c in c * tanh(score / c); 0 for none.

    Returns:
        [q_heads, T, head_dim] of q's dtype; zeros where a query sees no key.

    Raises:
        ValueError: a shape, a dtype or an option is wrong.
    """
    need(q.ndim == 3 and k.ndim == 3 and q.shape[2] == k.shape[2] and k.shape == v.shape and k.shape[0] > 0
         and q.shape[0] % k.shape[0] == 0,
         f"q, k and v have shapes {q.shape}, {k.shape} and {v.shape}; they must be [q_heads, T, head_dim] and twice "
         "[kv_heads, S, head_dim], where kv_heads divides q_heads")
    need(q.dtype in (jnp.float32, jnp.bfloat16) and q.dtype == k.dtype == v.dtype,
         f"q, k and v have dtypes {q.dtype}, {k.dtype} and {v.dtype}; all must be float32 or all bfloat16")
    for name, array, size in (("q_segments", q_segments, q.shape[1]), ("kv_segments", kv_segments, k.shape[1])):
        need(array.shape == (size,) and array.dtype == jnp.int32,
             f"{name} is {array.dtype}{array.shape}; it must be int32 [{size}]")
    need(soft_cap >= 0, f"soft_cap is {soft_cap}; it must be 0 (none) or above")
    if q.size == 0 or k.size == 0:
        return jnp.zeros(q.shape, q.dtype)
    options = {"scale": float(scale), "causal": bool(causal), "soft_cap": float(soft_cap)}
    reference = functools.partial(flash_attention_reference, **options)
    pallas = functools.partial(_tuned_pallas, **options)
    return dispatch((q, k, v, q_segments, kv_segments), reference=reference, tpu=pallas)


def _tuned_pallas(q, k, *rest, interpret, **options):
    from systolic.kernels.flash_attention.kernel import flash_attention_pallas
    from systolic.kernels.flash_attention.tuning import tuned

    return flash_attention_pallas(q, k, *rest, **options, tuning=tuned(q, k), interpret=interpret)
