"""What one call does with given block sizes: the input of the estimate."""

from __future__ import annotations

from systolic.kernels.generations import Generation
from systolic.kernels.registry import Work


def work_of(generation: Generation, tuning, tokens, sequences, context, heads, width, latent, page_size, size) -> Work:
    """Every sequence has the context given and an equal share of the tokens, all new ones in the last positions.

    All heads see the same keys, so that the kernel's one part runs on one core of those that share the peaks.
    """
    per_sequence = -(-tokens // sequences)
    key_block = tuning.pages * page_size
    visits = sequences * -(-per_sequence // tuning.query_block)
    key_blocks = visits * -(-context // key_block)
    rows = max(16, min(per_sequence, tuning.query_block) * heads)
    scores = key_blocks * key_block * rows
    padded = -(-width // 128) * 128
    row_bytes = padded * size
    writes = sequences + tokens // 16
    # Blocks of keys and values are the unit's weights: fewer rows take as long as it has rows.
    unit = max(rows, generation.mxu) / rows
    return Work(
        hbm_bytes=visits * -(-context // page_size) * page_size * row_bytes + 2.0 * tokens * heads * (padded + latent)
        + writes * 16 * row_bytes * 2 + 3 * tokens * padded * 8,
        matmul_flops={"bfloat16": generation.cores * 2.0 * scores * (padded + latent) * unit},
        # Scale, maximum, subtract, exponential (about 8), sum and conversions; the sums of each block are scaled.
        vector_ops=generation.cores * (16.0 * scores + 3.0 * key_blocks * rows * latent),
        copies=generation.cores * (visits * -(-context // page_size) + 3 * writes),
        least_bytes=1.0 * sequences * context * width * size + 2 * tokens * heads * (width + latent),
        least_flops={"bfloat16": 2.0 * tokens * context * heads * (width + latent)},
    )  # fmt: skip
