"""Grouped matmul in plain jax.numpy: every group's weight on every row, the others' results dropped."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def grouped_matmul_reference(x, weight, group_sizes, weight_scale):
    """Same arguments and result as `grouped_matmul`; an absent scale is all ones [E, 1, N]."""
    rows, width = x.shape
    experts, columns, _ = weight.shape
    groups = weight_scale.shape[1]
    ends = jnp.cumsum(group_sizes, dtype=jnp.int32)
    row = jnp.arange(rows, dtype=jnp.int32)
    parts = x.astype(jnp.float32).reshape(rows, groups, width // groups)

    def add(expert, out):
        kernel = weight[expert].astype(jnp.float32).reshape(columns, groups, width // groups)
        sums = jnp.einsum("mgk,ngk->gmn", parts, kernel, precision=jax.lax.Precision.HIGHEST)
        product = jnp.sum(sums * weight_scale[expert][:, None, :], axis=0)
        mine = (row >= ends[expert] - group_sizes[expert]) & (row < ends[expert])
        return jnp.where(mine[:, None], product, out)

    return jax.lax.fori_loop(0, experts, add, jnp.zeros((rows, columns), jnp.float32)).astype(x.dtype)
