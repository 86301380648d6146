"""Reading and writing strided views inside a program.

A cell holds a dense array; a tensor is a window on it given by sizes, strides and an offset in
elements.  :func:`read` and :func:`write` turn such a window into slices, reshapes and transposes
of the array, which XLA fuses or performs in place; only overlapping windows need a gather.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


# A strided window this much smaller than its storage is written element by element: other ways copy the storage.
_SPARSE = 1024


@dataclass(frozen=True)
class Window:
    """A tensor's place in its storage, as the C++ core describes it."""

    cell: int
    stored_dtype: Any  # NumPy dtype of the stored array, or None if the storage was never written
    stored_shape: tuple[int, ...] | None
    dtype: Any
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    moving: int | None  # index of the run-time offset, or None
    offset: int  # static offset in elements (0 when moving)
    nbytes: int  # of the storage
    conjugate: bool = False  # the elements are the conjugates of what is stored (`Tensor.is_conj`)
    negative: bool = False  # and their negatives (`Tensor.is_neg`)

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)

    @property
    def contiguous(self) -> bool:
        step = 1
        for size, stride in zip(reversed(self.sizes), reversed(self.strides)):
            if size != 1 and stride != step:
                return self.numel == 0
            step *= size
        return True

    @property
    def whole(self) -> bool:
        """The window is the whole storage in order."""
        return (
            self.moving is None and self.offset == 0 and self.contiguous
            and self.numel * np.dtype(self.dtype).itemsize == self.nbytes
        )  # fmt: skip


def reinterpret(flat, dtype):
    """The bytes of a 1-D array as another dtype (``Tensor.view(dtype)``), with zeros after a rest."""
    source, target = np.dtype(flat.dtype), np.dtype(dtype)
    if source == target:
        return flat
    if source == np.bool_:
        return reinterpret(flat.astype(np.uint8), dtype)
    if target == np.bool_:
        return reinterpret(flat, np.uint8) != 0
    if jnp.issubdtype(source, jnp.complexfloating):
        parts = jnp.stack([flat.real, flat.imag], -1).reshape(-1)
        return reinterpret(parts, dtype)
    if jnp.issubdtype(target, jnp.complexfloating):
        parts = reinterpret(flat, np.float32 if target == np.complex64 else np.float64)
        parts = jnp.pad(parts, (0, parts.shape[0] % 2)).reshape(-1, 2)
        return jax.lax.complex(parts[:, 0], parts[:, 1])
    if source.itemsize < target.itemsize:
        rest = flat.shape[0] * source.itemsize % target.itemsize
        if rest:
            flat = jnp.pad(flat, (0, (target.itemsize - rest) // source.itemsize))
        flat = flat.reshape(-1, target.itemsize // source.itemsize)
    return jax.lax.bitcast_convert_type(flat, target).reshape(-1)


def _axes(window: Window):
    """Dimensions that matter, outermost stride first: (size, stride, dimension)."""
    dims = [(n, s, d) for d, (n, s) in enumerate(zip(window.sizes, window.strides)) if n != 1 and s != 0]
    return sorted(dims, key=lambda item: (-item[1], item[2]))


def _steps(dims, offset):
    """How to cut a flat array: [(start, n, stride)] from the outermost dimension, then the last start.

    None when windows overlap and only a gather can do it.
    """
    steps = []
    for position, (n, stride, _) in enumerate(dims):
        inner = 1 + sum((m - 1) * s for m, s, _ in dims[position + 1 :])
        if stride == 1:
            if position != len(dims) - 1:
                return None
            steps.append((offset, n, 1))
            return steps
        rest = offset % stride
        if rest + inner <= stride:
            steps.append((offset - rest, n, stride))
            offset = rest
        elif inner <= stride:
            steps.append((offset, n, stride))
            offset = 0
        else:
            return None
    steps.append((offset, None, 1))
    return steps


def _slice_last(array, start, length):
    """``array[..., start:start+length]``, padded with zeros past the end."""
    end = start + length
    missing = end - array.shape[-1]
    if missing > 0:
        array = jax.lax.pad(array, jnp.zeros((), array.dtype), [(0, 0, 0)] * (array.ndim - 1) + [(0, missing, 0)])
    if start == 0 and end == array.shape[-1]:
        return array
    return jax.lax.slice_in_dim(array, start, end, axis=array.ndim - 1)


def _take(flat, steps):
    array = flat
    for start, n, stride in steps:
        if n is None:
            return jax.lax.index_in_dim(array, start, axis=array.ndim - 1, keepdims=False)
        array = _slice_last(array, start, n * stride)
        if stride != 1:
            array = array.reshape(*array.shape[:-1], n, stride)
    return array


def _set_last(array, start, values):
    """``array[..., start:start+k] = values``; what lies past the end is dropped."""
    room = array.shape[-1] - start
    if values.shape[-1] > room:
        values = jax.lax.slice_in_dim(values, 0, room, axis=values.ndim - 1)
    if values.shape == array.shape:
        return values
    return jax.lax.dynamic_update_slice_in_dim(array, values, start, axis=array.ndim - 1)


def _put(flat, steps, values):
    """Inverse of :func:`_take`; ``values`` has one axis per step with a size."""
    start, n, stride = steps[0]
    if n is None:
        return _set_last(flat, start, values[..., None])
    if stride == 1:
        return _set_last(flat, start, values)
    chunk = _slice_last(flat, start, n * stride)
    rows = chunk.reshape(*chunk.shape[:-1], n, stride)
    rows = _put(rows, steps[1:], values)
    return _set_last(flat, start, rows.reshape(*chunk.shape))


def _indices(window: Window):
    index = jnp.full((), window.offset, np.int64)
    for n, stride in zip(window.sizes, window.strides):
        index = index[..., None] + jnp.arange(n, dtype=np.int64) * stride
    return index


def _lazy(values, window: Window):
    """``values`` with the window's conjugation and negation done, which is its own inverse."""
    if window.conjugate:
        values = jnp.conj(values)
    return -values if window.negative else values


def read(buffer, window: Window, moving_offset=None):
    """The window's elements as an array of shape ``window.sizes``."""
    return _lazy(_stored(buffer, window, moving_offset), window)


def _stored(buffer, window: Window, moving_offset):
    if buffer is None:
        return jnp.zeros(window.sizes, window.dtype)
    if window.numel == 0:
        return jnp.zeros(window.sizes, window.dtype)
    if window.whole and buffer.dtype == window.dtype:
        return buffer.reshape(window.sizes)
    flat = reinterpret(buffer.reshape(-1), window.dtype)
    if moving_offset is not None:
        return jax.lax.dynamic_slice_in_dim(flat, moving_offset, window.numel).reshape(window.sizes)
    dims = _axes(window)
    steps = _steps(dims, window.offset)
    if steps is None:
        return flat[_indices(window)]
    taken = _take(flat, steps)
    order = sorted(range(len(dims)), key=lambda i: dims[i][2])
    taken = taken.transpose(order)
    present = {d for _, _, d in dims}
    taken = taken.reshape([n if d in present else 1 for d, n in enumerate(window.sizes)])
    return jnp.broadcast_to(taken, window.sizes)


def dtype_after_write(window: Window, stored_dtype):
    """The stored array's dtype after :func:`write` (``stored_dtype`` is None for a storage never written).

    It is the window's where the whole storage is written.  Where a part is written, the rest must survive:

    - narrow floats are kept as integers, because XLA:CPU writes a part of a bfloat16 or float8 array by
      converting all of it to float32 and back, which is slow and changes the bits of NaNs;
    - integers stay the integers they are, so that the write can be done in place;
    - bytes that are not 0 or 1 are not kept as booleans;
    - a storage that is no whole number of the window's elements keeps its dtype.
    """
    dtype = np.dtype(window.dtype)
    if window.whole:
        return dtype
    if window.nbytes % dtype.itemsize:
        return np.dtype(np.uint8) if stored_dtype is None else stored_dtype
    if dtype == np.bool_:
        return dtype if stored_dtype in (None, np.bool_) else np.dtype(np.uint8)
    return _carrier(dtype, stored_dtype)


def _carrier(dtype, stored_dtype):
    """The dtype in which elements are moved: integers for narrow floats and where integers are stored."""
    simple = dtype != np.bool_ and not jnp.issubdtype(dtype, jnp.complexfloating)
    if simple and stored_dtype is not None and jnp.issubdtype(stored_dtype, jnp.integer):
        if stored_dtype.itemsize == dtype.itemsize:
            return stored_dtype
    narrow = simple and dtype.itemsize <= 2 and not jnp.issubdtype(dtype, jnp.integer)
    return np.dtype(f"uint{8 * dtype.itemsize}") if narrow else dtype


def write(buffer, window: Window, values, moving_offset=None):
    """The storage's new array after ``values`` (shape ``window.sizes``) were written to the window.

    ``buffer`` is None for a storage that was never written; the rest is then zeros.
    """
    values = _lazy(values, window)
    stored_dtype = dtype_after_write(window, None if buffer is None else buffer.dtype)
    if window.numel == 0:
        if buffer is not None:
            return buffer
        stored = window.sizes if window.whole else (window.nbytes // stored_dtype.itemsize,)
        return jnp.zeros(stored, stored_dtype)
    if window.whole:
        # Programs are keyed by the stored shape: keeping it keeps those of later reads.
        same = buffer is not None and buffer.size == values.size
        return values.reshape(buffer.shape) if same else values
    stored_shape = buffer.shape if buffer is not None else None
    if buffer is None:
        buffer = jnp.zeros((window.nbytes // stored_dtype.itemsize,), stored_dtype)
    dtype = np.dtype(window.dtype)
    carrier = stored_dtype if stored_dtype.itemsize == dtype.itemsize else _carrier(dtype, None)
    values = reinterpret(values.reshape(-1), carrier).reshape(window.sizes)
    flat = _write_flat(reinterpret(buffer.reshape(-1), carrier), window, values, moving_offset)
    flat = reinterpret(flat, stored_dtype)[: window.nbytes // stored_dtype.itemsize]
    if stored_shape is not None and math.prod(stored_shape) == flat.shape[0]:
        return flat.reshape(stored_shape)
    return flat


def _write_flat(flat, window: Window, values, moving_offset):
    if moving_offset is not None:
        return jax.lax.dynamic_update_slice_in_dim(flat, values.reshape(-1), moving_offset, 0)
    dims = _axes(window)
    steps = _steps(dims, window.offset)
    if steps is None or any(s == 0 and n > 1 for n, s in zip(window.sizes, window.strides)):
        return flat.at[_indices(window)].set(values)
    if len(steps) > 1 and window.numel * _SPARSE <= flat.shape[0]:
        return flat.at[_indices(window)].set(values, unique_indices=True, mode="promise_in_bounds")
    values = values.reshape([n for n in window.sizes if n != 1])
    # Axes of `values` are in dimension order; the steps want them by stride.
    rank = {d: i for i, d in enumerate(sorted(d for _, _, d in dims))}
    values = values.transpose([rank[d] for _, _, d in dims])
    return _put(flat, steps, values)


def dense_order(sizes, strides) -> tuple[int, ...] | None:
    """Dimensions from outermost to innermost if the strides are a dense permutation, else None."""
    order = sorted(range(len(sizes)), key=lambda d: (-strides[d], sizes[d] == 1, d))
    step = 1
    for d in reversed(order):
        if sizes[d] == 1:
            continue
        if strides[d] != step:
            return None
        step *= sizes[d]
    return tuple(order)
