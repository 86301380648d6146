"""What one call does with given block sizes: the input of the estimate."""

from __future__ import annotations

from systolic.kernels.causal_conv1d.tuning import Tuning
from systolic.kernels.generations import Generation
from systolic.kernels.registry import Work


def work_of(generation: Generation, t: Tuning, tokens, sequences, channels, width) -> Work:
    """``sequences`` of equal length, bfloat16, with SiLU."""
    each = tokens // sequences
    visits = max(sequences * -(-each // t.rows), -(-tokens // t.rows))
    columns = -(-channels // t.channels)
    least = 2.0 * (2 * tokens + 2 * sequences * (width - 1)) * channels
    return Work(
        # A state's few rows fill a tile of their own.
        hbm_bytes=2.0 * (2 * tokens + 2 * sequences * 4) * channels, matmul_flops={},
        # A load at an odd row, a product and a sum for each tap; conversions, the choice of rows, and SiLU.
        vector_ops=visits * t.rows * channels * (3.0 * width + 20.0), copies=4.0 * visits * columns, least_bytes=least,
        least_flops={"float32": 2.0 * tokens * channels * width},
        grid_steps=(-(-tokens // t.rows) + sequences) * columns,
    )  # fmt: skip
