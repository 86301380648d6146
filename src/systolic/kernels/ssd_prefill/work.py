"""What one call does with given block sizes: the input of the estimate."""

from __future__ import annotations

from systolic.kernels.generations import Generation
from systolic.kernels.registry import Work
from systolic.kernels.ssd_prefill.tuning import Tuning


def work_of(generation: Generation, t: Tuning, tokens, sequences, heads, groups, width, states) -> Work:
    """``sequences`` of equal length, bfloat16."""
    visits = -(-tokens // t.chunk) + sequences - 1
    blocks, c = visits * heads / t.heads, t.chunk
    own = max(width, 128)
    # Of a head: the decays between tokens, at half the passes of float32, and its own product; then of a block: the
    # state's part, the change of the state, and the factors for all columns.
    per_head = 2.0 * c * c * (c / 2 + own)
    per_block = 2.0 * c * t.heads * width * (2 * states + 3 * 128)
    elements = tokens * heads * width
    held = 8.0 * sequences * heads * width * states
    shared = 2.0 * 2 * tokens * groups * states
    return Work(
        hbm_bytes=2.0 * 2 * elements + held + shared * heads / groups / t.heads + blocks * c * 2 * 512,
        matmul_flops={"float32": blocks * (t.heads * per_head + per_block), "bfloat16": blocks * 2.0 * c * c * states},
        vector_ops=blocks * t.heads * (22.0 * c * c + 12.0 * c * width + 3.0 * width * states),
        copies=7.0 * blocks + 2.0 * sequences * heads / t.heads, least_bytes=2.0 * 2 * elements + held + shared,
        least_flops={"bfloat16": 4.0 * elements * states},
        grid_steps=(-(-tokens // c) + sequences) * heads / t.heads,
    )  # fmt: skip
