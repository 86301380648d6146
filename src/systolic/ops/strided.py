"""Read and write a strided window of a flat buffer.

A window is PyTorch's (size, stride, offset) in elements.  Where the strides nest without overlap
the flat buffer is reshaped to a grid and the window is a box of it: slices, reshapes and
transposes that XLA fuses and updates in place.  Every other pattern becomes a gather or scatter
with a computed flat index.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Sequence

import jax.numpy as jnp
from jax import lax


class _Box(NamedTuple):
    """A window as a box of a grid laid over the buffer."""

    order: tuple[int, ...]  # window dimensions, largest stride first
    grid: tuple[int, ...]
    start: tuple[int, ...]
    extent: tuple[int, ...]
    step: tuple[int, ...]
    padded: int  # elements that the grid covers

    def slices(self) -> tuple[slice, ...]:
        return tuple(slice(a, a + (n - 1) * k + 1, k) for a, n, k in zip(self.start, self.extent, self.step))


def _box(length: int, size: Sequence[int], stride: Sequence[int], offset: int) -> _Box | None:
    """The window as a box, or None where the strides do not nest."""
    order = sorted((d for d in range(len(size)) if size[d] != 1), key=lambda d: -stride[d])
    grid, start, extent, steps = [], [], [], []
    room, position, padded = length, offset, length
    for level, d in enumerate(order):
        cell = stride[d]
        if cell == 0:
            return None
        if room % cell and not level:
            room = padded = max(room // cell, position // cell + size[d]) * cell
        # Where the stride does not divide the room, a smaller cell does and is stepped over.
        cell = math.gcd(room, cell)
        grid.append(room // cell)
        start.append(position // cell)
        extent.append(size[d])
        steps.append(stride[d] // cell)
        if start[-1] + (size[d] - 1) * steps[-1] >= grid[-1]:
            return None
        room, position = cell, position % cell
    return _Box(tuple(order), (*grid, room), (*start, position), (*extent, 1), (*steps, 1), padded)


def is_contiguous(size: Sequence[int], stride: Sequence[int]) -> bool:
    """True when (size, stride) is row-major without gaps."""
    expected = 1
    for n, s in zip(reversed(size), reversed(stride)):
        if n != 1 and s != expected:
            return False
        expected *= n
    return True


def flat_index(size: Sequence[int], stride: Sequence[int], offset: int):
    """int64 array of shape ``size``: the flat position of each window element."""
    index = jnp.full((), offset, jnp.int64)
    for d, (n, s) in enumerate(zip(size, stride)):
        index = index + jnp.expand_dims(jnp.arange(n, dtype=jnp.int64) * s, tuple(range(1, len(size) - d)))
    return jnp.broadcast_to(index, tuple(size))


def _resized(flat, length: int):
    if length <= flat.shape[0]:
        return flat[:length]
    return jnp.pad(flat, (0, length - flat.shape[0]))


def check_bounds(length: int, size: Sequence[int], stride: Sequence[int], offset: int) -> None:
    """Raise IndexError unless the window lies within ``length`` elements."""
    last = offset + sum((n - 1) * s for n, s in zip(size, stride))
    if 0 not in tuple(size) and not 0 <= last < length:
        raise IndexError(
            f"sizes {list(size)} and strides {list(stride)} from offset {offset} reach element {last} of a "
            f"storage of {length}; use a smaller size, stride or offset"
        )


def read(flat, size: Sequence[int], stride: Sequence[int], offset: int = 0):
    """The window of 1-d ``flat`` as an array of shape ``size``."""
    size, stride = tuple(size), tuple(stride)
    count = 1
    for n in size:
        count *= n
    if count == 0:
        return jnp.zeros(size, flat.dtype)
    if is_contiguous(size, stride):
        return lax.slice(flat, (offset,), (offset + count,)).reshape(size)
    kept = tuple(1 if s == 0 else n for n, s in zip(size, stride))
    box = _box(flat.shape[0], kept, stride, offset)
    if box is None:
        return flat[flat_index(size, stride, offset)]
    grid = _resized(flat, box.padded).reshape(box.grid)
    part = grid[box.slices()].reshape(tuple(kept[d] for d in box.order))
    part = jnp.transpose(part, _inverse(box.order))
    return jnp.broadcast_to(part.reshape(kept), size)


def write(flat, value, size: Sequence[int], stride: Sequence[int], offset: int = 0):
    """``flat`` with the window replaced by ``value`` (broadcast to ``size``, cast to its dtype)."""
    size, stride = tuple(size), tuple(stride)
    value = jnp.broadcast_to(value.astype(flat.dtype), size)
    if value.size == 0:
        return flat
    if is_contiguous(size, stride):
        return lax.dynamic_update_slice(flat, value.reshape(-1), (offset,))
    box = _box(flat.shape[0], size, stride, offset)
    if box is None:
        return flat.at[flat_index(size, stride, offset)].set(value)
    length = flat.shape[0]
    grid = _resized(flat, box.padded)
    part = value.reshape(tuple(size[d] for d in range(len(size)) if size[d] != 1))
    part = jnp.transpose(part, _ranks(box.order)).reshape(box.extent)
    grid = grid.reshape(box.grid)
    if all(step == 1 for step in box.step):
        done = lax.dynamic_update_slice(grid, part, box.start).reshape(-1)
    else:
        done = grid.at[box.slices()].set(part).reshape(-1)
    if box.padded < length:
        return lax.dynamic_update_slice(flat, done, (0,))
    return done[:length]


def _ranks(order: tuple[int, ...]) -> tuple[int, ...]:
    """Dimension numbers of ``order`` counted among the dimensions in it."""
    kept = sorted(order)
    return tuple(kept.index(d) for d in order)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    ranks = _ranks(order)
    return tuple(sorted(range(len(ranks)), key=lambda i: ranks[i]))
