"""Max pooling with windows at pseudo-random places (``fractional_max_pool2d`` and ``3d``)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .pooling import scatter_to_windows
from .registry import lower, out
from .spatial import per_dim


def _starts(sample, size: int, count: int, width: int):
    """First element of each of ``count`` windows along a dimension, from one random number."""
    last = size - width
    if count == 1:
        return jnp.full((1,), last, jnp.int64)
    alpha = np.asarray((size - width) / (count - 1), sample.dtype)
    steps = jnp.arange(count - 1).astype(sample.dtype)
    inner = ((steps + sample) * alpha).astype(jnp.int64) - (sample * alpha).astype(jnp.int64)
    return jnp.concatenate([inner, jnp.full((1,), last, jnp.int64)])


def _pool_one(image, samples, sizes, kernel):
    """(values, flat positions) of one image ``[*spatial]``."""
    n = len(sizes)
    flat = jnp.zeros((1,) * (2 * n), jnp.int64)
    for d in range(n):
        places = _starts(samples[d], image.shape[d], sizes[d], kernel[d])[:, None] + jnp.arange(kernel[d])
        shape = [1] * (2 * n)
        shape[d], shape[n + d] = places.shape
        flat = flat * image.shape[d] + places.reshape(shape)
    flat = flat.reshape(*sizes, -1)
    windows = image.reshape(-1)[flat]
    chosen = jnp.argmax(windows, axis=-1, keepdims=True)  # the first maximum; NaN wins
    return tuple(jnp.take_along_axis(t, chosen, -1)[..., 0] for t in (windows, flat))


def _register(count: int) -> None:
    # ATen draws the numbers of a plane in the order width, height; those of a volume in time, height, width.
    order = [1, 0] if count == 2 else [0, 1, 2]

    @lower(f"fractional_max_pool{count}d")
    def forward(self, kernel_size, output_size, random_samples):
        if self.size == 0:
            return jnp.zeros(out(0).shape, self.dtype), jnp.zeros(out(1).shape, jnp.int64)
        sizes, kernel = per_dim(output_size, count), per_dim(kernel_size, count)
        images = self.reshape(-1, *self.shape[-count:])
        samples = random_samples.reshape(-1, count)[:, np.asarray(order)]
        values, places = jax.vmap(lambda i, s: _pool_one(i, s, sizes, kernel))(images, samples)
        return values.reshape(out(0).shape), places.reshape(out(1).shape)

    @lower(f"fractional_max_pool{count}d_backward")
    def backward(grad_output, self, kernel_size, output_size, indices):
        return scatter_to_windows(count)(grad_output, self, indices)


_register(2)
_register(3)
