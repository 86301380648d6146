"""What one call does with given block sizes: the input of the estimate."""

from __future__ import annotations

from systolic.kernels.generations import Generation
from systolic.kernels.registry import Work


def work_of(generation: Generation, tuning, tokens, sequences, context, q_heads, kv_heads, dim, page_size, size,
            window) -> Work:  # fmt: skip
    """Every sequence has the context given and an equal share of the tokens, all new ones in the last positions."""
    per_sequence = -(-tokens // sequences)
    key_block = tuning.pages * page_size
    group = q_heads // kv_heads
    visits = sequences * -(-per_sequence // tuning.query_block)
    keys = min(context, window + per_sequence) if window else context
    key_blocks = visits * -(-keys // key_block)
    pages = visits * -(-keys // page_size)
    rows = max(16, group) if per_sequence == 1 else min(per_sequence, tuning.query_block) * group
    unit_rows = max(rows, generation.mxu)
    scores = key_blocks * key_block * kv_heads * rows
    padded = -(-dim // 128) * 128
    row_bytes = 2 * kv_heads * padded * size
    writes = sequences + tokens // 16
    return Work(
        hbm_bytes=pages * page_size * row_bytes + 2 * tokens * q_heads * padded * 2
        + writes * 16 * row_bytes * 2 + 3 * tokens * kv_heads * padded * 8,
        matmul_flops={"bfloat16": 4.0 * scores * padded * unit_rows / rows},
        # Scale, maximum, subtract, exponential (about 8), sum and conversions.
        vector_ops=16.0 * scores, copies=tuning.head_parts * (pages + 3 * writes),
        least_bytes=2.0 * sequences * keys * kv_heads * dim * size + 4 * tokens * (q_heads + kv_heads) * dim,
        least_flops={"bfloat16": 4.0 * tokens * keys * q_heads * dim},
    )  # fmt: skip
