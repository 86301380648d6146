"""State space duality (Mamba-2, arXiv:2405.21060) over the tokens of ragged sequences, in chunks.

Public names: `ssd_prefill`, `ssd_prefill_reference`.
"""

from __future__ import annotations

import functools
import math

import jax.numpy as jnp

from systolic.kernels.selection import dispatch
from systolic.kernels.sequences import check_sequences
from systolic.kernels.ssd_prefill.reference import ssd_prefill_reference
from systolic.kernels.ssd_step.arguments import check_ssd, or_zeros

__all__ = ["ssd_prefill", "ssd_prefill_reference"]


def ssd_prefill(x, dt, a, b, c, d, dt_bias, state, slots, starts, resumed, *, softplus: bool = True,
                dt_limit: tuple[float, float] = (0.0, math.inf)):  # fmt: skip
    """Token by token of each sequence: S = exp(s a) S + s x b^T;  out = S c + d x, with s = softplus(dt + dt_bias).

    It computes chunks of tokens by matmuls.

    Args:
        x: [T, heads, P] float32 or bfloat16.
        dt: [T, heads] float32 or x's dtype.
        a: [heads] float32, negative.
        b, c: [T, groups, N] of x's dtype; heads of a group follow each other.
        d, dt_bias: [heads] float32, or None for zeros.
        state: [slots, heads, P, N] float32; donate it to have it updated in place.
        slots, starts, resumed: int32 [S], int32 [S + 1] and bool [S], the sequences, as `delta_prefill` has them.
        softplus: whether the step sizes s pass through it.
        dt_limit: bounds of the step sizes after that.

    Returns:
        (out [T, heads, P] of x's dtype, zeros after the last sequence; the updated state).

    Raises:
        ValueError: a shape, a dtype or a limit is wrong.
    """
    d, dt_bias = or_zeros(d, x.shape[1]), or_zeros(dt_bias, x.shape[1])
    check_ssd(x, dt, a, b, c, d, dt_bias, state, dt_limit)
    check_sequences(slots, starts, resumed)
    if state.size == 0 or x.size == 0:
        return jnp.zeros(x.shape, x.dtype), state
    options = {"softplus": bool(softplus), "dt_limit": tuple(map(float, dt_limit))}
    return dispatch((x, dt, a, b, c, d, dt_bias, state, slots, starts, resumed),
                    reference=functools.partial(ssd_prefill_reference, **options),
                    tpu=functools.partial(_tuned_pallas, **options))  # fmt: skip


def _tuned_pallas(x, dt, a, b, *rest, interpret, **options):
    from systolic.kernels.ssd_prefill.kernel import ssd_prefill_pallas
    from systolic.kernels.ssd_prefill.tuning import tuned

    return ssd_prefill_pallas(x, dt, a, b, *rest, **options, tuning=tuned(x, b), interpret=interpret)
