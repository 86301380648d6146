"""Gated delta net (arXiv:2412.06464) and Kimi delta attention (arXiv:2510.26692) over the tokens of ragged sequences.

Public names: `delta_prefill`, `delta_prefill_reference`.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp

from systolic.kernels.delta_prefill.reference import delta_prefill_reference
from systolic.kernels.delta_step.arguments import check_delta
from systolic.kernels.selection import dispatch
from systolic.kernels.sequences import check_sequences

__all__ = ["delta_prefill", "delta_prefill_reference"]


def delta_prefill(q, k, v, decay, beta, state, slots, starts, resumed, *, scale: float):
    """Token by token of each sequence: S = exp(decay) S;  S = S + k (beta (v - S^T k))^T;  out = scale S^T q.

    It computes chunks of tokens by matmuls.

    Args:
        q, k: [T, heads, K] float32 or bfloat16; keys of length at most 1, else the recurrence itself may grow.
        v: [T, heads, V] of q's dtype.
        decay: [T, heads] float32, at most 0, or [T, heads, K] for one of each channel of the keys.
        beta: [T, heads] float32.
        state: [slots, heads, K, V] float32; donate it to have it updated in place.
        slots: [S] int32, each sequence's own state.
        starts: [S + 1] int32; sequence s has the tokens from starts[s] up to starts[s + 1]; starts[0] is 0.  A
            sequence without tokens leaves its state as it is, and its slot does not matter.
        resumed: [S] bool; whether a sequence starts from its slot's state, else from zeros.
        scale: factor of the result.

    Returns:
        (out [T, heads, V] of q's dtype, zeros after the last sequence; the updated state).

    Raises:
        ValueError: a shape or a dtype is wrong.
    """
    check_delta(q, k, v, decay, beta, state)
    check_sequences(slots, starts, resumed)
    if v.size == 0:
        return jnp.zeros(v.shape, q.dtype), state
    options = {"scale": float(scale)}
    return dispatch((q, k, v, decay, beta, state, slots, starts, resumed),
                    reference=functools.partial(delta_prefill_reference, **options),
                    tpu=functools.partial(_tuned_pallas, **options))  # fmt: skip


def _tuned_pallas(q, k, v, *rest, interpret, scale):
    from systolic.kernels.delta_prefill.kernel import delta_prefill_pallas
    from systolic.kernels.delta_prefill.tuning import tuned

    return delta_prefill_pallas(q, k, v, *rest, scale=scale, tuning=tuned(q, v, rest[0]), interpret=interpret)
