"""What the parts of the paged attention kernel share: its static sizes, and arithmetic that vectors lack."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

LANES = 128
# Powers of two: rows of the block table in SMEM, windows of new tokens in VMEM.
TABLE_ROWS = 4
WRITE_BUFFERS = 4


@dataclasses.dataclass(frozen=True)
class Static:
    """What a kernel is specialised on; sizes in tokens unless said otherwise."""

    scale: float
    sliding_window: int
    soft_cap: float
    causal: bool
    alibi: bool
    sinks: bool
    scaled: bool
    lse: bool
    group: int
    heads: int  # key/value heads of one part
    page_size: int
    pages: int  # of a key block
    window_rows: int
    align: int  # rows of queries that a slice must start at a multiple of
    small_rows: int
    chunk_rows: int
    unroll_heads: bool
    visits: int
    writes: int
    buffers: int
    latent: int  # the values are so many first elements of the keys; 0: the cache has values of their own

    @property
    def kinds(self) -> int:
        """Rows that the cache has of a token and head: a key and a value, or one that is both."""
        return 1 if self.latent else 2

    @property
    def key_block(self) -> int:
        return self.pages * self.page_size


def quotient(x, divisor: int):
    """x // divisor of int32 vectors with 0 <= x < 2**15, by multiplication: vectors have no division."""
    if divisor & (divisor - 1) == 0:
        return jax.lax.shift_right_logical(x, divisor.bit_length() - 1)
    # floor(x * ceil(2**16 / d) / 2**16) is exact while x * d < 2**16; see `_check`.
    return jax.lax.shift_right_logical(x * (-(-(1 << 16) // divisor)), 16)


def scalar_quotient(x, divisor: int):
    """x // divisor of a scalar, which must be >= 0 unless the divisor is a power of two; division is slow."""
    if divisor & (divisor - 1) == 0:
        return jax.lax.shift_right_arithmetic(x, divisor.bit_length() - 1)
    return jax.lax.div(x, jnp.int32(divisor))


def per_row(member, values, base, group: int):
    """Float32 column [rows, 1] of values[base + member]; values is in SMEM, ``member`` int32 in 0..group-1."""
    result = jnp.zeros(member.shape, jnp.float32)
    for index in range(group):
        result = jnp.where(member == index, values[base + index], result)
    return result
