"""Values stored in 8 bits."""

from __future__ import annotations

import jax.numpy as jnp


def limited(x, dtype):
    """float32 x within what ``dtype`` can hold, so that a cast to it neither wraps nor overflows.

    For integers also rounded, halves to even; unchanged for types of 16 and more bits.
    """
    if jnp.issubdtype(dtype, jnp.integer):
        info = jnp.iinfo(dtype)
        return jnp.clip(jnp.round(x), float(info.min), float(info.max))
    if jnp.dtype(dtype).itemsize == 1:
        top = float(jnp.finfo(dtype).max)
        return jnp.clip(x, -top, top)
    return x
