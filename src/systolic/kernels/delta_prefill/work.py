"""What one call does with given block sizes: the input of the estimate."""

from __future__ import annotations

from systolic.kernels.delta_prefill.tuning import Tuning
from systolic.kernels.generations import Generation
from systolic.kernels.registry import Work


def work_of(generation: Generation, t: Tuning, tokens, sequences, heads, width, values, by_channel) -> Work:
    """``sequences`` of equal length, bfloat16."""
    visits = -(-tokens // t.chunk) + sequences - 1
    chunks, c = visits * heads, t.chunk
    levels = c.bit_length() - 1

    def product(rows, depth, columns):
        """Operations of a matmul whose contracted and last sizes fill whole tiles of the unit's 128 lanes."""
        return 2.0 * rows * max(depth, 128) * max(columns, 128)

    solving = 2 * (levels - 1) * product(c, c, c)
    state = product(2 * c, width, values) + product(width, c, values) + 2 * product(c, c, values)
    if by_channel:
        pairs, same = levels * (product(c, c, width) + product(2 * c, width, c)), 0.0
    else:
        pairs, same = product(c, c, c), product(2 * c, width, c)
    # Of the keys' and queries' channels for each level, and of the pairs of tokens.
    elementwise = (levels * 14.0 * width if by_channel else 12.0 * c) * c + (12.0 + 3.0 * levels) * c * c
    rows = tokens * heads * (2.0 * (2 * width + 2 * values) + 4.0 * (width * by_channel + 128))
    states = 8.0 * sequences * heads * width * values
    least = 6.0 * tokens * heads * width * values
    return Work(
        hbm_bytes=rows + states,
        matmul_flops={"float32": chunks * (solving + state + pairs), "bfloat16": chunks * same},
        vector_ops=chunks * (elementwise + 12.0 * c * (width + values) + 4.0 * width * values),
        copies=6.0 * chunks / t.heads + 2.0 * sequences * heads / t.heads,
        least_bytes=tokens * heads * (4.0 * (width + values) + 4.0 * width * by_channel) + states,
        least_flops={"bfloat16": least}, grid_steps=(-(-tokens // c) + sequences) * heads / t.heads,
    )  # fmt: skip
