"""Block sizes of the short causal convolution."""

from __future__ import annotations

import dataclasses

from systolic.kernels import tables
from systolic.kernels.generations import Generation, current_generation


@dataclasses.dataclass(frozen=True)
class Tuning:
    """rows: tokens of a block, a multiple of 16; channels: of a block, all or a multiple of 128 that divides them."""

    rows: int
    channels: int


def candidates(generation: Generation, tokens: int, sequences: int, channels: int) -> list[Tuning]:
    """Block sizes worth trying, the default first."""
    # A visit computes the whole block, so that rows beyond a sequence's tokens are computed in vain.
    rows = 16
    while rows < min(256, tokens // sequences):
        rows *= 2
    found = []
    for limit in (2048, 1024, 512) if rows > 16 else (16384, 4096, 2048):
        fitting = [n for n in range(128, limit + 1, 128) if channels % n == 0]
        tuning = Tuning(rows, max(fitting, default=channels))
        if tuning not in found:
            found.append(tuning)
    return found


def tuned(x, slots) -> Tuning:
    """The table's block sizes for these arrays on the generation in use, else the default."""
    generation, (tokens, channels) = current_generation(), x.shape
    found = tables.lookup("causal_conv1d", generation.name, key_of(tokens, slots.shape[0], channels), Tuning)
    return found or candidates(generation, tokens, slots.shape[0], channels)[0]


def key_of(tokens: int, sequences: int, channels: int) -> str:
    """The table's key: tokens of a sequence are rounded up to a power of two."""
    return f"{1 << max(0, tokens // sequences - 1).bit_length()} tokens of {channels} channels"
