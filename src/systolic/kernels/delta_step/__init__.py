"""One decode step of a gated delta net (arXiv:2412.06464): each sequence's state is updated in place and read.

Public names: `delta_step`, `delta_step_reference`.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp

from systolic.kernels.arguments import need
from systolic.kernels.delta_step.reference import delta_step_reference
from systolic.kernels.selection import dispatch

__all__ = ["delta_step", "delta_step_reference"]


def delta_step(q, k, v, decay, beta, state, slots, *, scale: float):
    """S = exp(decay) S;  S = S + k (beta (v - S^T k))^T;  out = scale S^T q, for each token's state S.

    Args:
        q, k: [T, heads, K] float32 or bfloat16.
        v: [T, heads, V] of q's dtype.
        decay, beta: [T, heads] float32.
        state: [slots, heads, K, V] float32; donate it to have it updated in place.
        slots: [T] int32, each token's own state. Padding tokens name a slot that no other token has; what that slot
            holds afterwards is not specified where several name it.
        scale: factor of the result.

    Returns:
        (out [T, heads, V] of q's dtype, the updated state).

    Raises:
        ValueError: a shape or a dtype is wrong.
    """
    need(q.ndim == 3 and q.shape == k.shape and v.ndim == 3 and q.shape[:2] == v.shape[:2],
         f"q, k and v have shapes {q.shape}, {k.shape} and {v.shape}; they must be [T, heads, K], twice, and [T, heads, V]")
    need(q.dtype in (jnp.float32, jnp.bfloat16) and q.dtype == k.dtype == v.dtype,
         f"q, k and v have dtypes {q.dtype}, {k.dtype} and {v.dtype}; all must be float32 or all bfloat16")
    tokens, heads, width = q.shape
    for name, array in (("decay", decay), ("beta", beta)):
        need(array.shape == (tokens, heads) and array.dtype == jnp.float32,
             f"{name} is {array.dtype}{array.shape}; it must be float32 {(tokens, heads)}")
    need(state.ndim == 4 and state.shape[1:] == (heads, width, v.shape[2]) and state.dtype == jnp.float32,
         f"state is {state.dtype}{state.shape}; it must be float32 [slots, {heads}, {width}, {v.shape[2]}]")
    need(slots.shape == (tokens,) and slots.dtype == jnp.int32,
         f"slots is {slots.dtype}{slots.shape}; it must be int32 [{tokens}]")
    if tokens == 0:
        return jnp.zeros(v.shape, q.dtype), state
    options = {"scale": float(scale)}
    return dispatch((q, k, v, decay, beta, state, slots), reference=functools.partial(delta_step_reference, **options),
                    tpu=functools.partial(_tuned_pallas, **options))  # fmt: skip


def _tuned_pallas(q, *rest, interpret, scale):
    from systolic.kernels.delta_step.kernel import delta_step_pallas
    from systolic.kernels.delta_step.tuning import tuned

    return delta_step_pallas(q, *rest, scale=scale, tuning=tuned(q, rest[1]), interpret=interpret)
