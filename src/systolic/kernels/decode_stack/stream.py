"""The stream of a decoder stack's weights from HBM through rings of VMEM buffers.

A ring's buffers are full or being filled at all times: as soon as a block was used, its buffer takes the ring's next
one, whichever matrix and layer that belongs to.  So the first blocks of a matrix arrive while an earlier one computes.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.decode_stack.plan import RINGS, Static


class Stream:
    """weights: of each matrix, [layers, 2, half, columns] in HBM; rings: [buffers, 2, rows, columns] in VMEM.

    sems: a DMA semaphore for each ring and buffer; places: int32 [rings] in SMEM, the buffer to use next.
    """

    def __init__(self, c: Static, weights, rings, sems, places):
        self._c, self._weights, self._rings, self._sems, self._places = c, weights, rings, sems, places

    def _copy(self, index: int, layer, block, slot):
        matrix = self._c.matrices[index]
        rows = pl.ds(pl.multiple_of(block * matrix.rows, matrix.rows), matrix.rows)
        return pltpu.make_async_copy(self._weights[index].at[layer, :, rows], self._rings[matrix.ring].at[slot],
                                     self._sems.at[matrix.ring, slot])  # fmt: skip

    def start(self) -> None:
        """Fill every ring; once, before the first layer."""
        for ring, members in enumerate(RINGS):
            self._places[ring] = 0
            for slot in range(self._c.buffers):
                self._copy(members[0], 0, slot, slot).start()

    def through(self, index: int, layer, use: Callable) -> None:
        """``use(block number, block [2, rows, columns])`` for each block of a layer's matrix, in order."""
        c, matrix = self._c, self._c.matrices[index]

        def step(block, _):
            slot = self._places[matrix.ring]
            self._copy(index, layer, block, slot).wait()
            use(block, self._rings[matrix.ring].at[slot])
            ahead = block + c.buffers

            @pl.when(ahead < matrix.blocks)
            def _():
                self._copy(index, layer, ahead, slot).start()

            owner = layer + 1 if matrix.wraps else layer

            @pl.when((ahead >= matrix.blocks) & (owner < c.layers))
            def _():
                self._copy(matrix.following, owner, ahead - matrix.blocks, slot).start()

            self._places[matrix.ring] = jax.lax.select(slot == c.buffers - 1, 0, slot + 1)
            return 0

        jax.lax.fori_loop(0, matrix.blocks, step, 0)
