"""Discrete Fourier transforms over any dimensions, with ATen's normalizations."""

from __future__ import annotations

import math

import jax.numpy as jnp

from .numerics import is_complex
from .registry import lower, out

# ATen's normalization modes.
_NONE, _BY_ROOT_N, _BY_N = range(3)


def _scaled(x, count: int, normalization: int):
    if normalization == _NONE or count == 0:
        return x
    return x * (1.0 / (math.sqrt(count) if normalization == _BY_ROOT_N else count))


def _count(shape, dim) -> int:
    return math.prod(shape[d] for d in dim)


def _c2c(x, dim, forward: bool):
    """The unnormalized transform of complex ``x`` over ``dim``."""
    for d in dim:
        x = jnp.fft.fft(x, axis=d) if forward else jnp.fft.ifft(x, axis=d, norm="forward")
    return x


def _empty():
    return jnp.zeros(out().shape, out().dtype)


@lower("_fft_c2c")
def _fft_c2c(self, dim, normalization, forward):
    if self.size == 0:
        return _empty()
    return _scaled(_c2c(self, dim, forward), _count(self.shape, dim), normalization)


@lower("_fft_r2c")
def _fft_r2c(self, dim, normalization, onesided):
    if self.size == 0:
        return _empty()
    *others, last = dim
    transform = jnp.fft.rfft if onesided else jnp.fft.fft
    return _scaled(_c2c(transform(self, axis=last), others, True), _count(self.shape, dim), normalization)


@lower("_fft_c2r")
def _fft_c2r(self, dim, normalization, last_dim_size):
    if self.size == 0:
        return _empty()
    *others, last = dim
    x = self if is_complex(self) else self.astype(jnp.complex64)
    result = jnp.fft.irfft(_c2c(x, others, False), n=last_dim_size, axis=last, norm="forward")
    return _scaled(result, _count(out().shape, dim), normalization)
