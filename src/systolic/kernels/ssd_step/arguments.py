"""What the decode step and the prefill of state space duality ask of their arguments, and the step sizes they use."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from systolic.kernels.arguments import need


def check_ssd(x, dt, a, b, c, d, dt_bias, state, dt_limit) -> None:
    """Raise ValueError unless shapes, dtypes and limits are those that `ssd_step` and `ssd_prefill` name."""
    need(x.ndim == 3 and b.ndim == 3 and b.shape == c.shape and x.shape[0] == b.shape[0] and b.shape[1] > 0
         and x.shape[1] % b.shape[1] == 0,
         f"x, b and c have shapes {x.shape}, {b.shape} and {c.shape}; they must be [T, heads, P] and twice "
         "[T, groups, N], where groups divides heads")
    need(x.dtype in (jnp.float32, jnp.bfloat16) and x.dtype == b.dtype == c.dtype,
         f"x, b and c have dtypes {x.dtype}, {b.dtype} and {c.dtype}; all must be float32 or all bfloat16")
    heads, width = x.shape[1:]
    need(dt.shape == x.shape[:2] and dt.dtype in (jnp.float32, x.dtype),
         f"dt is {dt.dtype}{dt.shape}; it must be {x.shape[:2]} of float32 or x's dtype {x.dtype}")
    for name, array in (("a", a), ("d", d), ("dt_bias", dt_bias)):
        need(array.shape == (heads,) and array.dtype == jnp.float32,
             f"{name} is {array.dtype}{array.shape}; it must be float32 [{heads}]")
    need(state.ndim == 4 and state.shape[1:] == (heads, width, b.shape[2]) and state.dtype == jnp.float32,
         f"state is {state.dtype}{state.shape}; it must be float32 [slots, {heads}, {width}, {b.shape[2]}]")
    need(0 <= dt_limit[0] <= dt_limit[1], f"dt_limit is {dt_limit}; it must be a pair (low, high), 0 <= low <= high")


def or_zeros(array, heads: int):
    """An optional float32 [heads]."""
    return jnp.zeros(heads, jnp.float32) if array is None else array


def steps_of(dt, a, dt_bias, softplus: bool, dt_limit: tuple[float, float]):
    """(step sizes, logarithms of the state's decay), both [T, heads] float32."""
    dt = dt.astype(jnp.float32) + dt_bias
    dt = jnp.clip(jax.nn.softplus(dt) if softplus else dt, *dt_limit)
    return dt, dt * a
