"""What the decode step and the prefill of a gated delta net ask of their arguments."""

from __future__ import annotations

import jax.numpy as jnp

from systolic.kernels.arguments import need


def check_delta(q, k, v, decay, beta, state) -> None:
    """Raise ValueError unless shapes and dtypes are those that `delta_step` and `delta_prefill` name."""
    need(q.ndim == 3 and q.shape == k.shape and v.ndim == 3 and q.shape[:2] == v.shape[:2],
         f"q, k and v have shapes {q.shape}, {k.shape} and {v.shape}; they must be [T, heads, K], twice, and "
         "[T, heads, V]")
    need(q.dtype in (jnp.float32, jnp.bfloat16) and q.dtype == k.dtype == v.dtype,
         f"q, k and v have dtypes {q.dtype}, {k.dtype} and {v.dtype}; all must be float32 or all bfloat16")
    tokens, heads, width = q.shape
    need(decay.shape in ((tokens, heads), (tokens, heads, width)) and decay.dtype == jnp.float32,
         f"decay is {decay.dtype}{decay.shape}; it must be float32 {(tokens, heads)}, or {(tokens, heads, width)} for "
         "one of each channel")
    need(beta.shape == (tokens, heads) and beta.dtype == jnp.float32,
         f"beta is {beta.dtype}{beta.shape}; it must be float32 {(tokens, heads)}")
    need(state.ndim == 4 and state.shape[1:] == (heads, width, v.shape[2]) and state.dtype == jnp.float32,
         f"state is {state.dtype}{state.shape}; it must be float32 [slots, {heads}, {width}, {v.shape[2]}]")
