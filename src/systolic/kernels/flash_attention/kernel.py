"""Attention inside segments in Pallas for TPU, with the online softmax of arXiv:2205.14135.

The grid is (heads, blocks of queries, blocks of keys).  XLA finds for each block of queries the blocks of keys between
the first and the last that share a segment with it; others are neither fetched nor computed.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.flash_attention.tuning import Tuning
from systolic.kernels.pallas import compiler_params

# A hidden score lies below the running maximum's first value, so that its weight is exactly 0.
HIDDEN = -2.0e38
FLOOR = -1.0e38
LANES = 128
# Segments of padding: of queries any negative one, of keys one that no query has.
NO_QUERY, NO_KEY = -1, -2


def _block_range(q_segments, kv_segments, tuning: Tuning, causal: bool):
    """int32 [2 * query blocks]: the first key block to visit of each query block, then the number of them."""
    q = q_segments.reshape(-1, tuning.queries)
    kv = kv_segments.reshape(-1, tuning.keys)
    far = jnp.int32(2**31 - 1)
    low = jnp.min(jnp.where(q < 0, far, q), axis=1)
    # Ids need not rise, so the ranges of two blocks may meet without a common id: then the mask hides all.
    meets = (low[:, None] <= jnp.max(kv, axis=1)) & (jnp.max(q, axis=1)[:, None] >= jnp.min(kv, axis=1))
    meets &= (low < far)[:, None]
    block = jnp.arange(kv.shape[0], dtype=jnp.int32)
    if causal:
        last_query = (jnp.arange(q.shape[0], dtype=jnp.int32) + 1) * tuning.queries - 1
        meets &= block[None, :] * tuning.keys <= last_query[:, None]
    first = jnp.min(jnp.where(meets, block, kv.shape[0]), axis=1)
    count = jnp.maximum(jnp.max(jnp.where(meets, block + 1, 0), axis=1) - first, 0)
    return jnp.concatenate([jnp.minimum(first, kv.shape[0] - 1), count]).astype(jnp.int32)


def _body(blocks, q, k, v, q_segments, kv_segments, out, acc, top, total, *, scale, causal, soft_cap, query_blocks):
    block, step = pl.program_id(1), pl.program_id(2)
    first, count = blocks[block], blocks[query_blocks + block]

    @pl.when(step == 0)
    def _():
        acc[...] = jnp.zeros_like(acc)
        total[...] = jnp.zeros_like(total)
        top[...] = jnp.full_like(top, FLOOR)

    @pl.when(step < count)
    def _():
        precision = jax.lax.Precision.HIGHEST if q.dtype == jnp.float32 else None
        scores = jax.lax.dot_general(q[0], k[0], (((1,), (1,)), ((), ())), precision=precision,
                                     preferred_element_type=jnp.float32) * scale  # fmt: skip
        if soft_cap:
            scores = jnp.tanh(scores * (1.0 / soft_cap)) * soft_cap
        seen = (q_segments[...] == kv_segments[...]) & (q_segments[...] >= 0)
        if causal:
            query = block * q.shape[1] + jax.lax.broadcasted_iota(jnp.int32, (q.shape[1], 1), 0)
            key = (first + step) * k.shape[1] + jax.lax.broadcasted_iota(jnp.int32, (1, k.shape[1]), 1)
            seen = seen & (key <= query)
        scores = jnp.where(seen, scores, HIDDEN)
        before = top[...]
        now = jnp.maximum(before, jnp.max(scores, axis=1, keepdims=True))
        weights = jnp.exp(scores - now[:, :1])
        shrink = jnp.exp(before - now)
        top[...] = now
        total[...] = total[...] * shrink + jnp.sum(weights, axis=1, keepdims=True)
        acc[...] = acc[...] * shrink[:, :1] + jnp.dot(weights.astype(v.dtype), v[0], precision=precision,
                                                      preferred_element_type=jnp.float32)  # fmt: skip

    @pl.when(step == pl.num_programs(2) - 1)
    def _():
        safe = jnp.where(total[...] == 0, 1.0, total[...])
        out[0] = (acc[...] / safe[:, :1]).astype(out.dtype)


def flash_attention_pallas(q, k, v, q_segments, kv_segments, *, scale, causal, soft_cap, tuning: Tuning,
                           interpret=False):  # fmt: skip
    """Same arguments and result as `flash_attention`."""
    q_heads, queries, dim = q.shape
    kv_heads, keys, _ = k.shape
    group = q_heads // kv_heads
    more_queries, more_keys = -queries % tuning.queries, -keys % tuning.keys
    q = jnp.pad(q, ((0, 0), (0, more_queries), (0, 0)))
    k, v = (jnp.pad(x, ((0, 0), (0, more_keys), (0, 0))) for x in (k, v))
    q_segments = jnp.pad(q_segments, (0, more_queries), constant_values=NO_QUERY)
    kv_segments = jnp.pad(kv_segments, (0, more_keys), constant_values=NO_KEY)
    query_blocks = q.shape[1] // tuning.queries
    blocks = _block_range(q_segments, kv_segments, tuning, causal)

    def key_at(i, j, blocks):
        # Steps beyond the last stay there, so that nothing is fetched for them.
        return blocks[i] + jnp.minimum(j, jnp.maximum(blocks[query_blocks + i] - 1, 0))

    call = pl.pallas_call(
        functools.partial(_body, scale=scale, causal=causal, soft_cap=soft_cap, query_blocks=query_blocks),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(q_heads, query_blocks, k.shape[1] // tuning.keys),
            in_specs=[
                pl.BlockSpec((1, tuning.queries, dim), lambda h, i, j, blocks: (h, i, 0)),
                pl.BlockSpec((1, tuning.keys, dim), lambda h, i, j, blocks: (h // group, key_at(i, j, blocks), 0)),
                pl.BlockSpec((1, tuning.keys, dim), lambda h, i, j, blocks: (h // group, key_at(i, j, blocks), 0)),
                pl.BlockSpec((tuning.queries, 1), lambda h, i, j, blocks: (i, 0)),
                pl.BlockSpec((1, tuning.keys), lambda h, i, j, blocks: (0, key_at(i, j, blocks))),
            ],
            out_specs=pl.BlockSpec((1, tuning.queries, dim), lambda h, i, j, blocks: (h, i, 0)),
            scratch_shapes=[pltpu.VMEM((tuning.queries, dim), jnp.float32),
                            pltpu.VMEM((tuning.queries, LANES), jnp.float32),
                            pltpu.VMEM((tuning.queries, LANES), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=compiler_params(("parallel", "parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(
            flops=4 * q_heads * queries * keys * dim, transcendentals=q_heads * queries * keys,
            bytes_accessed=(2 * q.size + 2 * query_blocks * k.size) * q.dtype.itemsize,
        ),
        interpret=interpret,
        name="systolic_flash_attention",
    )  # fmt: skip
    with jax.enable_x64(False):
        return call(blocks, q, k, v, q_segments[:, None], kv_segments[None, :])[:, :queries]
