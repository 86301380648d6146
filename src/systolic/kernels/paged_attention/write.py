"""The first part of the paged attention kernel: this step's keys and values go into their pages."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.narrow import limited
from systolic.kernels.paged_attention import schedule
from systolic.kernels.paged_attention.static import WRITE_BUFFERS, Static


def write_new_tokens(c: Static, part, writes, write_count, new, cache, scales, old, rows, sems):
    """Merges this step's keys and values into their pages, a window of rows at a time.

    new: [kinds * kv_heads, padded tokens, dim] float32 in HBM; old: [4, kinds, heads, window_rows, dim] of the cache's
    dtype; rows: [4, kinds, heads, window_rows + 8, dim] float32; sems: [3, 4] for old in, new in, old out.
    """
    total = write_count[0]
    all_heads = new.shape[0] // c.kinds

    def field(f, w):
        return writes[f * c.writes + w]

    def at_cache(w):
        top = pl.multiple_of(field(schedule.ROW, w), c.window_rows)
        page = jnp.clip(field(schedule.PAGE, w), 0, cache.shape[0] - 1)
        return cache.at[page, :, pl.ds(part * c.heads, c.heads), pl.ds(top, c.window_rows)]

    def reads(w, slot):
        source = pl.multiple_of(field(schedule.SOURCE, w), 8)
        yield pltpu.make_async_copy(at_cache(w), old.at[slot], sems.at[0, slot])
        for kind in range(c.kinds):
            first = kind * all_heads + part * c.heads
            yield pltpu.make_async_copy(
                new.at[pl.ds(first, c.heads), pl.ds(source, c.window_rows + 8)], rows.at[slot, kind], sems.at[1, slot]
            )

    def write(w, slot):
        return pltpu.make_async_copy(old.at[slot], at_cache(w), sems.at[2, slot])

    @pl.when(total > 0)
    def _():
        for copy in reads(0, 0):
            copy.start()

    def body(w, _):
        slot = w & (WRITE_BUFFERS - 1)
        following = (w + 1) & (WRITE_BUFFERS - 1)

        @pl.when(w + 1 < total)
        def _():
            @pl.when(w + 1 >= WRITE_BUFFERS)
            def _():
                write(w + 1 - WRITE_BUFFERS, following).wait()

            for copy in reads(w + 1, following):
                copy.start()

        for copy in reads(w, slot):
            copy.wait()
        row = jax.lax.broadcasted_iota(jnp.int32, (c.window_rows, new.shape[2]), 0)
        mine = (row >= field(schedule.FROM, w)) & (row < field(schedule.TO, w))
        back = c.window_rows + 8 - field(schedule.SHIFT, w)
        for kind in range(c.kinds):
            for head in range(c.heads):
                moved = pltpu.roll(rows[slot, kind, head], back, axis=0)[: c.window_rows]
                if c.scaled:
                    moved = moved / scales[kind * all_heads + part * c.heads + head]
                before = old[slot, kind, head]
                # Selected in float32, which every generation can; 8-bit floats go through it exactly.
                merged = jnp.where(mine, limited(moved, old.dtype), before.astype(jnp.float32))
                old[slot, kind, head] = merged.astype(old.dtype)
        write(w, slot).start()
        return 0

    jax.lax.fori_loop(0, total, body, 0)

    def drain(w, _):
        write(w, w & (WRITE_BUFFERS - 1)).wait()
        return 0

    jax.lax.fori_loop(jnp.maximum(total - WRITE_BUFFERS, 0), total, drain, 0)
