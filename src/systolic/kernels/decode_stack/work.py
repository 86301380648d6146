"""What one call does with given block sizes: the input of the estimate."""

from __future__ import annotations

from systolic.kernels.decode_stack.plan import ROWS
from systolic.kernels.decode_stack.tuning import Tuning
from systolic.kernels.generations import Generation
from systolic.kernels.registry import Work


def work_of(generation: Generation, t: Tuning, sequences, context, layers, hidden, q_heads, kv_heads, dim, inner,
            page_size) -> Work:  # fmt: skip
    """``sequences`` at a context of ``context`` tokens, with weights and cache in bfloat16.

    The layers follow each other, so the kernel runs on one core of those that share the peaks.
    """
    q_size, kv_size = q_heads * dim, kv_heads * dim
    weights = float(layers * hidden * (2 * q_size + 2 * kv_size + 3 * inner))
    blocks = layers * sequences * -(-context // t.keys)
    keys = blocks * t.keys  # whole blocks are computed, live pages are fetched
    fetched = layers * sequences * -(-context // page_size) * page_size * 4.0 * kv_size
    up, mixed, last = (q_size + 2 * kv_size + 2 * inner) / t.up_rows, hidden / t.out_rows, hidden / t.down_rows
    scores = keys * q_heads * ROWS  # with the rows of the other sequences
    return Work(
        hbm_bytes=2 * weights + fetched + 4 * layers * sequences * 16.0 * kv_size,
        # The unit is loaded with weights and keys; few rows take as long as it has rows.
        matmul_flops={"bfloat16": 2.0 * generation.cores * generation.mxu * (weights + 2 * keys * kv_size)},
        # A score is scaled, masked, compared, exponentiated (some ten), summed, rounded; six for each of a row's sums.
        vector_ops=generation.cores * (16.0 * scores + 6.0 * blocks * q_heads * ROWS * (dim + 256)
                                       + layers * ROWS * (12.0 * hidden + 12.0 * (q_size + kv_size) + 16.0 * inner)),
        copies=generation.cores * (layers * (up + mixed + last) / 2 + blocks * max(1, t.keys // page_size)
                                   + layers * (sequences + 4)),
        least_bytes=2 * weights + layers * sequences * context * 4.0 * kv_size,
        least_flops={"bfloat16": 2.0 * sequences * (weights + 2.0 * layers * context * q_size)},
    )  # fmt: skip
