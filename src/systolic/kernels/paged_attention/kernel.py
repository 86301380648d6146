"""Ragged paged attention in Pallas for TPU: new keys and values are written first, then queries attend.

One call serves prefill, decode and mixtures.  The grid is (parts of the heads, blocks of queries).  The first
step of each part writes the new tokens into their pages; then every query block visits its sequences one
by one, key block by key block, with the pages of the next blocks on their way from HBM.  Softmax is the online
form of arXiv:2205.14135.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.paged_attention import schedule
from systolic.kernels.paged_attention.attend import body
from systolic.kernels.paged_attention.static import LANES, TABLE_ROWS, WRITE_BUFFERS, Static
from systolic.kernels.paged_attention.tuning import Tuning
from systolic.kernels.pallas import compiler_params, sublanes


def _check(rows: int, group: int, page_size: int, kv_heads: int, tuning: Tuning) -> None:
    if page_size < 8 or page_size & (page_size - 1):
        raise ValueError(f"pages have {page_size} tokens; on TPU that must be a power of two from 8 on")
    if kv_heads % tuning.head_parts:
        raise ValueError(f"head_parts is {tuning.head_parts}; it must divide the {kv_heads} key/value heads")
    if group & (group - 1) and rows * group >= 1 << 16:
        raise ValueError(f"a query block has {rows} rows of {group} heads each; rows * heads must be below 65536; "
                         "take a smaller query_block")  # fmt: skip


def paged_attention_pallas(q, k, v, kv_cache, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs,
                           alibi_slopes, sinks, cache_scales, *, scale, sliding_window, soft_cap, causal, return_lse,
                           tuning: Tuning, latent: int = 0, interpret=False):  # fmt: skip
    """Same arguments and results as `paged_attention`; absent slopes, sinks and scales have shape [0].

    A sequence's new tokens are all written or, when the slot of its first one is -1, none; their places come
    from ``block_table``, with which ``slot_mapping`` must agree.

    Args:
        tuning: block sizes.
        latent: if above 0, a token's value is so many first elements of its key: kv_cache has 1 in place of 2, v is
            None, cache_scales is of keys, and the result is [tokens, q_heads, latent].
        interpret: as in `pallas_call`.
    """
    tokens, q_heads, dim = q.shape
    kv_heads, page_size = kv_cache.shape[2], kv_cache.shape[3]
    group = q_heads // kv_heads
    sequences = block_table.shape[0]
    heads = kv_heads // tuning.head_parts
    window_rows = min(page_size, sublanes(kv_cache.dtype))
    align = sublanes(q.dtype)
    query_block = tuning.query_block
    rows = query_block * group
    _check(rows, group, page_size, kv_heads, tuning)
    padded = pl.cdiv(tokens, query_block) * query_block
    key_block = tuning.pages * page_size

    plan = schedule.build(block_table, seq_lens, query_start_loc, slot_mapping, num_seqs, tokens=padded,
                          query_block=query_block, key_block=key_block, page_size=page_size, window_rows=window_rows,
                          sliding_window=sliding_window, causal=causal)  # fmt: skip
    table = jnp.pad(block_table, ((0, 0), (0, -block_table.shape[1] % LANES)))[:, None, :]
    grouped = jnp.pad(q.reshape(tokens, kv_heads, group, dim), ((0, padded - tokens), (0, 0), (0, 0), (0, 0)))
    grouped = grouped.transpose(1, 0, 2, 3).reshape(kv_heads, padded * group, dim)
    # Float32 rows of 32 bits can be shifted by any number of sublanes, on every generation.
    new = (k if latent else jnp.concatenate([k, v], axis=1)).astype(jnp.float32).transpose(1, 0, 2)
    behind = window_rows + 8 + -(tokens + 2 * window_rows + 8) % 8
    new = jnp.pad(new, ((0, 0), (window_rows, behind), (0, 0)))
    static = Static(
        scale=scale, sliding_window=sliding_window, soft_cap=soft_cap, causal=causal, alibi=alibi_slopes.size > 0,
        sinks=sinks.size > 0, scaled=cache_scales.size > 0, lse=return_lse, group=group, heads=heads,
        page_size=page_size, pages=tuning.pages, window_rows=window_rows, align=align,
        small_rows=_small_rows(tuning.small_tokens, group, align, rows),
        chunk_rows=_chunk_rows(tuning.chunk_rows, rows, align), unroll_heads=tuning.unroll_heads,
        visits=plan.visits.shape[0] // schedule.VISIT_FIELDS, writes=plan.writes.shape[0] // schedule.WRITE_FIELDS,
        buffers=tuning.buffers, latent=latent,
    )  # fmt: skip
    one = jnp.zeros((1,), jnp.float32)  # SMEM has no empty arrays
    scalars = [a.astype(jnp.float32) if a.size else one for a in (alibi_slopes, sinks, cache_scales.reshape(-1))]

    def of_rows(width):
        return pl.BlockSpec((heads, rows, width), lambda part, step, *_: (part, step, 0))

    out_dim = latent or dim
    anywhere, smem = pl.BlockSpec(memory_space=pl.ANY), pl.BlockSpec(memory_space=pltpu.SMEM)
    out_specs = [of_rows(out_dim), anywhere]
    out_shape = [jax.ShapeDtypeStruct((kv_heads, padded * group, out_dim), q.dtype),
                 jax.ShapeDtypeStruct(kv_cache.shape, kv_cache.dtype)]  # fmt: skip
    if return_lse:
        out_specs.append(of_rows(LANES))
        out_shape.append(jax.ShapeDtypeStruct((kv_heads, padded * group, LANES), jnp.float32))
    scratch = [
        pltpu.VMEM((tuning.buffers, tuning.pages, static.kinds, heads, page_size, dim), kv_cache.dtype),
        pltpu.SMEM((TABLE_ROWS, 1, table.shape[2]), jnp.int32),
        pltpu.SMEM((4,), jnp.int32),
        pltpu.VMEM((heads, rows, out_dim), jnp.float32),
        pltpu.VMEM((heads, rows, LANES), jnp.float32),
        pltpu.VMEM((heads, rows, LANES), jnp.float32),
        pltpu.VMEM((WRITE_BUFFERS, static.kinds, heads, window_rows, dim), kv_cache.dtype),
        pltpu.VMEM((WRITE_BUFFERS, static.kinds, heads, window_rows + 8, dim), jnp.float32),
        pltpu.SemaphoreType.DMA((tuning.buffers,)),
        pltpu.SemaphoreType.DMA((TABLE_ROWS,)),
        pltpu.SemaphoreType.DMA((3, WRITE_BUFFERS)),
    ]
    held = sequences * block_table.shape[1] * page_size
    cost = pl.CostEstimate(
        flops=2 * held * q_heads * (dim + out_dim), transcendentals=held * q_heads,
        bytes_accessed=static.kinds * held * kv_heads * dim * kv_cache.dtype.itemsize + 2 * q.size * q.dtype.itemsize,
    )  # fmt: skip
    call = pl.pallas_call(
        functools.partial(body, static),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4, grid=(tuning.head_parts, padded // query_block),
            in_specs=[of_rows(dim), anywhere, anywhere, anywhere, smem, smem, smem], out_specs=out_specs,
            scratch_shapes=scratch,
        ),
        out_shape=out_shape,
        input_output_aliases={7: 1},
        compiler_params=compiler_params(("parallel", "arbitrary"), bounds_checks=False),
        cost_estimate=cost,
        interpret=interpret,
        name="systolic_ragged_paged_attention",
    )
    with jax.enable_x64(False):  # a loop counter of 64 bits has no place in the kernel
        results = call(*plan, grouped, table, new, kv_cache, *scalars)

    def ungroup(x):
        x = x.reshape(kv_heads, padded, group, x.shape[-1])[:, :tokens].transpose(1, 0, 2, 3)
        return x.reshape(tokens, q_heads, x.shape[-1])

    out, cache = ungroup(results[0]), results[1]
    if not return_lse:
        return out, cache
    return out, cache, ungroup(results[2][:, :, :1])[..., 0]


def _small_rows(tokens: int, group: int, align: int, rows: int) -> int:
    """Rows of the slice for short sequences: it holds so many tokens wherever they start in a block of ``rows``."""
    span = tokens * group
    even = align % span == 0 or (tokens == 1 and group % align == 0)
    return min(rows, max(span, align) if even else -(-(span + align - 1) // align) * align)


def _chunk_rows(wanted: int, rows: int, align: int) -> int:
    """The largest divisor of ``rows`` that is a multiple of ``align`` and at most ``wanted``, or ``align``."""
    return max((n for n in range(align, min(wanted, rows) + 1, align) if rows % n == 0), default=align)
