"""Resizing of images (nearest, linear, cubic) and sampling on a grid, with their gradients.

Resizing is separable: each spatial dimension is a weighted sum of a few fixed neighbours, whose
positions and weights are computed here in the arithmetic of ATen's CPU kernels.
"""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from .numerics import opmath
from .registry import lower, out
from .spatial import take_dim, transpose_of

_NAMES = ("scales_d", "scales_h", "scales_w")


def _scales(count: int, named: dict):
    return [named.get("scales")] if count == 1 else [named.get(n) for n in _NAMES[3 - count :]]


def resize_ratio(size: int, target: int, scale, align: bool, kind):
    """Input pixels per output pixel, as a NumPy ``kind``; ``scale`` is the caller's factor or None."""
    if align:
        return kind((size - 1) / (target - 1)) if target > 1 else kind(0)
    return kind(1.0 / scale) if scale and scale > 0 else kind(size) / kind(target)


def _nearest(size, target, scale, kind, offset):
    step = resize_ratio(size, target, scale, False, np.float32)
    index = np.floor((np.arange(target, dtype=np.float32) + np.float32(offset)) * step).astype(np.int64)
    return [(np.minimum(index, size - 1), None)]


def _linear(size, target, scale, kind, align):
    step = resize_ratio(size, target, scale, align, kind)
    place = np.arange(target, dtype=kind)
    place = step * place if align else np.maximum(step * (place + kind(0.5)) - kind(0.5), 0)
    low = np.minimum(place.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    weight = np.clip(place - low, 0, 1).astype(kind)
    return [(low, 1 - weight), (high, weight)]


def cubic_weights(t, a=-0.75):
    """Weights of the four neighbours at distance 1+t, t, 1-t and 2-t."""

    def near(x):
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x):
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return far(t + 1), near(t), near(1 - t), far(2 - t)


def _cubic(size, target, scale, kind, align):
    step = resize_ratio(size, target, scale, align, kind)
    place = np.arange(target, dtype=kind)
    place = step * place if align else step * (place + kind(0.5)) - kind(0.5)
    low = np.floor(place).astype(np.int64)
    weights = cubic_weights((place - low).astype(kind))
    return [(np.clip(low + i - 1, 0, size - 1), w.astype(kind)) for i, w in enumerate(weights)]


def _resize(x, sizes, scales, neighbours, extra):
    lead = x.ndim - len(sizes)
    kind = np.float64 if x.dtype == np.float64 else np.float32
    for d, (target, scale) in enumerate(zip(sizes, scales)):
        axis = lead + d
        total = None
        for index, weight in neighbours(x.shape[axis], target, scale, kind, extra):
            part = take_dim(x, index, axis)
            if weight is not None:
                shape = (target,) + (1,) * (x.ndim - 1 - axis)
                part = part * jnp.asarray(weight.astype(x.dtype)).reshape(shape)
            total = part if total is None else total + part
        x = total
    return x


def _register(name: str, count: int, neighbours, fixed=None):
    @lower(name)
    def forward(self, output_size, align_corners=None, **scales):
        extra = align_corners if fixed is None else fixed
        integral = jnp.issubdtype(self.dtype, jnp.integer) and neighbours is not _nearest
        x = self if neighbours is _nearest else self.astype(np.float32 if integral else opmath(self.dtype))
        result = _resize(x, output_size, _scales(count, scales), neighbours, extra)
        if integral:
            info = jnp.iinfo(self.dtype)
            return jnp.clip(jnp.round(result), info.min, info.max)
        return result

    @lower(f"{name}_backward")
    def backward(grad_output, output_size, input_size, align_corners=None, **scales):
        extra = align_corners if fixed is None else fixed
        factors = _scales(count, scales)

        def resize(x):
            return _resize(x, output_size, factors, neighbours, extra)

        return transpose_of(resize, input_size, grad_output)


for _count in (1, 2, 3):
    _register(f"upsample_nearest{_count}d", _count, _nearest, 0.0)
    _register(f"_upsample_nearest_exact{_count}d", _count, _nearest, 0.5)
_register("upsample_linear1d", 1, _linear)
_register("upsample_bilinear2d", 2, _linear)
_register("upsample_trilinear3d", 3, _linear)
_register("upsample_bicubic2d", 2, _cubic)


def _reflected(place, size: int, align: bool):
    low, span = (0, 2 * (size - 1)) if align else (-1, 2 * size)
    if span == 0:
        return jnp.zeros_like(place)
    low, span = low / 2, span / 2
    distance = jnp.abs(place - low)
    extra, flips = jnp.fmod(distance, span), jnp.floor(distance / span)
    return jnp.where(flips % 2 == 0, extra + low, span - extra + low)


def _bounded(place, size: int, padding: int, align: bool):
    """A coordinate after the padding mode: 0 zeros, 1 border, 2 reflection."""
    if padding == 2:
        place = _reflected(place, size, align)
    return jnp.clip(place, 0, size - 1) if padding else place


def _pixel(image, places):
    """``image`` [C, *spatial] read at integral ``places``; zero outside."""
    inside, index = True, []
    for place, size in zip(places, image.shape[1:]):
        inside = inside & (place >= 0) & (place <= size - 1)
        index.append(jnp.clip(place, 0, size - 1).astype(jnp.int32))
    return jnp.where(inside, image[(slice(None), *index)], jnp.zeros((), image.dtype))


def _sample_one(image, grid, mode: int, padding: int, align: bool):
    """One image ``[C, *spatial]`` on a ``grid`` [*out, n], x first; gives ``[C, *out]``."""
    sizes = image.shape[1:]
    places = []
    for d, size in enumerate(sizes):
        g = grid[..., len(sizes) - 1 - d]
        places.append((g + 1) / 2 * (size - 1) if align else ((g + 1) * size - 1) / 2)
    if mode != 2:
        places = [_bounded(p, n, padding, align) for p, n in zip(places, sizes)]
    if mode == 1:
        return _pixel(image, [jnp.round(p) for p in places])
    lows = [jnp.floor(p) for p in places]
    parts = [p - low for p, low in zip(places, lows)]
    taps, weights = (range(-1, 3), [cubic_weights(t) for t in parts]) if mode == 2 else (
        range(2), [(1 - t, t) for t in parts]
    )
    total = 0
    for choice in itertools.product(range(len(taps)), repeat=len(sizes)):
        at = [low + taps[c] for low, c in zip(lows, choice)]
        if mode == 2:
            at = [_bounded(p, n, padding, align) for p, n in zip(at, sizes)]
        weight = 1
        for w, c in zip(weights, choice):
            weight = weight * w[c]
        total = total + _pixel(image, at) * weight
    return total


def _sample(input, grid, mode, padding, align):
    dtype = opmath(input.dtype)
    one = jax.vmap(lambda image, places: _sample_one(image, places, mode, padding, align))
    return one(input.astype(dtype), grid.astype(dtype))


@lower("grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(input, grid, interpolation_mode, padding_mode, align_corners):
    if out().shape and 0 in out().shape:
        return jnp.zeros(out().shape, input.dtype)
    return _sample(input, grid, interpolation_mode, padding_mode, align_corners)


@lower("grid_sampler_2d_backward", "grid_sampler_3d_backward")
def _grid_sampler_backward(
    grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask
):
    def forward(i, g):
        return _sample(i, g, interpolation_mode, padding_mode, align_corners)

    result, pullback = jax.vjp(forward, input, grid)
    return pullback(grad_output.astype(result.dtype))
