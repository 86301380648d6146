"""Sizes that programs are compiled for: token counts and request counts are padded up to these."""

from __future__ import annotations

import bisect


def token_buckets(limit: int) -> list[int]:
    """Token counts for a step of at most ``limit`` tokens.

    Powers of two while a step is bound by reading weights (padding is free there); from 64 on at most an
    eighth is padding, since a prefill's time grows with every padded token: a prompt of 1,024 tokens beside
    one decoding request must not pay for 1,536.
    """
    sizes = [1, 2, 4, 8, 16, 32, 64]
    while sizes[-1] < limit:
        sizes.append(sizes[-1] + max(16, (1 << (sizes[-1].bit_length() - 1)) // 8))
    return sorted({min(size, limit) for size in sizes})


def request_buckets(limit: int) -> list[int]:
    """Request counts for at most ``limit`` requests: powers of four, then the limit itself.

    Logits of four rows cost as much as of one (the output head is read once), so fine steps buy nothing.
    """
    sizes = []
    size = 1
    while size < limit:
        sizes.append(size)
        size *= 4
    return [*sizes, limit]


def up(size: int, buckets: list[int]) -> int:
    """The smallest bucket that holds ``size``; ValueError above the largest."""
    position = bisect.bisect_left(buckets, size)
    if position == len(buckets):
        raise ValueError(f"size {size} is above the largest bucket {buckets[-1]}")
    return buckets[position]


def power_of_two(size: int, least: int = 1) -> int:
    """The smallest power of two that holds ``size`` and is at least ``least``."""
    result = least
    while result < size:
        result *= 2
    return result
