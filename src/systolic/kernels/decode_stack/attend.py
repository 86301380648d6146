"""Attention of one layer of the decoder stack: the cached keys of each sequence and its new one, which is written.

The key blocks of all sequences are one list, the same for every layer, so that the next layer's first blocks are on
their way while this layer's weights are used.  Softmax is the online form of arXiv:2205.14135.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.decode_stack.plan import ROWS, Static

# A hidden score lies below the running maximum's first value, so that its weight is exactly 0.
HIDDEN = -2.0e38
FLOOR = -1.0e38
# Scalar state that outlives a layer: layer and visit to fetch next, the buffer to attend to.
LAYER, VISIT, SLOT = range(3)


class Attention:
    """table: int32 [sequences * pages]; lengths: int32 [sequences], with the new token, 0 for none.

    owners, blocks, count: int32, the visits: sequence and key block of each, and their number.
    cache: [layers, pages, 2, kv_heads, page, dim] in HBM; held: [key_buffers, 2, kv_heads, key_block, dim] in VMEM.
    new: [2, kv_heads, 8, dim] float32, this step's keys and values; queries, sums: [kv_heads, group * 8, dim] float32,
    a row for each head of the group and sequence; tops, totals: the same with 128 columns, all equal.
    windows: [8, 2, kv_heads, window, dim], what is written of each sequence.
    """

    def __init__(self, c: Static, scalars, cache, queries, new, sums, tops, totals, held, windows, sems, write_sems,
                 state):  # fmt: skip
        self.c, self.cache = c, cache
        self.table, self.lengths, self.owners, self.blocks, self.count = scalars
        self.queries, self.new, self.sums, self.tops, self.totals = queries, new, sums, tops, totals
        self.held, self.windows, self.sems, self.write_sems, self.state = held, windows, sems, write_sems, state

    def start(self) -> None:
        """Fill the buffers; once, before the first layer."""
        for field in (LAYER, VISIT, SLOT):
            self.state[field] = 0
        for slot in range(self.c.key_buffers):
            self._fetch(slot)

    def _place(self, sequence, token):
        """The page that holds a sequence's token, and the token's place in it."""
        # The compiler's bounds checks are off; a page out of range reads another one, no foreign memory.
        index = jnp.clip(_quotient(token, self.c.page_size), 0, self.c.table_pages - 1)
        page = jnp.clip(self.table[sequence * self.c.table_pages + index], 0, self.cache.shape[1] - 1)
        return page, _remainder(token, self.c.page_size)

    def _copy(self, layer, page, offset, piece, slot):
        source = self.cache.at[layer, page, :, :, pl.ds(pl.multiple_of(offset, self.c.window), self.c.piece)]
        place = pl.ds(pl.multiple_of(piece * self.c.piece, self.c.piece), self.c.piece)
        return pltpu.make_async_copy(source, self.held.at[slot, :, :, place], self.sems.at[slot])

    def _live_pieces(self, sequence, block):
        left = self.lengths[sequence] - block * self.c.key_block
        return jnp.minimum(_quotient(left + self.c.piece - 1, self.c.piece), self.c.pieces)

    def _fetch(self, slot) -> None:
        """Start the copies of the next visit's keys and values, if there is one."""
        c, state = self.c, self.state
        layer, visit = state[LAYER], state[VISIT]

        @pl.when((layer < c.layers) & (self.count[0] > 0))
        def _():
            sequence, block = self.owners[visit], self.blocks[visit]

            def one(piece, _):
                page, offset = self._place(sequence, block * c.key_block + piece * c.piece)
                self._copy(layer, page, offset, piece, slot).start()
                return 0

            jax.lax.fori_loop(0, self._live_pieces(sequence, block), one, 0)
            is_last = visit + 1 == self.count[0]
            state[VISIT] = jnp.where(is_last, 0, visit + 1)
            state[LAYER] = jnp.where(is_last, layer + 1, layer)

    def _write_copy(self, layer, sequence):
        page, offset = self._place(sequence, self.lengths[sequence] - 1)
        top = pl.multiple_of(_quotient(offset, self.c.window) * self.c.window, self.c.window)
        tile = self.cache.at[layer, page, :, :, pl.ds(top, self.c.window)]
        return pltpu.make_async_copy(self.windows.at[sequence], tile, self.write_sems.at[sequence])

    def _insert(self, layer, sequence, slot, within) -> None:
        """Put the new key and value at the place ``within`` of the last key block, and write their tile."""

        @pl.when(layer > 0)
        def _():
            self._write_copy(layer - 1, sequence).wait()

        top = pl.multiple_of(_quotient(within, self.c.window) * self.c.window, self.c.window)
        row = jax.lax.broadcasted_iota(jnp.int32, (self.c.window, 1), 0)
        mine = jax.lax.broadcasted_iota(jnp.int32, (ROWS, 1), 0) == sequence
        for kind in range(2):
            for head in range(self.c.kv_heads):
                at = (slot, kind, head, pl.ds(top, self.c.window))
                added = jnp.sum(jnp.where(mine, self.new[kind, head], 0.0), axis=0, keepdims=True)
                # Selected in float32, which every generation can.
                merged = jnp.where(row == within - top, added, self.held[at].astype(jnp.float32))
                merged = merged.astype(self.held.dtype)
                self.held[at] = merged
                self.windows[sequence, kind, head] = merged
        self._write_copy(layer, sequence).start()

    def _fold(self, sequence, slot, live) -> None:
        """A key block into the softmax of a sequence's rows; ``live``: keys that count, None for all."""
        c = self.c
        mine = (jax.lax.broadcasted_iota(jnp.int32, (c.group * ROWS, 1), 0) & (ROWS - 1)) == sequence
        options = {"preferred_element_type": jnp.float32}
        if self.held.dtype == jnp.float32:
            options["precision"] = jax.lax.Precision.HIGHEST
        for head in range(c.kv_heads):
            keys, values = self.held[slot, 0, head], self.held[slot, 1, head]
            queries = self.queries[head].astype(keys.dtype)
            scores = jax.lax.dot_general(queries, keys, (((1,), (1,)), ((), ())), **options) * c.scale
            if live is not None:
                key = jax.lax.broadcasted_iota(jnp.int32, (1, c.key_block), 1)
                scores = jnp.where(key < live, scores, HIDDEN)
                # What was not read may hold anything, NaN included.
                read = jax.lax.broadcasted_iota(jnp.int32, (c.key_block, 1), 0) < live
                values = jnp.where(read, values.astype(jnp.float32), 0.0).astype(keys.dtype)
            before = self.tops[head]
            now = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
            weights = jnp.exp(scores - now[:, :1])
            shrink = jnp.exp(before - now)
            product = jnp.dot(weights.astype(keys.dtype), values, **options)
            total = self.totals[head] * shrink + jnp.sum(weights, axis=1, keepdims=True)
            # The rows of the other sequences were computed along, which costs the matrix unit nothing.
            for kept, value in ((self.tops, now), (self.totals, total),
                                (self.sums, self.sums[head] * shrink[:, :1] + product)):  # fmt: skip
                kept[head] = jnp.where(mine, value, kept[head])

    def attend(self, layer) -> None:
        """All visits of a layer; then ``sums / totals`` is the result, 0 / 0 for a sequence without a token."""
        self.sums[...] = jnp.zeros_like(self.sums)
        self.totals[...] = jnp.zeros_like(self.totals)
        self.tops[...] = jnp.full_like(self.tops, FLOOR)

        def visit(number, _):
            sequence, block = self.owners[number], self.blocks[number]
            slot = self.state[SLOT]

            def wait(piece, _):
                self._copy(layer, 0, 0, piece, slot).wait()  # a wait only counts bytes
                return 0

            jax.lax.fori_loop(0, self._live_pieces(sequence, block), wait, 0)
            live = self.lengths[sequence] - block * self.c.key_block
            is_last = live <= self.c.key_block

            @pl.when(is_last)
            def _():
                self._insert(layer, sequence, slot, live - 1)
                self._fold(sequence, slot, live)

            @pl.when(jnp.logical_not(is_last))
            def _():
                self._fold(sequence, slot, None)

            self._fetch(slot)
            self.state[SLOT] = jnp.where(slot == self.c.key_buffers - 1, 0, slot + 1)
            return 0

        jax.lax.fori_loop(0, self.count[0], visit, 0)

    def finish(self, layer) -> None:
        """Wait for the last layer's writes."""

        def one(sequence, _):
            @pl.when(self.lengths[sequence] > 0)
            def _():
                self._write_copy(layer, sequence).wait()

            return 0

        jax.lax.fori_loop(0, self.lengths.shape[0], one, 0)


def _quotient(x, divisor: int):
    """x // divisor for a scalar x >= 0; division is slow."""
    if divisor & (divisor - 1) == 0:
        return jax.lax.shift_right_logical(x, divisor.bit_length() - 1)
    return jax.lax.div(x, jnp.int32(divisor))


def _remainder(x, divisor: int):
    return x - _quotient(x, divisor) * divisor
