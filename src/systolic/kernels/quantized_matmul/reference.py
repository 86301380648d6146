"""Quantized matmul in plain jax.numpy."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def quantized_matmul_reference(x, weight, weight_scale, x_scale, *, out_dtype: str):
    """Same arguments and result as `quantized_matmul`; an absent x_scale is all ones."""
    (rows, width), columns = x.shape, weight.shape[0]
    groups = weight_scale.shape[0]
    # Products within a group are summed first, as the scales do not differ there.
    parts = jnp.einsum("mgk,ngk->gmn", x.astype(jnp.float32).reshape(rows, groups, width // groups),
                       weight.astype(jnp.float32).reshape(columns, groups, width // groups),
                       precision=jax.lax.Precision.HIGHEST)  # fmt: skip
    scaled = parts * weight_scale[:, None, :] * x_scale[:, :, None]
    return jnp.sum(scaled, axis=0).astype(out_dtype)
