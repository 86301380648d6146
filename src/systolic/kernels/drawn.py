"""Ragged sequences for the drawn cases of kernels that walk through them."""

from __future__ import annotations

import numpy as np


def draw_sequences(rng, turn: int, tokens: int, sequences: int, block: int):
    """(a name, arrays "slots", "starts", "resumed") for the turns of one program; slots are out of ``sequences`` + 2.

    Turns 0 to 3: no tokens at all, one in each sequence, lengths beside the block's size, all tokens in one sequence.
    """
    if turn == 0:
        name, sizes = "no tokens", [0] * sequences
    elif turn == 1:
        name, sizes = "one token each", [int(s < tokens) for s in range(sequences)]
    elif turn == 2:
        left, sizes, name = tokens, [], "lengths around a block"
        for s in range(sequences):
            sizes.append(min(left, block + (0, 1, -1)[s % 3]))
            left -= sizes[-1]
    elif turn == 3:
        only = int(rng.integers(sequences))
        name, sizes = "all in one", [tokens * int(s == only) for s in range(sequences)]
    else:
        total = tokens if turn < 6 else int(rng.integers(0, tokens + 1))
        name = "ragged" if turn < 6 else "ragged with padding"
        sizes = rng.multinomial(total, rng.dirichlet(np.ones(sequences) * 0.6)).tolist()
    arrays = {
        "slots": rng.permutation(sequences + 2)[:sequences].astype(np.int32),
        "starts": np.cumsum([0, *sizes]).astype(np.int32), "resumed": rng.random(sequences) < 0.6,
    }  # fmt: skip
    return f"{name} {turn}", arrays
