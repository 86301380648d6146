"""What one call does with given block sizes: the input of the estimate."""

from __future__ import annotations

import jax.numpy as jnp

from systolic.kernels.generations import Generation
from systolic.kernels.grouped_matmul.tuning import Tuning
from systolic.kernels.registry import Work


def work_of(generation: Generation, t: Tuning, rows, experts, width, columns, type_, groups) -> Work:
    """Every group has an equal share of the rows."""
    size = 0.5 if type_ == "int4" else jnp.dtype(type_).itemsize
    live = min(experts, rows)
    visits = live + -(-rows // t.rows)
    column_blocks, steps = -(-columns // t.columns), width // t.depth
    weights = live if steps == 1 else visits
    pieces = max(groups, steps)
    convert = 3.0 if size < 2 else 0.0
    return Work(
        hbm_bytes=weights * columns * width * size + column_blocks * rows * width * 2.0 + 2.0 * rows * columns,
        matmul_flops={"bfloat16": 2.0 * visits * t.rows * column_blocks * t.columns * width},
        vector_ops=visits * columns * (3.0 * t.rows * pieces + convert * width),
        copies=4.0 * visits * column_blocks * steps,
        least_bytes=live * columns * width * size + 2.0 * rows * (width + columns),
        least_flops={"bfloat16": 2.0 * rows * columns * width}, grid_steps=visits * column_blocks * steps,
    )  # fmt: skip
