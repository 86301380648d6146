"""What the kernels share that walk through ragged sequences and carry a state from one block of tokens to the next.

The sequences lie one after the other in rows that are cut into blocks.  A visit is one sequence inside one block; the
visits of a sequence follow each other, so that its state stays in VMEM from the first to the last.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from systolic.kernels.arguments import need
from systolic.kernels.worklist import visits_of

# Fields of a visit: the slot of the sequence's state, the block of rows, the sequence's rows in it, and the state it
# starts with: that of the visit before, that of the slot, or zeros; PADDING: rows after the last sequence.
SLOT, BLOCK, START, STOP, ENTRY = range(5)
FIELDS = 5
CONTINUES, RESUMES, BEGINS, PADDING = range(4)


def check_sequences(slots, starts, resumed) -> None:
    """Raise ValueError unless they are int32 [S], int32 [S + 1] and bool [S], with S > 0."""
    need(slots.ndim == 1 and slots.shape[0] > 0 and slots.dtype == jnp.int32,
         f"slots is {slots.dtype}{slots.shape}; it must be int32 [S] with a sequence at least, which may be empty")
    count = slots.shape[0]
    need(starts.shape == (count + 1,) and starts.dtype == jnp.int32,
         f"starts is {starts.dtype}{starts.shape}; it must be int32 [{count + 1}], one more than slots has")
    need(resumed.shape == (count,) and resumed.dtype == jnp.bool_,
         f"resumed is {resumed.dtype}{resumed.shape}; it must be bool [{count}], one for each sequence of slots")


def walk(slots, starts, resumed, rows: int, block: int):
    """(visits [5 * size] int32, field f of visit v at f * size + v; their number [1]).  ``rows`` > 0."""
    count = slots.shape[0]
    sizes = starts[1:] - starts[:-1]
    sequence, at, start, stop, rank, total = visits_of(sizes, rows, block)
    entry = jnp.where(rank > 0, CONTINUES, jnp.where(resumed[jnp.minimum(sequence, count - 1)], RESUMES, BEGINS))
    entry = jnp.where(sequence == count, PADDING, entry)
    # Padding stays at the last state in use: nothing is fetched for it.
    last = jnp.max(jnp.where(sizes > 0, jnp.arange(count, dtype=jnp.int32), 0))
    slot = slots[jnp.where(sequence == count, last, jnp.minimum(sequence, count - 1))]
    fields = [jnp.maximum(slot, 0), at, start, stop, entry]
    return jnp.concatenate(fields).astype(jnp.int32), total.reshape(1)


def field(which: int, number, visits, count):
    """A field of a visit, for index maps; visits beyond the last stay there, so that nothing is fetched for them."""
    return visits[which * (visits.shape[0] // FIELDS) + jnp.minimum(number, count[0] - 1)]


def enter(number, visits, count, state, new_state):
    """In a kernel: set up a visit's state.  Returns (whether it has tokens, whether it is padding, start, stop)."""
    live = number < count[0]
    start, stop, entry = (field(which, number, visits, count) for which in (START, STOP, ENTRY))

    # Also for the first visit of all: padding alone must leave the state that it stays at as it is.
    @pl.when(live & ((entry == RESUMES) | (number == 0)))
    def _():
        new_state[...] = state[...]

    @pl.when(live & (entry == BEGINS))
    def _():
        new_state[...] = jnp.zeros_like(new_state)

    return live & (entry != PADDING), live & (entry == PADDING), start, stop


def mine(rows: int, start, stop):
    """bool [rows, 1]: those of the visit."""
    row = jax.lax.broadcasted_iota(jnp.int32, (rows, 1), 0)
    return (row >= start) & (row < stop)


def in_columns(x):
    """[T, heads, n] as [T, heads * m], where each head starts on a tile of 128 columns: m is n rounded up."""
    tokens, heads, width = x.shape
    return jnp.pad(x, ((0, 0), (0, 0), (0, -width % 128))).reshape(tokens, -1)
