"""Short causal convolution of each channel over the tokens of ragged sequences, as linear-attention layers have it.

Public names: `causal_conv1d`, `causal_conv1d_reference`.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp

from systolic.kernels.arguments import need
from systolic.kernels.causal_conv1d.reference import causal_conv1d_reference
from systolic.kernels.selection import dispatch
from systolic.kernels.sequences import check_sequences

__all__ = ["causal_conv1d", "causal_conv1d_reference"]


def causal_conv1d(x, weight, bias, state, slots, starts, resumed, *, silu: bool):
    """out_t = f(bias + sum over i of weight[:, i] x_(t - W + 1 + i)) in each sequence, f the identity or SiLU.

    What lies before a sequence's first token is its state: the last W - 1 inputs so far. For decode every sequence has
    one token.

    Args:
        x: [T, channels] float32 or bfloat16.
        weight: [channels, W] float32 or x's dtype, W from 2 to 4.
        bias: [channels] float32 or x's dtype, or None.
        state: [slots, W - 1, channels] of x's dtype, the latest input last; donate it to have it updated in place.
        slots, starts, resumed: int32 [S], int32 [S + 1] and bool [S], the sequences, as `delta_prefill` has them.
        silu: whether f is SiLU.

    Returns:
        (out [T, channels] of x's dtype, zeros after the last sequence; the updated state).

    Raises:
        ValueError: a shape or a dtype is wrong.
    """
    need(x.ndim == 2 and x.dtype in (jnp.float32, jnp.bfloat16),
         f"x is {x.dtype}{x.shape}; it must be float32 or bfloat16 [T, channels]")
    channels, floats = x.shape[1], (jnp.float32, x.dtype)
    need(weight.ndim == 2 and weight.shape[0] == channels and 2 <= weight.shape[1] <= 4 and weight.dtype in floats,
         f"weight is {weight.dtype}{weight.shape}; it must be [{channels}, W] with W from 2 to 4, of float32 or x's "
         f"dtype {x.dtype}")
    bias = jnp.zeros(channels, jnp.float32) if bias is None else bias
    need(bias.shape == (channels,) and bias.dtype in floats,
         f"bias is {bias.dtype}{bias.shape}; it must be [{channels}] of float32 or x's dtype {x.dtype}")
    need(state.ndim == 3 and state.shape[1:] == (weight.shape[1] - 1, channels) and state.dtype == x.dtype,
         f"state is {state.dtype}{state.shape}; it must be {x.dtype} [slots, {weight.shape[1] - 1}, {channels}]")
    check_sequences(slots, starts, resumed)
    if x.size == 0:
        return jnp.zeros(x.shape, x.dtype), state
    return dispatch((x, weight, bias, state, slots, starts, resumed),
                    reference=functools.partial(causal_conv1d_reference, silu=bool(silu)),
                    tpu=functools.partial(_tuned_pallas, silu=bool(silu)))  # fmt: skip


def _tuned_pallas(x, weight, bias, state, slots, *rest, interpret, silu):
    from systolic.kernels.causal_conv1d.kernel import causal_conv1d_pallas
    from systolic.kernels.causal_conv1d.tuning import tuned

    tuning = tuned(x, slots)
    return causal_conv1d_pallas(x, weight, bias, state, slots, *rest, silu=silu, tuning=tuning, interpret=interpret)
