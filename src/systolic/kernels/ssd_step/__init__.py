"""One decode step of state space duality (Mamba-2, arXiv:2405.21060), states updated in place.

Public names: `ssd_step`, `ssd_step_reference`.
"""

from __future__ import annotations

import functools
import math

import jax.numpy as jnp

from systolic.kernels.arguments import need
from systolic.kernels.selection import dispatch
from systolic.kernels.ssd_step.arguments import check_ssd, or_zeros
from systolic.kernels.ssd_step.reference import ssd_step_reference

__all__ = ["ssd_step", "ssd_step_reference"]


def ssd_step(x, dt, a, b, c, d, dt_bias, state, slots, *, softplus: bool = True,
             dt_limit: tuple[float, float] = (0.0, math.inf)):  # fmt: skip
    """S = exp(s a) S + s x b^T;  out = S c + d x, for each token's state S, with step sizes s = softplus(dt + dt_bias).

    Args:
        x: [T, heads, P] float32 or bfloat16.
        dt: [T, heads] float32 or x's dtype.
        a: [heads] float32, negative.
        b, c: [T, groups, N] of x's dtype; heads of a group follow each other.
        d, dt_bias: [heads] float32, or None for zeros.
        state: [slots, heads, P, N] float32; donate it to have it updated in place.
        slots: [T] int32, each token's own state. Padding tokens name a slot that no other token has; what that slot
            holds afterwards is not specified where several name it.
        softplus: whether the step sizes pass through it.
        dt_limit: bounds of the step sizes after that.

    Returns:
        (out [T, heads, P] of x's dtype, the updated state).

    Raises:
        ValueError: a shape, a dtype or a limit is wrong.
    """
    d, dt_bias = or_zeros(d, x.shape[1]), or_zeros(dt_bias, x.shape[1])
    check_ssd(x, dt, a, b, c, d, dt_bias, state, dt_limit)
    need(slots.shape == x.shape[:1] and slots.dtype == jnp.int32,
         f"slots is {slots.dtype}{slots.shape}; it must be int32 [{x.shape[0]}]")
    if state.size == 0 or x.size == 0:
        return jnp.zeros(x.shape, x.dtype), state
    options = {"softplus": bool(softplus), "dt_limit": tuple(map(float, dt_limit))}
    return dispatch((x, dt, a, b, c, d, dt_bias, state, slots),
                    reference=functools.partial(ssd_step_reference, **options),
                    tpu=functools.partial(_tuned_pallas, **options))  # fmt: skip


def _tuned_pallas(x, dt, a, b, *rest, interpret, **options):
    from systolic.kernels.ssd_step.kernel import ssd_step_pallas
    from systolic.kernels.ssd_step.tuning import tuned

    return ssd_step_pallas(x, dt, a, b, *rest, **options, tuning=tuned(x, b), interpret=interpret)
