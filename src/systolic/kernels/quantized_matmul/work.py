"""What one call does with given block sizes: the input of the estimate."""

from __future__ import annotations

import jax.numpy as jnp

from systolic.kernels.generations import Generation
from systolic.kernels.quantized_matmul.tuning import Tuning
from systolic.kernels.registry import Work


def work_of(generation: Generation, t: Tuning, rows, width, columns, unit_type, type_, groups) -> Work:
    """[rows, width] times a weight [columns, width] of type ``type_``; ``unit_type``: what the matrix unit gets."""
    x_size, size = jnp.dtype(unit_type).itemsize, (4 if type_ == "int4" else 8) / 8
    row_blocks, column_blocks = -(-rows // t.rows), -(-columns // t.columns)
    padded_rows = -(-t.rows // 8) * 8 * row_blocks
    pieces = max(groups, width // t.depth)
    steps = row_blocks * column_blocks * width // t.depth
    # A row block reads all weights; a column block all of x, once where x is one block.
    x_reads = 1 if row_blocks == 1 and width == t.depth else column_blocks
    convert = 0 if unit_type == type_ else 3.0 * row_blocks * columns * width
    return Work(
        hbm_bytes=row_blocks * columns * width * size + x_reads * rows * width * x_size + 2.0 * rows * columns
        + 4.0 * groups * columns * row_blocks,
        matmul_flops={unit_type: 2.0 * padded_rows * column_blocks * t.columns * width},
        vector_ops=3.0 * padded_rows * columns * pieces + convert, copies=4.0 * steps,
        least_bytes=columns * width * size + rows * width * x_size + 2.0 * rows * columns,
        least_flops={unit_type: 2.0 * rows * columns * width}, grid_steps=steps,
    )  # fmt: skip
