"""Antialiased resizing of images (linear, cubic, Lanczos), with gradients.

Each output pixel is a weighted mean of the input pixels under a filter that widens with the
reduction factor, so a dimension is one product with a fixed matrix.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import lax

from .numerics import opmath
from .registry import lower
from .resampling import resize_ratio
from .spatial import transpose_of


def _triangle(x):
    return np.maximum(1 - np.abs(x), 0)


def _cubic(x, a=-0.5):
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def _lanczos(x):
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


def _weights(size: int, target: int, scale, align: bool, kernel, reach: float, kind) -> np.ndarray:
    """Weights of the input pixels for each output pixel: ``[target, size]``, rows sum to 1."""
    step = resize_ratio(size, target, scale, align, kind)
    widening = max(step, kind(1))
    centre = step * (np.arange(target, dtype=kind) + kind(0.5))
    first = np.maximum((centre - reach * widening + kind(0.5)).astype(np.int64), 0)
    last = np.minimum((centre + reach * widening + kind(0.5)).astype(np.int64), size)
    pixel = np.arange(size)
    inside = (pixel >= first[:, None]) & (pixel < last[:, None])
    weights = np.where(inside, kernel((pixel - centre[:, None] + kind(0.5)) / widening), 0)
    total = weights.sum(1, keepdims=True)
    return weights / np.where(total == 0, 1, total)


def _apply(x, matrices):
    for axis, matrix in zip(range(x.ndim - len(matrices), x.ndim), matrices):
        product = lax.dot_general(
            x, jnp.asarray(matrix.astype(x.dtype)), (((axis,), (1,)), ((), ())), precision=lax.Precision.HIGHEST
        )
        x = jnp.moveaxis(product, -1, axis)
    return x


def _register(name: str, kernel, reach: float) -> None:
    def matrices(sizes, targets, align, scales, dtype):
        kind = np.float64 if dtype == np.float64 else np.float32
        return [
            _weights(n, t, s, align, kernel, reach, kind) for n, t, s in zip(sizes, targets, scales)
        ]

    @lower(name)
    def forward(self, output_size, align_corners, scales_h=None, scales_w=None):
        integral = jnp.issubdtype(self.dtype, jnp.integer)
        x = self.astype(np.float32 if integral else opmath(self.dtype))
        result = _apply(x, matrices(self.shape[2:], output_size, align_corners, (scales_h, scales_w), x.dtype))
        if integral:
            info = jnp.iinfo(self.dtype)
            return jnp.clip(jnp.round(result), info.min, info.max)
        return result

    @lower(f"{name}_backward")
    def backward(grad_output, output_size, input_size, align_corners, scales_h=None, scales_w=None):
        dtype = opmath(grad_output.dtype)
        fixed = matrices(input_size[2:], output_size, align_corners, (scales_h, scales_w), dtype)
        return transpose_of(lambda x: _apply(x, fixed), input_size, grad_output)


_register("_upsample_bilinear2d_aa", _triangle, 1.0)
_register("_upsample_bicubic2d_aa", _cubic, 2.0)
_register("_upsample_lanczos2d_aa", _lanczos, 3.0)
