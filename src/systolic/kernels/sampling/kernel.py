"""Sampling in Pallas for TPU: eight rows at a time in VMEM, thresholds found bit by bit.

Floats in the order of their values are integers in the order of :func:`_key`.  The threshold of top-k is the largest key
that at least k tokens reach, that of top-p the largest whose tokens have mass enough: each of its 32 bits takes one pass
over the row in VMEM.  A pass that no row of the eight asks for is left out.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.pallas import compiler_params
from systolic.kernels.sampling.tuning import Tuning

ROWS = 8
LOWEST = -(2**31)


def _key(x):
    """int32 that rises with float32 x, equal for -0 and 0."""
    bits = jax.lax.bitcast_convert_type(jnp.where(x == 0, 0.0, x), jnp.int32)
    return jnp.where(bits >= 0, bits, bits ^ jnp.int32(0x7FFFFFFF))


def _body(logits, noise, temperature, top_k, top_p, min_p, token, scaled, weight, k_key, p_key, *, columns, vocabulary):
    chunks = logits.shape[1] // columns
    greedy = temperature[...] == 0
    inverse = jnp.where(greedy, 1.0, temperature[...])

    def at(c):
        return slice(None), pl.ds(pl.multiple_of(c * columns, columns), columns)

    def largest(c, top):
        x = logits[at(c)] / inverse
        scaled[at(c)] = x
        return jnp.maximum(top, jnp.max(x, axis=1, keepdims=True))

    top = jax.lax.fori_loop(0, chunks, largest, jnp.full((ROWS, 1), -jnp.inf, jnp.float32))

    def exponentials(c, _):
        # The largest has weight 1 also where a unit's exponential of 0 is not quite that.
        weight[at(c)] = jnp.where(scaled[at(c)] == top, 1.0, jnp.exp(scaled[at(c)] - top))
        return 0

    jax.lax.fori_loop(0, chunks, exponentials, 0)

    def search(measure, target):
        """The largest key whose tokens' measure is at least ``target`` [8, 1]; measure(c, key) sums over a chunk."""
        def bit(n, key):
            candidate = key + jax.lax.shift_left(jnp.int32(1), 31 - n)
            start = jnp.zeros((ROWS, 1), target.dtype)
            reached = jax.lax.fori_loop(0, chunks, lambda c, sums: sums + measure(c, candidate), start)
            return jnp.where(reached >= target, candidate, key)

        return jax.lax.fori_loop(0, 32, bit, jnp.full((ROWS, 1), LOWEST, jnp.int32))

    limited = (top_k[...] > 0) & (top_k[...] < vocabulary) & jnp.logical_not(greedy)
    k_key[...] = jnp.full_like(k_key, LOWEST)

    @pl.when(jnp.max(limited.astype(jnp.int32)) > 0)
    def _():
        def count(c, key):
            return jnp.sum((_key(scaled[at(c)]) >= key).astype(jnp.float32), axis=1, keepdims=True)

        found = search(count, top_k[...].astype(jnp.float32))
        k_key[...] = jnp.where(limited, found, LOWEST)

    def kept(c):
        return (_key(scaled[at(c)]) >= k_key[...]) & (weight[at(c)] >= min_p[...])

    nucleus = (top_p[...] < 1) & jnp.logical_not(greedy)
    p_key[...] = jnp.full_like(p_key, LOWEST)

    @pl.when(jnp.max(nucleus.astype(jnp.int32)) > 0)
    def _():
        def mass(c, key):
            inside = kept(c) & (_key(scaled[at(c)]) >= key)
            return jnp.sum(jnp.where(inside, weight[at(c)], 0.0), axis=1, keepdims=True)

        lowest = jnp.full((ROWS, 1), LOWEST, jnp.int32)
        whole = jax.lax.fori_loop(0, chunks, lambda c, sums: sums + mass(c, lowest), jnp.zeros((ROWS, 1), jnp.float32))
        p_key[...] = jnp.where(nucleus, search(mass, top_p[...] * whole), LOWEST)

    def choose(c, best):
        value, index = best
        x = scaled[at(c)]
        inside = kept(c) & (_key(x) >= p_key[...]) & (x > -jnp.inf)
        score = jnp.where(greedy, x, jnp.where(inside, x + noise[at(c)], -jnp.inf))
        here = jnp.max(score, axis=1, keepdims=True)
        place = c * columns + jax.lax.broadcasted_iota(jnp.int32, score.shape, 1)
        first = jnp.min(jnp.where(score == here, place, vocabulary), axis=1, keepdims=True)
        better = here > value
        return jnp.where(better, here, value), jnp.where(better, first, index)

    start = jnp.full((ROWS, 1), -jnp.inf, jnp.float32), jnp.zeros((ROWS, 1), jnp.int32)
    token[...] = jax.lax.fori_loop(0, chunks, choose, start)[1]


def sample_tokens_pallas(logits, noise, temperature, top_k, top_p, min_p, *, tuning: Tuning, interpret=False):
    """Same arguments and result as `sample_tokens`; a vocabulary must be below 2**24, so that counts are exact."""
    rows, vocabulary = logits.shape
    if vocabulary >= 1 << 24:
        raise ValueError(f"the vocabulary has {vocabulary} tokens; the limit is {(1 << 24) - 1}")
    more = (0, -rows % ROWS), (0, -vocabulary % tuning.columns)
    logits = jnp.pad(logits, more, constant_values=-jnp.inf)
    noise = jnp.pad(noise, more)
    fill = ((temperature, 0.0), (top_k, 0), (top_p, 1.0), (min_p, 0.0))
    settings = [jnp.pad(x, more[0], constant_values=value)[:, None] for x, value in fill]
    # One buffer each: fetching eight rows takes at most an eighth of the time of their passes (v5e, by the estimate), and
    # two for a vocabulary of 262,144 tokens would not fit beside the scratch in a VMEM of 64 MiB.
    wide = pl.BlockSpec((ROWS, logits.shape[1]), lambda i: (i, 0), pipeline_mode=pl.Buffered(1))
    narrow = pl.BlockSpec((ROWS, 1), lambda i: (i, 0))
    call = pl.pallas_call(
        functools.partial(_body, columns=tuning.columns, vocabulary=vocabulary),
        grid=(logits.shape[0] // ROWS,),
        in_specs=[wide, wide, narrow, narrow, narrow, narrow],
        out_specs=narrow,
        out_shape=jax.ShapeDtypeStruct((logits.shape[0], 1), jnp.int32),
        scratch_shapes=[pltpu.VMEM((ROWS, logits.shape[1]), jnp.float32),
                        pltpu.VMEM((ROWS, logits.shape[1]), jnp.float32),
                        pltpu.VMEM((ROWS, 1), jnp.int32), pltpu.VMEM((ROWS, 1), jnp.int32)],
        compiler_params=compiler_params(("parallel",)),
        cost_estimate=pl.CostEstimate(flops=300 * logits.size, transcendentals=logits.size,
                                      bytes_accessed=8 * logits.size),
        interpret=interpret,
        name="systolic_sample_tokens",
    )  # fmt: skip
    with jax.enable_x64(False):
        return call(logits, noise, *settings)[:rows, 0]
