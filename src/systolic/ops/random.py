"""Random numbers.  Every record is ``rng=True``: ``key`` is the uint32[2] threefry key of one call.

The distributions are PyTorch's; the streams are not (a seed gives other numbers than on the CPU).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .numerics import cast, opmath
from .registry import lower, out


def _typed(key):
    return jax.random.wrap_key_data(key, impl="threefry2x32")


def _half_open(key, shape, dtype):
    """Uniform in [0, 1)."""
    return jax.random.uniform(_typed(key), shape, dtype)


def _open(key, shape, dtype):
    """Uniform strictly between 0 and 1: midpoints, so logarithms of x and 1-x are finite."""
    bits, kind = (52, np.uint64) if dtype == np.float64 else (23, np.uint32)
    word = jax.random.bits(_typed(key), shape, kind) >> kind(kind(0).itemsize * 8 - bits)
    half = np.dtype(dtype).type(0.5)
    return (word.astype(dtype) + half) * np.dtype(dtype).type(2.0**-bits)


def _real(dtype) -> np.dtype:
    """The dtype to draw in: float32, or float64 for a float64 result."""
    return np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32)


@lower("uniform", rng=True)
def _uniform(key, from_=0.0, to=1.0, self=None):
    dtype = out().dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):  # each part is uniform
        real = np.dtype(np.float64 if dtype == np.complex128 else np.float32)
        parts = _half_open(key, (2, *out().shape), real) * cast(to - from_, real) + cast(from_, real)
        return lax.complex(parts[0], parts[1])
    return _half_open(key, out().shape, dtype) * cast(to - from_, dtype) + cast(from_, dtype)


@lower("rand", "rand_like", rng=True)
def _rand(key, **_):
    dtype = out().dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        real = _real(np.float64 if dtype == np.complex128 else np.float32)
        parts = _half_open(key, (2, *out().shape), real)
        return lax.complex(parts[0], parts[1])
    return _half_open(key, out().shape, dtype)


def _standard_normal(key):
    dtype = out().dtype
    return jax.random.normal(_typed(key), out().shape, opmath(dtype))


@lower("randn", "randn_like", rng=True)
def _randn(key, **_):
    return _standard_normal(key)


@lower("normal", "normal_functional", rng=True)
def _normal(key, mean=0.0, std=1.0, **_):
    z = _standard_normal(key)
    return z * cast(std, z.dtype) + cast(mean, z.dtype)


@lower("log_normal", rng=True)
def _log_normal(key, mean=1.0, std=2.0, self=None):
    z = _standard_normal(key)
    return jnp.exp(z * cast(std, z.dtype) + cast(mean, z.dtype))


@lower("cauchy", rng=True)
def _cauchy(key, median=0.0, sigma=1.0, self=None):
    dtype = _real(out().dtype)
    u = _open(key, out().shape, dtype)
    angle = cast(np.pi, dtype) * (u - cast(0.5, dtype))
    return cast(median, dtype) + cast(sigma, dtype) * jnp.tan(angle)


@lower("exponential", rng=True)
def _exponential(key, lambd=1.0, self=None):
    # Never 0: samplers divide by it.
    dtype = _real(out().dtype)
    return -jnp.log(_open(key, out().shape, dtype)) / cast(lambd, dtype)


@lower("geometric", rng=True)
def _geometric(key, p, self=None):
    dtype = _real(out().dtype)
    if p == 1:
        return jnp.ones(out().shape, dtype)
    u = _open(key, out().shape, dtype)
    return jnp.maximum(jnp.ceil(jnp.log(u) / cast(np.log1p(-p), dtype)), 1)


def _integers(key, low, high):
    """int64 uniform in [low, high); ``high - low`` is at most 2**64."""
    span = high - low
    bits = jax.random.bits(_typed(key), out().shape, np.uint64)
    offset = bits if span >= 2**64 else bits % np.uint64(span)
    return lax.bitcast_convert_type(offset + np.uint64(low % 2**64), np.int64)


@lower("randint", "randint_like", rng=True)
def _randint(key, high, low=0, **_):
    return _integers(key, low, high)


def _largest(dtype) -> int:
    """The largest value of random_() for a dtype: all integers up to it are exact."""
    if dtype == np.bool_:
        return 1
    if jnp.issubdtype(dtype, jnp.floating):
        return 2 ** (jnp.finfo(dtype).nmant + 1)
    return min(int(jnp.iinfo(dtype).max), 2**63 - 1)


@lower("random", "random.to", "random.from", rng=True)
def _random(key, from_=0, to=None, self=None):
    return _integers(key, from_, _largest(out().dtype) + 1 if to is None else to)


@lower("randperm", rng=True)
def _randperm(key, n, **_):
    return jax.random.permutation(_typed(key), jnp.arange(n, dtype=np.int64))


@lower("bernoulli", "bernoulli.p", "bernoulli.Tensor", rng=True)
def _bernoulli(key, self, p=None):
    p = self if p is None else p
    dtype = _real(p.dtype if hasattr(p, "dtype") else np.float32)
    return _half_open(key, out().shape, dtype) < cast(p, dtype)


@lower("bernoulli.float", rng=True)
def _bernoulli_half(key, self, p=0.5):
    return _bernoulli(key, self, p)


@lower("native_dropout", rng=True)
def _native_dropout(key, input, p, train=None):
    if train is False or p == 0:
        return input, jnp.ones(input.shape, jnp.bool_)
    keep = _half_open(key, input.shape, np.dtype(np.float32)) >= np.float32(p)
    scale = 0.0 if p == 1 else 1.0 / (1.0 - p)
    kept = input.astype(opmath(input.dtype)) * cast(scale, opmath(input.dtype))
    return jnp.where(keep, kept, jnp.zeros((), kept.dtype)), keep


@lower("multinomial", rng=True)
def _multinomial(key, self, num_samples, replacement=False):
    weights = self.astype(_real(self.dtype))
    shape = weights.shape
    rows = weights.reshape(-1, shape[-1])
    if not replacement or num_samples == 1:
        race = rows / -jnp.log(_open(key, rows.shape, rows.dtype))
        chosen = lax.top_k(race, num_samples)[1]
        return chosen.reshape(out().shape)
    ends = jnp.cumsum(rows, axis=-1)
    u = _half_open(key, (rows.shape[0], num_samples), rows.dtype) * ends[:, -1:]
    chosen = jax.vmap(lambda row, x: jnp.searchsorted(row, x, side="right"))(ends, u)
    # Rounding may push u to the total: the last category with weight takes it.
    last = shape[-1] - 1 - jnp.argmax(rows[:, ::-1] > 0, axis=-1)
    return jnp.minimum(chosen, last[:, None]).reshape(out().shape)


@lower("poisson", rng=True)
def _poisson(key, self):
    return jax.random.poisson(_typed(key), self.astype(_real(self.dtype)), dtype=np.int64)


@lower("binomial", rng=True)
def _binomial(key, count, prob):
    dtype = _real(prob.dtype)
    return jax.random.binomial(_typed(key), count.astype(dtype), prob.astype(dtype), dtype=dtype)


@lower("_standard_gamma", rng=True)
def _standard_gamma(key, self):
    return jax.random.gamma(_typed(key), self.astype(_real(self.dtype)), dtype=_real(self.dtype))


@lower("_sample_dirichlet", rng=True)
def _sample_dirichlet(key, self):
    return jax.random.dirichlet(_typed(key), self.astype(_real(self.dtype)), dtype=_real(self.dtype))


@lower("rrelu_with_noise", "rrelu_with_noise_functional", rng=True, static_scalars=True)
def _rrelu(key, self, noise, lower=0.125, upper=1.0 / 3, training=False):
    """(result, slopes): with ``training`` a random slope for each element that is not positive."""
    if not training:
        return jnp.where(self <= 0, self * cast((lower + upper) / 2, self.dtype), self), noise
    slope = _half_open(key, self.shape, self.dtype) * cast(upper - lower, self.dtype) + cast(lower, self.dtype)
    slope = jnp.where(self <= 0, slope, jnp.ones_like(slope))
    return self * slope, slope


@lower("_standard_gamma_grad")
def _standard_gamma_grad(self, output):
    """Derivative of a gamma sample with respect to its concentration ``self``."""
    dtype = opmath(self.dtype)
    return lax.random_gamma_grad(self.astype(dtype), output.astype(dtype))
