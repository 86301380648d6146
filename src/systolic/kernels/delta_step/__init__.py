"""One decode step of a gated delta net (arXiv:2412.06464) or of Kimi delta attention (arXiv:2510.26692).

Each sequence's state is updated in place and read.

Public names: `delta_step`, `delta_step_reference`.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp

from systolic.kernels.arguments import need
from systolic.kernels.delta_step.arguments import check_delta
from systolic.kernels.delta_step.reference import delta_step_reference
from systolic.kernels.selection import dispatch

__all__ = ["delta_step", "delta_step_reference"]


def delta_step(q, k, v, decay, beta, state, slots, *, scale: float):
    """S = exp(decay) S;  S = S + k (beta (v - S^T k))^T;  out = scale S^T q, for each token's state S.

    Args:
        q, k: [T, heads, K] float32 or bfloat16.
        v: [T, heads, V] of q's dtype.
        decay: [T, heads] float32, or [T, heads, K] for one of each channel of the keys.
        beta: [T, heads] float32.
        state: [slots, heads, K, V] float32; donate it to have it updated in place.
        slots: [T] int32, each token's own state. Padding tokens name a slot that no other token has; what that slot
            holds afterwards is not specified where several name it.
        scale: factor of the result.

    Returns:
        (out [T, heads, V] of q's dtype, the updated state).

    Raises:
        ValueError: a shape or a dtype is wrong.
    """
    check_delta(q, k, v, decay, beta, state)
    tokens = q.shape[0]
    need(slots.shape == (tokens,) and slots.dtype == jnp.int32,
         f"slots is {slots.dtype}{slots.shape}; it must be int32 [{tokens}]")
    if tokens == 0:
        return jnp.zeros(v.shape, q.dtype), state
    options = {"scale": float(scale)}
    return dispatch((q, k, v, decay, beta, state, slots), reference=functools.partial(delta_step_reference, **options),
                    tpu=functools.partial(_tuned_pallas, **options))  # fmt: skip


def _tuned_pallas(q, k, v, decay, *rest, interpret, scale):
    from systolic.kernels.delta_step.kernel import delta_step_pallas
    from systolic.kernels.delta_step.tuning import tuned

    return delta_step_pallas(q, k, v, decay, *rest, scale=scale, tuning=tuned(q, v, decay), interpret=interpret)
