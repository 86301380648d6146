"""What one call does with given block sizes: the input of the estimate."""

from __future__ import annotations

from systolic.kernels.generations import Generation
from systolic.kernels.registry import Work


def work_of(generation: Generation, tuning, tokens, heads, groups, width, states) -> Work:
    """``tokens`` states of ``heads`` matrices [width, states]."""
    elements = tokens * heads * width * states
    steps = tokens * heads / tuning.heads
    # Columns of x and of the result take whole tiles of 128 lanes.
    columns = 2.0 * 4 * steps * width * max(tuning.heads, 128)
    # Three products, a sum, and moves between lanes to spread x and to add up the result.
    return Work(
        hbm_bytes=8.0 * elements + columns + steps * 4.0 * (2 * 8 * states + 8 * 128), matmul_flops={},
        vector_ops=10.0 * elements, copies=7.0 * steps, least_bytes=8.0 * elements,
        least_flops={"float32": 5.0 * elements}, grid_steps=steps,
    )  # fmt: skip
