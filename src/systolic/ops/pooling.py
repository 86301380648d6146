"""Max and average pooling over one to three spatial dimensions, fixed windows and adaptive."""

from __future__ import annotations

import itertools
import math

import jax.numpy as jnp
import numpy as np
from jax import lax

from .numerics import opmath
from .registry import lower, out
from .spatial import per_dim, transpose_of

# Up to this many elements a window is walked by unrolled slices, which XLA fuses; above it the
# windows are gathered, so that the program stays small.
UNROLLED_WINDOW = 64


def _lowest(dtype):
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _fitted(x, starts, reach, fill):
    """Trailing dimensions of ``x`` padded (or cut) to run from ``starts`` over ``reach`` elements."""
    lead = x.ndim - len(starts)
    widths = [(0, 0, 0)] * lead
    widths += [(-s, s + r - n, 0) for s, r, n in zip(starts, reach, x.shape[lead:])]
    return lax.pad(x, jnp.asarray(fill, x.dtype), widths)


def _max_pool(x, sizes, kernel, stride, padding, dilation):
    """(values, int64 flat positions) of ``x`` [..., *spatial] pooled to ``sizes``.

    As in ATen: the first maximum wins, and a NaN beats everything before it.
    """
    lead, spatial = x.shape[: x.ndim - len(sizes)], x.shape[x.ndim - len(sizes) :]
    places = [
        np.arange(o)[:, None] * s - p + np.arange(k) * d
        for o, k, s, p, d in zip(sizes, kernel, stride, padding, dilation)
    ]
    reach = [(o - 1) * s + (k - 1) * d + 1 for o, k, s, d in zip(sizes, kernel, stride, dilation)]
    padded = _fitted(x, [-p for p in padding], reach, _lowest(x.dtype))
    steps = np.cumprod((1, *spatial[:0:-1]))[::-1]

    def flat(choice):
        """Flat position of one window element for every output, and whether it exists."""
        total, valid = np.zeros(sizes, np.int64), np.ones(sizes, bool)
        for d, (column, n, step) in enumerate(zip(choice, spatial, steps)):
            shape = [1] * len(sizes)
            shape[d] = -1
            total = total + (column * step).reshape(shape)
            valid = valid & ((column >= 0) & (column < n)).reshape(shape)
        return total, valid

    first = [np.where(p >= 0, p, np.iinfo(np.int64).max).min(axis=1) for p in places]
    best = jnp.full(lead + tuple(sizes), _lowest(x.dtype), x.dtype)
    where = jnp.broadcast_to(jnp.asarray(flat(first)[0]), best.shape)
    for offsets in itertools.product(*(range(k) for k in kernel)):
        position, valid = flat([p[:, o] for p, o in zip(places, offsets)])
        begin = [o * d for o, d in zip(offsets, dilation)]
        end = [b + (n - 1) * s + 1 for b, n, s in zip(begin, sizes, stride)]
        value = lax.slice(
            padded, [0] * len(lead) + begin, list(lead) + end, [1] * len(lead) + list(stride)
        )
        take = value > best
        if jnp.issubdtype(x.dtype, jnp.floating):
            take = take | jnp.isnan(value)
        take = take & jnp.asarray(valid)
        best = jnp.where(take, value, best)
        where = jnp.where(take, jnp.asarray(position), where)
    return best, where


def _max_pool_large(x, sizes, kernel, stride, padding, dilation):
    """The same for large windows: one argmax over gathered windows."""
    places = [
        np.arange(o)[:, None] * s - p + np.arange(k) * d
        for o, k, s, p, d in zip(sizes, kernel, stride, padding, dilation)
    ]
    return _max_of_windows(x, places, [(p >= 0) & (p < n) for p, n in zip(places, x.shape[x.ndim - len(sizes) :])])


def _max_of_windows(x, places, present):
    """(values, int64 flat positions) of the maximum of each window.

    Dimension ``d`` of the trailing ones is pooled over the positions ``places[d]`` [outputs, window] where
    ``present[d]`` is true.
    """
    n = len(places)
    sizes, kernel = [p.shape[0] for p in places], [p.shape[1] for p in places]
    lead, spatial = x.shape[: x.ndim - n], x.shape[x.ndim - n :]
    values, flat, valid = x, np.zeros((1,) * (2 * n), np.int64), np.ones((1,) * (2 * n), bool)
    for d, (index, inside) in enumerate(zip(places, present)):
        shape = [1] * (2 * n)
        shape[2 * d], shape[2 * d + 1] = index.shape
        flat = flat * spatial[d] + np.clip(index, 0, spatial[d] - 1).reshape(shape)
        valid = valid & inside.reshape(shape)
        values = jnp.take(values, np.clip(index, 0, spatial[d] - 1), axis=len(lead) + 2 * d, mode="clip")
    own = [*range(0, 2 * n, 2), *range(1, 2 * n, 2)]  # output dimensions, then window dimensions
    order = [*range(len(lead)), *(len(lead) + i for i in own)]
    area = math.prod(kernel)
    values = values.transpose(order).reshape(*lead, *sizes, area)
    full = tuple(v for d in range(n) for v in (sizes[d], kernel[d]))
    flat = np.broadcast_to(flat, full).transpose(own).reshape(*sizes, area)
    valid = np.broadcast_to(valid, full).transpose(own).reshape(*sizes, area)
    # argmax takes the first valid element when all are the lowest value, and the first NaN: ATen takes the last.
    rank = jnp.where(jnp.asarray(valid), values, jnp.asarray(_lowest(x.dtype), x.dtype))
    chosen = jnp.argmax(rank, axis=-1)
    first = jnp.asarray(valid.argmax(axis=-1))
    best = jnp.take_along_axis(rank, chosen[..., None], axis=-1)[..., 0]
    chosen = jnp.where(best == _lowest(x.dtype), first, chosen)
    if jnp.issubdtype(x.dtype, jnp.floating):
        last_nan = area - 1 - jnp.argmax(jnp.isnan(jnp.flip(rank, -1)), axis=-1)
        chosen = jnp.where(jnp.isnan(best), last_nan, chosen)
    where = jnp.take_along_axis(jnp.broadcast_to(flat, rank.shape), chosen[..., None], axis=-1)[..., 0]
    return best, where


def _max_pool_with_indices(count: int):
    def lowering(self, kernel_size, stride=(), padding=0, dilation=1, ceil_mode=False):
        kernel = per_dim(kernel_size, count)
        stride = per_dim(stride or kernel, count)
        options = (kernel, stride, per_dim(padding, count), per_dim(dilation, count))
        pool = _max_pool if math.prod(kernel) <= UNROLLED_WINDOW else _max_pool_large
        if self.size == 0:
            return jnp.zeros(out(0).shape, self.dtype), jnp.zeros(out(1).shape, jnp.int64)
        return pool(self, out(0).shape[-count:], *options)

    return lowering


lower("max_pool2d_with_indices")(_max_pool_with_indices(2))
lower("max_pool3d_with_indices")(_max_pool_with_indices(3))


def scatter_to_windows(count: int):
    """The gradient of a max pooling over ``count`` dimensions that returned flat ``indices``."""

    def lowering(grad_output, self, indices, **_):
        dtype = opmath(grad_output.dtype)
        area = math.prod(self.shape[-count:])
        rows = math.prod(self.shape[:-count])
        if not grad_output.size or not area:
            return jnp.zeros(self.shape, dtype)
        gradient = jnp.zeros((rows, area), dtype)
        row = jnp.arange(rows)[:, None]
        spot = gradient.at[row, indices.reshape(rows, -1)]
        return spot.add(grad_output.astype(dtype).reshape(rows, -1), mode="drop").reshape(self.shape)

    return lowering


lower("max_pool2d_with_indices_backward", "adaptive_max_pool2d_backward")(scatter_to_windows(2))
lower("max_pool3d_with_indices_backward", "adaptive_max_pool3d_backward")(scatter_to_windows(3))


def _divisors(spatial, sizes, kernel, stride, padding, include_pad: bool) -> np.ndarray:
    """Elements that each output averages over, as an array of shape ``sizes``."""
    total = np.ones((1,) * len(sizes), np.int64)
    for d, (n, o, k, s, p) in enumerate(zip(spatial, sizes, kernel, stride, padding)):
        start = np.arange(o) * s - p
        end = np.minimum(start + k, n + p)
        if not include_pad:
            start, end = np.maximum(start, 0), np.minimum(end, n)
        shape = [1] * len(sizes)
        shape[d] = -1
        total = total * np.maximum(end - start, 1).reshape(shape)
    return total


def _avg_pool(x, sizes, kernel, stride, padding, include_pad, divisor):
    lead = x.ndim - len(sizes)
    reach = [(o - 1) * s + k for o, s, k in zip(sizes, stride, kernel)]
    padded = _fitted(x, [-p for p in padding], reach, 0)
    ones = (1,) * lead
    total = lax.reduce_window(
        padded, np.zeros((), x.dtype), lax.add, ones + tuple(kernel), ones + tuple(stride), "VALID"
    )
    if divisor is None:
        divisor = _divisors(x.shape[lead:], sizes, kernel, stride, padding, include_pad)
    divisor = jnp.asarray(np.asarray(divisor).astype(x.dtype))
    return lax.div(total, jnp.broadcast_to(divisor, total.shape))  # integers truncate, as in C++


def _avg_options(count, kernel_size, stride, padding, count_include_pad, divisor_override):
    kernel = per_dim(kernel_size, count)
    return (
        kernel,
        per_dim(stride or kernel, count),
        per_dim(padding, count),
        count_include_pad,
        divisor_override,
    )


def _register_avg_pool(count: int):
    @lower(f"avg_pool{count}d")
    def forward(
        self, kernel_size, stride=(), padding=0, ceil_mode=False, count_include_pad=True,
        divisor_override=None,
    ):
        options = _avg_options(count, kernel_size, stride, padding, count_include_pad, divisor_override)
        return _avg_pool(self.astype(opmath(self.dtype)), out().shape[-count:], *options)

    @lower(f"avg_pool{count}d_backward")
    def backward(
        grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override=None
    ):
        options = _avg_options(count, kernel_size, stride, padding, count_include_pad, divisor_override)
        sizes = grad_output.shape[-count:]
        return transpose_of(lambda x: _avg_pool(x, sizes, *options), self.shape, grad_output)


_register_avg_pool(2)
_register_avg_pool(3)


def _bins(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each adaptive bin."""
    i = np.arange(count)
    return i * size // count, -(-(i + 1) * size // count)


def _adaptive_average(x, sizes):
    """Mean over adaptive bins of the trailing dimensions, one dimension at a time."""
    for d, count in enumerate(sizes):
        axis = x.ndim - len(sizes) + d
        size = x.shape[axis]
        if count and size % count == 0:
            split = x.reshape(x.shape[:axis] + (count, size // count) + x.shape[axis + 1 :])
            x = jnp.sum(split, axis=axis + 1) / np.dtype(x.dtype).type(size // count)
            continue
        start, end = _bins(size, count)
        width = int((end - start).max()) if count else 0
        place = start[:, None] + np.arange(width)
        inside = (place < end[:, None]).reshape((count, width) + (1,) * (x.ndim - 1 - axis))
        windows = jnp.take(x, np.minimum(place, size - 1), axis=axis, mode="clip")
        windows = jnp.where(jnp.asarray(inside), windows, jnp.zeros((), x.dtype))
        length = (end - start).reshape((count,) + (1,) * (x.ndim - 1 - axis)).astype(x.dtype)
        x = jnp.sum(windows, axis=axis + 1) / jnp.asarray(length)
    return x


def _adaptive_max_pool(self, output_size):
    """Values and int64 flat positions of the maxima of the adaptive bins."""
    if out(0).shape and 0 in out(0).shape:
        return jnp.zeros(out(0).shape, self.dtype), jnp.zeros(out(1).shape, jnp.int64)
    places, present = [], []
    for size, count in zip(self.shape[-len(output_size) :], output_size):
        start, end = _bins(size, count)
        place = start[:, None] + np.arange(int((end - start).max()))
        places.append(place)
        present.append(place < end[:, None])
    return _max_of_windows(self, places, present)


lower("adaptive_max_pool2d", "adaptive_max_pool3d")(_adaptive_max_pool)


@lower("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
def _adaptive_avg_pool(self, output_size):
    return _adaptive_average(self.astype(opmath(self.dtype)), tuple(output_size))


def _register_adaptive_backward(count: int):
    @lower(f"_adaptive_avg_pool{count}d_backward")
    def backward(grad_output, self):
        sizes = grad_output.shape[-count:]
        return transpose_of(lambda x: _adaptive_average(x, sizes), self.shape, grad_output)


_register_adaptive_backward(2)
_register_adaptive_backward(3)
