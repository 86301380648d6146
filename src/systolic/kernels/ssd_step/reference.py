"""One decode step of state space duality in plain jax.numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from systolic.kernels.ssd_step.arguments import steps_of


def ssd_step_reference(x, dt, a, b, c, d, dt_bias, state, slots, *, softplus: bool, dt_limit):
    """Same arguments and results as `ssd_step`."""
    step, decay = steps_of(dt, a, dt_bias, softplus, dt_limit)
    x32 = x.astype(jnp.float32)
    b32, c32 = (jnp.repeat(y.astype(jnp.float32), x.shape[1] // b.shape[1], axis=1) for y in (b, c))
    held = state[slots] * jnp.exp(decay)[:, :, None, None]
    held = held + (x32 * step[:, :, None])[:, :, :, None] * b32[:, :, None, :]
    out = jnp.einsum("thpn,thn->thp", held, c32, precision=jax.lax.Precision.HIGHEST) + d[:, None] * x32
    return out.astype(x.dtype), state.at[slots].set(held)
