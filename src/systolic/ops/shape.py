"""Operators that move, repeat, pad or copy elements without computing on them."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from .numerics import cast
from .registry import lower, out
from .spatial import per_dim, take_dim, transpose_of
from .views import diagonal_positions, slice_bounds, unfold_positions


@lower("cat")
def _cat(tensors, dim=0):
    # PyTorch skips 1-d empty tensors whatever the other shapes are.
    rank = len(out().shape)
    parts = [cast(t, out().dtype) for t in tensors if t.ndim == rank and not (t.shape == (0,) and rank != 1)]
    return jnp.concatenate(parts, axis=dim) if parts else jnp.zeros(out().shape, out().dtype)


@lower("stack", "_stack")
def _stack(tensors, dim=0):
    return jnp.stack([cast(t, out().dtype) for t in tensors], axis=dim)


@lower("flip")
def _flip(self, dims):
    return lax.rev(self, sorted({d % self.ndim for d in dims})) if self.ndim else self


@lower("roll")
def _roll(self, shifts, dims=()):
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if self.size == 0:
        return self
    x = self if dims else self.reshape(-1)
    for shift, dim in zip(shifts, dims or [0]):
        if x.ndim == 0:
            continue
        axis = dim % x.ndim
        size = x.shape[axis]
        cut = (size - shift) % size
        if cut:
            head, tail = lax.slice_in_dim(x, 0, cut, axis=axis), lax.slice_in_dim(x, cut, size, axis=axis)
            x = jnp.concatenate([tail, head], axis=axis)
    return x.reshape(self.shape)


@lower("repeat")
def _repeat(self, repeats):
    return jnp.tile(self, tuple(repeats)).reshape(out().shape)


@lower("repeat_interleave.Tensor")
def _repeat_interleave(repeats, output_size=None):
    return jnp.repeat(jnp.arange(repeats.shape[0]), repeats, total_repeat_length=out().shape[0])


@lower("constant_pad_nd")
def _constant_pad(self, pad, value=0):
    widths = [(0, 0, 0)] * self.ndim
    for i in range(len(pad) // 2):
        widths[self.ndim - 1 - i] = (pad[2 * i], pad[2 * i + 1], 0)
    return lax.pad(self, cast(value, self.dtype), widths)


def _reflected(size: int, low: int, high: int) -> np.ndarray:
    position = np.abs(np.arange(-low, size + high))
    return size - 1 - np.abs(size - 1 - position)


def _replicated(size: int, low: int, high: int) -> np.ndarray:
    return np.clip(np.arange(-low, size + high), 0, size - 1)


def _index_padding(positions):
    """A padding function (x, padding) that reads every output element from one input element."""

    def pad(x, padding):
        for i in range(len(padding) // 2):
            dim = x.ndim - 1 - i
            x = take_dim(x, positions(x.shape[dim], padding[2 * i], padding[2 * i + 1]), dim)
        return x

    return pad


reflect, replicate = _index_padding(_reflected), _index_padding(_replicated)


@lower("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def _reflection_pad(self, padding):
    return reflect(self, padding)


@lower("replication_pad1d", "replication_pad2d", "replication_pad3d")
def _replication_pad(self, padding):
    return replicate(self, padding)


@lower("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward")
def _reflection_pad_backward(grad_output, self, padding):
    return transpose_of(lambda x: reflect(x, padding), self.shape, grad_output)


@lower("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
def _replication_pad_backward(grad_output, self, padding):
    return transpose_of(lambda x: replicate(x, padding), self.shape, grad_output)


def _column_minus_row(self):
    rows, columns = self.shape[-2:]
    return jnp.arange(columns) - jnp.arange(rows)[:, None]


@lower("tril")
def _tril(self, diagonal=0):
    return jnp.where(_column_minus_row(self) <= diagonal, self, jnp.zeros((), self.dtype))


@lower("triu")
def _triu(self, diagonal=0):
    return jnp.where(_column_minus_row(self) >= diagonal, self, jnp.zeros((), self.dtype))


@lower("clone", "contiguous")
def _clone(self, memory_format=None):
    return self


@lower("copy")
def _copy(self, src, non_blocking=False):
    return jnp.broadcast_to(cast(src, out().dtype), out().shape)


@lower("_to_copy")
def _to_copy(self, **_):
    return cast(self, out().dtype)


@lower("rot90")
def _rot90(self, k=1, dims=(0, 1)):
    return jnp.rot90(self, k, axes=tuple(dims))


@lower("unfold_backward")
def _unfold_backward(grad_in, input_sizes, dim, size, step):
    if not input_sizes:
        return grad_in.reshape(())
    axis = dim % len(input_sizes)
    windows = jnp.moveaxis(grad_in, -1, axis + 1)
    at = (slice(None),) * axis + (unfold_positions(grad_in.shape[axis], size, step),)
    return jnp.zeros(tuple(input_sizes), grad_in.dtype).at[at].add(windows)


@lower("slice_backward")
def _slice_backward(grad_output, input_sizes, dim, start, end, step):
    axis = dim % len(input_sizes)
    start, end, step = slice_bounds(input_sizes[axis], start, end, step)
    count = grad_output.shape[axis]
    if count == 0:
        return jnp.zeros(tuple(input_sizes), grad_output.dtype)
    widths = [(0, 0, 0)] * len(input_sizes)
    widths[axis] = (start, input_sizes[axis] - start - ((count - 1) * step + 1), step - 1)
    return lax.pad(grad_output, jnp.zeros((), grad_output.dtype), widths)


@lower("select_backward")
def _select_backward(grad_output, input_sizes, dim, index):
    axis = dim % len(input_sizes)
    position = index % input_sizes[axis]
    widths = [(0, 0, 0)] * len(input_sizes)
    widths[axis] = (position, input_sizes[axis] - position - 1, 0)
    return lax.pad(jnp.expand_dims(grad_output, axis), jnp.zeros((), grad_output.dtype), widths)


@lower("diagonal_backward")
def _diagonal_backward(grad_output, input_sizes, offset, dim1, dim2):
    zeros = jnp.moveaxis(jnp.zeros(tuple(input_sizes), grad_output.dtype), (dim1, dim2), (-2, -1))
    rows, columns = diagonal_positions(*zeros.shape[-2:], offset)
    placed = zeros.at[..., rows, columns].set(grad_output) if rows.size else zeros
    return jnp.moveaxis(placed, (-2, -1), (dim1, dim2))


@lower("diag_embed")
def _diag_embed(self, offset=0, dim1=-2, dim2=-1):
    side = self.shape[-1] + abs(offset)
    rows, columns = diagonal_positions(side, side, offset)
    square = jnp.zeros(self.shape[:-1] + (side, side), self.dtype).at[..., rows, columns].set(self)
    return jnp.moveaxis(square, (-2, -1), (dim1, dim2))


@lower("block_diag")
def _block_diag(tensors):
    result = jnp.zeros(out().shape, out().dtype)
    row = column = 0
    for t in tensors:
        block = cast(t, out().dtype).reshape((1,) * (2 - t.ndim) + t.shape)
        result = lax.dynamic_update_slice(result, block, (row, column))
        row, column = row + block.shape[0], column + block.shape[1]
    return result


@lower("pixel_shuffle")
def _pixel_shuffle(self, upscale_factor):
    r = upscale_factor
    *batch, c, h, w = self.shape
    x = self.reshape((math.prod(batch), c // (r * r), r, r, h, w))
    return x.transpose(0, 1, 4, 2, 5, 3).reshape((*batch, c // (r * r), h * r, w * r))


@lower("pixel_unshuffle")
def _pixel_unshuffle(self, downscale_factor):
    r = downscale_factor
    *batch, c, h, w = self.shape
    x = self.reshape((math.prod(batch), c, h // r, r, w // r, r))
    return x.transpose(0, 1, 3, 5, 2, 4).reshape((*batch, c * r * r, h // r, w // r))


@lower("channel_shuffle", "native_channel_shuffle")
def _channel_shuffle(self, groups):
    n, c, *rest = self.shape
    return jnp.swapaxes(self.reshape((n, groups, c // groups, *rest)), 1, 2).reshape(self.shape)


def _columns(x, kernel_size, dilation, padding, stride):
    """``[N, C, H, W]`` -> ``[N, C*kh*kw, oh*ow]``."""
    (kh, kw), (dh, dw), (ph, pw), (sh, sw) = (per_dim(v, 2) for v in (kernel_size, dilation, padding, stride))
    n, c = x.shape[:2]
    x = jnp.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    oh = (x.shape[2] - dh * (kh - 1) - 1) // sh + 1
    ow = (x.shape[3] - dw * (kw - 1) - 1) // sw + 1
    rows = np.arange(kh)[:, None] * dh + np.arange(oh) * sh
    columns = np.arange(kw)[:, None] * dw + np.arange(ow) * sw
    x = jnp.take(jnp.take(x, rows, axis=2, mode="clip"), columns, axis=4, mode="clip")
    return x.transpose(0, 1, 2, 4, 3, 5).reshape(n, c * kh * kw, oh * ow)


@lower("im2col")
def _im2col(self, kernel_size, dilation, padding, stride):
    x = self if self.ndim == 4 else self[None]
    return _columns(x, kernel_size, dilation, padding, stride).reshape(out().shape)


@lower("col2im")
def _col2im(self, output_size, kernel_size, dilation, padding, stride):
    x = self if self.ndim == 3 else self[None]
    kh, kw = per_dim(kernel_size, 2)
    image = (x.shape[0], x.shape[1] // (kh * kw), *output_size)
    folded = transpose_of(lambda v: _columns(v, kernel_size, dilation, padding, stride), image, x)
    return folded.reshape(out().shape)
