"""The body of the paged attention kernel: the write, then every query block's visits to its sequences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.paged_attention import schedule
from systolic.kernels.paged_attention.static import TABLE_ROWS, Static, per_row, quotient, scalar_quotient
from systolic.kernels.paged_attention.write import write_new_tokens

# A hidden score lies below the running maximum's first value, so that its weight is exactly 0.
HIDDEN = -2.0e38
FLOOR = -1.0e38
# Scalar state that outlives a grid step: next visit and key block to fetch, its buffer, the buffer to attend to.
VISIT, KEY_BLOCK, FETCH_SLOT, SLOT = range(4)


def body(c: Static, visits, blocks, writes, write_count, q, table, new, cache_in, slopes, sinks, scales,
         out, cache, *rest):  # fmt: skip
    del cache_in  # the same memory as `cache`
    lse = rest[0] if c.lse else None
    pages, table_rows, state, acc, top, total, old, rows, page_sems, row_sems, write_sems = rest[1 if c.lse else 0 :]
    part, step = pl.program_id(0), pl.program_id(1)
    last_visit = blocks[blocks.shape[0] - 1]

    def field(f, p):
        return visits[f * c.visits + p]

    def row_copy(p):
        slot = p & (TABLE_ROWS - 1)
        return pltpu.make_async_copy(table.at[field(schedule.SEQUENCE, p)], table_rows.at[slot], row_sems.at[slot])

    def lowest_key(p):
        return jnp.maximum(field(schedule.POSITION, p) - c.sliding_window + 1, 0) if c.sliding_window else 0

    def live_pages(p, j):
        """The pages [from, to) of key block j that visit p reads."""
        base = j * c.key_block
        to = jnp.minimum(scalar_quotient(field(schedule.LIMIT, p) - base + c.page_size - 1, c.page_size), c.pages)
        return jnp.maximum(scalar_quotient(lowest_key(p) - base, c.page_size), 0), to

    def page_copy(page, i, slot):
        return pltpu.make_async_copy(
            cache.at[page, :, pl.ds(part * c.heads, c.heads)], pages.at[slot, i], page_sems.at[slot]
        )

    def after(slot):
        return jnp.where(slot == c.buffers - 1, 0, slot + 1)

    def fetch():
        """Start the copies of the next key block, if there is one."""
        p, j = state[VISIT], state[KEY_BLOCK]

        @pl.when(p < last_visit)
        def _():
            @pl.when(j == field(schedule.FIRST, p))
            def _():
                @pl.when(p + 2 < last_visit)
                def _():
                    row_copy(p + 2).start()

                row_copy(p).wait()

            slot, row = state[FETCH_SLOT], p & (TABLE_ROWS - 1)
            begin, end = live_pages(p, j)

            def start(i, _):
                # The compiler's bounds checks are off; a page out of range reads another one, no foreign memory.
                page = jnp.clip(table_rows[row, 0, j * c.pages + i], 0, cache.shape[0] - 1)
                page_copy(page, i, slot).start()
                return 0

            jax.lax.fori_loop(begin, end, start, 0)
            state[FETCH_SLOT] = after(slot)
            is_last = j + 1 == field(schedule.LAST, p)
            following = jnp.minimum(p + 1, c.visits - 1)
            state[VISIT] = jnp.where(is_last, p + 1, p)
            state[KEY_BLOCK] = jnp.where(is_last, field(schedule.FIRST, following), j + 1)

    @pl.when(step == 0)
    def _():
        write_new_tokens(c, part, writes, write_count, new, cache, scales, old, rows, write_sems)
        state[VISIT] = 0
        state[KEY_BLOCK] = field(schedule.FIRST, 0)
        state[FETCH_SLOT] = 0
        state[SLOT] = 0
        for p in range(2):

            @pl.when(p < last_visit)
            def _():
                row_copy(p).start()

        for _ in range(c.buffers - 1):
            fetch()

    acc[...] = jnp.zeros_like(acc)
    total[...] = jnp.zeros_like(total)
    top[...] = jnp.full_like(top, FLOOR)

    def attend_either(p, j, slot, first_row, size, unroll):
        """Key block j for ``size`` rows of every head, with a mask only where one is needed."""
        begin, end = field(schedule.START, p), field(schedule.STOP, p)
        shift = field(schedule.POSITION, p) - begin
        lowest = jnp.maximum(scalar_quotient(first_row, c.group), begin) + shift
        highest = jnp.minimum(scalar_quotient(first_row + size - 1, c.group), end - 1) + shift
        below = (j + 1) * c.key_block - 1  # the last key
        masked = below >= field(schedule.LIMIT, p)
        if c.causal:
            masked |= below > lowest
        if c.sliding_window:
            masked |= j * c.key_block <= highest - c.sliding_window
            if not c.causal:
                masked |= below >= lowest + c.sliding_window
        hidden = jnp.bool_(False)
        if c.causal:  # the chunk's last query stands before the first key
            hidden = j * c.key_block > highest
        for variant in (False, True):

            @pl.when((masked ^ (not variant)) & jnp.logical_not(hidden))
            def _():
                if unroll:
                    for head in range(c.heads):
                        attend(p, j, slot, first_row, size, head, variant)
                else:

                    def one(head, _):
                        attend(p, j, slot, first_row, size, head, variant)
                        return 0

                    jax.lax.fori_loop(0, c.heads, one, 0)

    def attend(p, j, slot, first_row, size, head, masked):
        """Fold key block j into the online softmax of ``size`` query rows of one head."""
        at = (head, pl.ds(first_row, size))
        kv_head = part * c.heads + head
        keys = pages[slot, :, 0, head].reshape(c.key_block, -1)
        values = keys[:, : c.latent] if c.latent else pages[slot, :, 1, head].reshape(c.key_block, -1)
        queries = q[at]
        wide = queries.dtype if queries.dtype == keys.dtype else jnp.promote_types(queries.dtype, jnp.bfloat16)
        precision = jax.lax.Precision.HIGHEST if wide == jnp.float32 else None
        scores = jax.lax.dot_general(queries.astype(wide), keys.astype(wide), (((1,), (1,)), ((), ())),
                                     precision=precision, preferred_element_type=jnp.float32)  # fmt: skip
        factor = jnp.float32(c.scale)
        if c.scaled:
            factor = factor * scales[kv_head]
        scores = scores * factor
        if c.soft_cap:
            scores = jnp.tanh(scores * (1.0 / c.soft_cap)) * c.soft_cap
        row = first_row + jax.lax.broadcasted_iota(jnp.int32, (size, 1), 0)
        token = quotient(row, c.group)
        position = field(schedule.POSITION, p) + token - field(schedule.START, p)
        key = j * c.key_block + jax.lax.broadcasted_iota(jnp.int32, (1, c.key_block), 1)
        if c.alibi:
            slope = per_row(row - token * c.group, slopes, kv_head * c.group, c.group)
            scores = scores + slope * (key - position).astype(jnp.float32)
        if masked:
            seen = key < field(schedule.LIMIT, p)
            if c.causal:
                seen = seen & (key <= position)
            elif c.sliding_window:
                seen = seen & (key < position + c.sliding_window)
            if c.sliding_window:
                seen = seen & (key > position - c.sliding_window)
            scores = jnp.where(seen, scores, HIDDEN)
            # What was not read may hold anything, NaN included.
            place = j * c.key_block + jax.lax.broadcasted_iota(jnp.int32, (c.key_block, 1), 0)
            begin, _ = live_pages(p, j)
            read = (place < field(schedule.LIMIT, p)) & (place >= j * c.key_block + begin * c.page_size)
            values = jnp.where(read, values.astype(jnp.float32), 0.0)
        before = top[at]
        now = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
        weights = jnp.exp(scores - now[:, :1])
        shrink = jnp.exp(before - now)
        product = jnp.dot(weights.astype(wide), values.astype(wide), precision=precision,
                          preferred_element_type=jnp.float32)  # fmt: skip
        # Rows of other sequences may be among these.
        mine = (token >= field(schedule.START, p)) & (token < field(schedule.STOP, p))
        for reference, value in ((top, now), (total, total[at] * shrink + jnp.sum(weights, axis=1, keepdims=True)),
                                 (acc, acc[at] * shrink[:, :1] + product)):  # fmt: skip
            reference[at] = jnp.where(mine, value, reference[at])

    def visit(p, _):
        begin_row, end_row = field(schedule.START, p) * c.group, field(schedule.STOP, p) * c.group
        small_start = jnp.minimum(begin_row // c.align * c.align, acc.shape[1] - c.small_rows)
        small_start = pl.multiple_of(small_start, c.align)

        def key_block(j, _):
            fetch()
            slot = state[SLOT]
            begin, end = live_pages(p, j)

            def wait(i, _):
                # A wait only counts bytes; the visit's row of the table may be gone by now.
                page_copy(0, i, slot).wait()
                return 0

            jax.lax.fori_loop(begin, end, wait, 0)
            is_small = end_row - small_start <= c.small_rows

            @pl.when(is_small)
            def _():
                attend_either(p, j, slot, small_start, c.small_rows, c.unroll_heads)

            @pl.when(jnp.logical_not(is_small))
            def _():
                def chunk(n, _):
                    attend_either(p, j, slot, pl.multiple_of(n * c.chunk_rows, c.align), c.chunk_rows, False)
                    return 0

                jax.lax.fori_loop(begin_row // c.chunk_rows, pl.cdiv(end_row, c.chunk_rows), chunk, 0)

            state[SLOT] = after(slot)
            return 0

        jax.lax.fori_loop(field(schedule.FIRST, p), field(schedule.LAST, p), key_block, 0)
        return 0

    jax.lax.fori_loop(blocks[step], blocks[step + 1], visit, 0)

    for head in range(c.heads):
        kv_head = part * c.heads + head
        peak, denominator, result = top[head], total[head], acc[head]
        if c.sinks:
            row = jax.lax.broadcasted_iota(jnp.int32, (acc.shape[1], 1), 0)
            sink = per_row(row - quotient(row, c.group) * c.group, sinks, kv_head * c.group, c.group)
            live = denominator > 0
            now = jnp.where(live, jnp.maximum(peak, sink), peak)
            shrink = jnp.exp(peak - now)
            denominator = denominator * shrink + jnp.where(live, jnp.exp(sink - now), 0.0)
            peak, result = now, result * shrink[:, :1]
        safe = jnp.where(denominator == 0, 1.0, denominator)
        if c.scaled:
            result = result * scales[(c.kinds - 1) * (scales.shape[0] // c.kinds) + kv_head]
        out[head] = (result / safe[:, :1]).astype(out.dtype)
        if c.lse:
            lse[head] = jnp.where(denominator == 0, -jnp.inf, peak + jnp.log(safe))
