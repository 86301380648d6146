"""What one call does with given block sizes: the input of the estimate."""

from __future__ import annotations

from systolic.kernels.generations import Generation
from systolic.kernels.registry import Work


def work_of(generation: Generation, tuning, tokens, heads, width, values, by_channel) -> Work:
    """``tokens`` states of ``heads`` matrices [width, values]."""
    states = tokens * heads * width * values
    steps = tokens * heads / tuning.heads
    return Work(
        hbm_bytes=8.0 * states + tokens * heads * (4.0 * (2 * width + 2 * values + by_channel * width) + 1024),
        # Three products with one row: the unit takes as long as it has rows.
        matmul_flops={"float32": 2.0 * 3 * states * generation.mxu}, vector_ops=3.0 * states, copies=8.0 * steps,
        least_bytes=8.0 * states, least_flops={"float32": 6.0 * states}, grid_steps=steps,
    )  # fmt: skip
