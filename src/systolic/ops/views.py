"""View operators as functions of values: shapes, slices, strides, reinterpretation of bits.

In eager mode the C++ core makes aliasing views, so the records marked ``view=True`` are for
functional graphs only.  ``*_copy`` and ``*_scatter`` operators are ordinary ones.  A value has no
strides: ``as_strided`` reads its input as a row-major buffer.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from . import strided
from .numerics import cast, jdtype
from .registry import lower, out


def slice_bounds(size: int, start, end, step) -> tuple[int, int, int]:
    """PyTorch's clamped (start, end, step) of a slice of a dimension of length ``size``."""
    start = 0 if start is None else start
    end = size if end is None else end
    start = min(max(start + size if start < 0 else start, 0), size)
    end = min(max(end + size if end < 0 else end, start), size)
    return start, end, step


def _both(view_names, copy_names):
    """Register one function as a graph-only view and as an ordinary copying operator."""

    def register(fn):
        lower(*view_names, view=True)(fn)
        lower(*copy_names)(fn)
        return fn

    return register


@_both(
    # `_unsafe_view` aliases too: `kron` writes its out= argument through one.
    ("view", "reshape", "_reshape_alias", "_unsafe_view", "squeeze", "unsqueeze"),
    ("_reshape_copy", "_reshape_alias_copy", "view_copy", "squeeze_copy", "unsqueeze_copy"),
)
def _reshaped(self, **_):
    return jnp.reshape(self, out().shape)


@_both(("alias", "detach", "lift_fresh"), ("alias_copy", "detach_copy", "lift", "lift_fresh_copy"))
def _same(self):
    return self


# In a graph the flags of lazy conjugation and negation are nodes, and a value has them done.
@_both(("_conj",), ("_conj_copy",))
def _conj(self):
    return jnp.conj(self)


@_both(("_neg_view",), ("_neg_view_copy",))
def _neg_view(self):
    return -self


@_both(("permute",), ("permute_copy",))
def _permute(self, dims):
    return jnp.transpose(self, [d % self.ndim for d in dims])


@_both(("transpose.int", "swapaxes", "swapdims"), ("transpose_copy.int",))
def _transpose(self, dim0=None, dim1=None, axis0=None, axis1=None):
    first = dim0 if dim0 is not None else axis0
    second = dim1 if dim1 is not None else axis1
    return jnp.swapaxes(self, first, second) if self.ndim else self


@_both(("movedim", "moveaxis"), ())
def _movedim(self, source, destination):
    return jnp.moveaxis(self, source, destination)


@_both(("t", "mT"), ("t_copy",))
def _t(self):
    return jnp.swapaxes(self, -1, -2) if self.ndim >= 2 else self


@_both(("slice.Tensor",), ("slice_copy.Tensor",))
def _slice(self, dim=0, start=None, end=None, step=1):
    start, end, step = slice_bounds(self.shape[dim], start, end, step)
    return lax.slice_in_dim(self, start, end, step, axis=dim % self.ndim)


@_both(("narrow",), ("narrow_copy",))
def _narrow(self, dim, start, length):
    start = start + self.shape[dim] if start < 0 else start
    return lax.slice_in_dim(self, start, start + length, axis=dim % self.ndim)


@_both(("select.int",), ("select_copy.int",))
def _select(self, dim, index):
    return lax.index_in_dim(self, index, axis=dim % self.ndim, keepdims=False)


@_both(("expand",), ("expand_copy",))
def _expand(self, size, implicit=False):
    return jnp.broadcast_to(self, out().shape)


@_both(("unbind.int",), ("unbind_copy.int",))
def _unbind(self, dim=0):
    axis = dim % self.ndim
    return [lax.index_in_dim(self, i, axis=axis, keepdims=False) for i in range(self.shape[axis])]


def _pieces(self, sizes, dim):
    axis, start, pieces = dim % self.ndim, 0, []
    for size in sizes:
        pieces.append(lax.slice_in_dim(self, start, start + size, axis=axis))
        start += size
    return pieces


@_both(("split.Tensor",), ("split_copy.Tensor", "unsafe_split.Tensor"))
def _split(self, split_size, dim=0):
    total = self.shape[dim]
    if split_size == 0 or total == 0:
        return [self]
    return _pieces(self, [min(split_size, total - i) for i in range(0, total, split_size)], dim)


@_both(("split_with_sizes",), ("split_with_sizes_copy", "unsafe_split_with_sizes"))
def _split_with_sizes(self, split_sizes, dim=0):
    return _pieces(self, split_sizes, dim)


@_both(("as_strided",), ("as_strided_copy",))
def _as_strided(self, size, stride, storage_offset=None):
    strided.check_bounds(self.size, size, stride, storage_offset or 0)
    return strided.read(self.reshape(-1), size, stride, storage_offset or 0)


def diagonal_positions(rows: int, columns: int, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """int64 row and column numbers of a diagonal of a ``rows`` x ``columns`` matrix."""
    row, column = max(-offset, 0), max(offset, 0)
    count = np.arange(max(min(rows - row, columns - column), 0))
    return count + row, count + column


@_both(("diagonal",), ("diagonal_copy",))
def _diagonal(self, offset=0, dim1=0, dim2=1):
    moved = jnp.moveaxis(self, (dim1, dim2), (-2, -1))
    rows, columns = diagonal_positions(*moved.shape[-2:], offset)
    return moved[..., rows, columns] if rows.size else jnp.zeros(out().shape, self.dtype)


def unfold_positions(count: int, size: int, step: int) -> np.ndarray:
    """int64 ``[count, size]``: element numbers of ``count`` windows ``step`` apart."""
    return np.arange(count)[:, None] * step + np.arange(size)


@_both(("unfold",), ("unfold_copy",))
def _unfold(self, dimension, size, step):
    if self.ndim == 0:
        return self.reshape(1)[:size]
    axis = dimension % self.ndim
    windows = jnp.take(self, unfold_positions(out().shape[axis], size, step), axis=axis, mode="clip")
    return jnp.moveaxis(windows, axis + 1, -1)


@_both(("view_as_real",), ("view_as_real_copy",))
def _view_as_real(self):
    return jnp.stack([self.real, self.imag], -1)


@_both(("view_as_complex",), ("view_as_complex_copy",))
def _view_as_complex(self):
    return lax.complex(self[..., 0], self[..., 1])


@_both(("view.dtype",), ("view_copy.dtype",))
def bitcast(self, dtype):
    """The bits of ``self`` as ``dtype``; the last dimension grows or shrinks by the size ratio."""
    target = jdtype(dtype)
    if self.dtype == target:
        return self
    if self.dtype == np.bool_:
        self = self.astype(np.uint8)
    if jnp.issubdtype(self.dtype, jnp.complexfloating):
        parts = jnp.stack([self.real, self.imag], -1)
        self = parts.reshape(self.shape[:-1] + (-1,)) if self.ndim else parts
    bits = target
    if target == np.bool_:
        bits = np.dtype(np.uint8)
    elif jnp.issubdtype(target, jnp.complexfloating):
        bits = np.dtype(f"float{4 * target.itemsize}")
    old, new = self.dtype.itemsize, bits.itemsize
    if old < new:
        self = self.reshape(self.shape[:-1] + (self.shape[-1] * old // new, new // old))
    result = lax.bitcast_convert_type(self, bits)
    if old > new:
        result = result.reshape(self.shape[:-1] + (-1,)) if self.ndim else result
    if target == np.bool_:
        return result != 0
    if bits != target:
        pairs = result.reshape(result.shape[:-1] + (result.shape[-1] // 2, 2))
        return lax.complex(pairs[..., 0], pairs[..., 1]).reshape(out().shape)
    return result.reshape(out().shape)


@lower("slice_scatter")
def _slice_scatter(self, src, dim=0, start=None, end=None, step=1):
    axis = dim % self.ndim
    start, end, step = slice_bounds(self.shape[axis], start, end, step)
    src = cast(src, self.dtype)
    if step == 1:
        return lax.dynamic_update_slice_in_dim(self, src, start, axis)
    return self.at[(slice(None),) * axis + (slice(start, end, step),)].set(src)


@lower("select_scatter")
def _select_scatter(self, src, dim, index):
    axis = dim % self.ndim
    src = jnp.expand_dims(cast(src, self.dtype), axis)
    return lax.dynamic_update_slice_in_dim(self, src, index % self.shape[axis], axis)


@lower("diagonal_scatter")
def _diagonal_scatter(self, src, offset=0, dim1=0, dim2=1):
    moved = jnp.moveaxis(self, (dim1, dim2), (-2, -1))
    rows, columns = diagonal_positions(*moved.shape[-2:], offset)
    if not rows.size:
        return self
    moved = moved.at[..., rows, columns].set(cast(src, self.dtype))
    return jnp.moveaxis(moved, (-2, -1), (dim1, dim2))


@lower("as_strided_scatter")
def _as_strided_scatter(self, src, size, stride, storage_offset=None):
    strided.check_bounds(self.size, size, stride, storage_offset or 0)
    flat = strided.write(self.reshape(-1), src, size, stride, storage_offset or 0)
    return flat.reshape(self.shape)
