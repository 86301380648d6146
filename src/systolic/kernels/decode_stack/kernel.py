"""A decoder stack's decode step in one Pallas call for TPU.

The grid is the layers.  Weights and cache stay in HBM and are streamed by `stream` and `attend`, whose buffers outlive
a grid step, as the residual does; the norms' few weights are blocks that Pallas fetches.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from systolic.kernels.decode_stack.attend import Attention
from systolic.kernels.decode_stack.plan import DOWN, LANES, OUT, QKV, RINGS, ROWS, UP, Static, static_sizes
from systolic.kernels.decode_stack.stream import Stream
from systolic.kernels.decode_stack.tuning import Tuning
from systolic.kernels.pallas import compiler_params
from systolic.kernels.worklist import spread


def _norm(x, weight, epsilon: float):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True) + epsilon) * weight


def _product(x, weight):
    """x [8, k] @ weight [n, k].T as float32."""
    precision = jax.lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
    return jax.lax.dot_general(x, weight, (((1,), (1,)), ((), ())), precision=precision,
                               preferred_element_type=jnp.float32)  # fmt: skip


def _body(c: Static, table, lengths, owners, blocks, count, x, cos, sin, input_norm, post_norm, q_norm, k_norm,
          qkv, out_weight, gate_up, down, cache_in, out, cache, residual, normed, projected, attended, gated, *rest):
    del cache_in  # the same memory as `cache`
    rings, (sems, places), of_attention = rest[: len(RINGS)], rest[len(RINGS) : len(RINGS) + 2], rest[len(RINGS) + 2 :]
    layer = pl.program_id(0)
    stream = Stream(c, (qkv, out_weight, gate_up, down), rings, sems, places)
    attention = Attention(c, (table, lengths, owners, blocks, count), cache, *of_attention)

    @pl.when(layer == 0)
    def _():
        stream.start()
        attention.start()
        residual[...] = x[...]

    def columns(index, block, half):
        rows = c.matrices[index].rows
        return pl.ds(pl.multiple_of(half * c.matrices[index].half + block * rows, LANES), rows)

    def store(block, weight):
        for half in range(2):
            projected[:, columns(QKV, block, half)] = _product(normed[...], weight[half])

    def add(index, operand, block, weight):
        for half in range(2):
            residual[:, columns(index, block, half)] += _product(operand[...], weight[half])

    def gate(block, weight):
        opened = _product(normed[...], weight[0])
        opened = opened * jax.nn.sigmoid(opened) * _product(normed[...], weight[1])
        gated[:, columns(UP, block, 0)] = opened.astype(gated.dtype)

    normed[...] = _norm(residual[...], input_norm[0], c.epsilon).astype(normed.dtype)
    stream.through(QKV, layer, store)
    _split_heads(c, projected, cos, sin, q_norm, k_norm, attention)
    attention.attend(layer)
    for head in range(c.q_heads):
        at = (head // c.group, pl.ds(head % c.group * ROWS, ROWS))
        total = attention.totals[at]
        result = attention.sums[at] / jnp.where(total == 0, 1.0, total)[:, :1]
        attended[:, head * c.dim : (head + 1) * c.dim] = result.astype(attended.dtype)
    stream.through(OUT, layer, functools.partial(add, OUT, attended))
    normed[...] = _norm(residual[...], post_norm[0], c.epsilon).astype(normed.dtype)
    stream.through(UP, layer, gate)
    stream.through(DOWN, layer, functools.partial(add, DOWN, gated))

    @pl.when(layer == c.layers - 1)
    def _():
        attention.finish(layer)
        out[...] = residual[...]




def _split_heads(c: Static, projected, cos, sin, q_norm, k_norm, attention: Attention) -> None:
    """The heads of the projection into attention's buffers, queries and keys normalised and rotated."""
    for head in range(c.q_heads + 2 * c.kv_heads):
        value = projected[:, head * c.dim : (head + 1) * c.dim]
        if head < c.q_heads + c.kv_heads:
            if c.qk_norm:
                value = _norm(value, (q_norm if head < c.q_heads else k_norm)[0], c.epsilon)
            value = value * cos[...] + pltpu.roll(value, c.dim // 2, axis=1) * sin[...]
        if head < c.q_heads:
            attention.queries[head // c.group, pl.ds(head % c.group * ROWS, ROWS)] = value
        else:
            kind, kv_head = divmod(head - c.q_heads, c.kv_heads)
            attention.new[kind, kv_head] = value


def decode_stack_pallas(x, input_norm, qkv, q_norm, k_norm, out, post_norm, gate_up, down, kv_cache, block_table,
                        seq_lens, cos_sin_cache, *, epsilon: float, scale: float, tuning: Tuning, interpret=False):
    """Same arguments and results as `decode_stack`; absent q_norm and k_norm have shape [0].

    Raises:
        ValueError: the TPU form does not have a size, or the block sizes do not fit.
    """
    c = static_sizes(qkv, out, down, kv_cache, block_table, qk_norm=q_norm.size > 0, epsilon=epsilon, scale=scale,
                     tuning=tuning)  # fmt: skip
    sequences = x.shape[0]
    seq_lens = jnp.clip(seq_lens, 0, c.table_pages * c.page_size)  # the list of visits has room for no more
    counts = -(-seq_lens // c.key_block)
    owners, blocks, count = spread(counts, sequences * -(-c.table_pages * c.page_size // c.key_block))

    def padded(a):
        return jnp.pad(a.astype(jnp.float32), ((0, ROWS - sequences), (0, 0)))

    cos, sin = jnp.split(padded(cos_sin_cache[jnp.maximum(seq_lens - 1, 0)]), 2, axis=1)
    # x * cos + (x turned by half a head) * sin: the first half of a head takes the second with a minus.
    cos, sin = jnp.concatenate([cos, cos], 1), jnp.concatenate([-sin, sin], 1)
    one = jnp.ones((c.layers, c.dim), jnp.float32)
    small = [a.astype(jnp.float32)[:, None, :] for a in
             (input_norm, post_norm, q_norm if c.qk_norm else one, k_norm if c.qk_norm else one)]  # fmt: skip
    weights = [w.reshape(c.layers, 2, w.shape[1] // 2, w.shape[2]) for w in (qkv, out, gate_up, down)]

    def vmem(*shape, dtype=jnp.float32):
        return pltpu.VMEM(shape, dtype)

    def whole(width):
        return pl.BlockSpec((ROWS, width), lambda layer, *_: (0, 0))

    def of_layer(width):
        return pl.BlockSpec((1, 1, width), lambda layer, *_: (layer, 0, 0))

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    rows = (tuning.up_rows, tuning.out_rows, tuning.down_rows)
    q_size, grouped = c.q_heads * c.dim, c.group * ROWS
    rings = [vmem(c.buffers, 2, n, width, dtype=qkv.dtype) for n, width in zip(rows, (c.hidden, q_size, c.inner))]
    scratch = [
        vmem(ROWS, c.hidden), vmem(ROWS, c.hidden, dtype=qkv.dtype), vmem(ROWS, qkv.shape[1]),
        vmem(ROWS, q_size, dtype=qkv.dtype), vmem(ROWS, c.inner, dtype=qkv.dtype), *rings,
        pltpu.SemaphoreType.DMA((len(RINGS), c.buffers)), pltpu.SMEM((len(RINGS),), jnp.int32),
        vmem(c.kv_heads, grouped, c.dim), vmem(2, c.kv_heads, ROWS, c.dim), vmem(c.kv_heads, grouped, c.dim),
        vmem(c.kv_heads, grouped, LANES), vmem(c.kv_heads, grouped, LANES),
        vmem(c.key_buffers, 2, c.kv_heads, c.key_block, c.dim, dtype=kv_cache.dtype),
        vmem(ROWS, 2, c.kv_heads, c.window, c.dim, dtype=kv_cache.dtype),
        pltpu.SemaphoreType.DMA((c.key_buffers,)), pltpu.SemaphoreType.DMA((ROWS,)), pltpu.SMEM((3,), jnp.int32),
    ]  # fmt: skip
    elements = sum(w.size for w in weights)
    held = sequences * c.table_pages * c.page_size * c.layers
    call = pl.pallas_call(
        functools.partial(_body, c),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=5, grid=(c.layers,),
            in_specs=[whole(c.hidden), whole(c.dim), whole(c.dim), of_layer(c.hidden), of_layer(c.hidden),
                      of_layer(c.dim), of_layer(c.dim), *[anywhere] * 5],
            out_specs=[whole(c.hidden), anywhere], scratch_shapes=scratch,
        ),
        out_shape=[jax.ShapeDtypeStruct((ROWS, c.hidden), jnp.float32),
                   jax.ShapeDtypeStruct(kv_cache.shape, kv_cache.dtype)],
        input_output_aliases={16: 1},
        compiler_params=compiler_params(("arbitrary",), vmem_share=0.9, bounds_checks=False),
        cost_estimate=pl.CostEstimate(
            flops=2 * sequences * elements + 4 * held * q_size, transcendentals=held * c.q_heads,
            bytes_accessed=elements * qkv.dtype.itemsize + 2 * held * c.kv_heads * c.dim * kv_cache.dtype.itemsize,
        ),
        interpret=interpret,
        name="systolic_decode_stack",
    )  # fmt: skip
    with jax.enable_x64(False):  # a loop counter of 64 bits has no place in the kernel
        result, cache = call(block_table.reshape(-1), seq_lens, owners, blocks, count.reshape(1), padded(x), cos, sin,
                             *small, *weights, kv_cache)  # fmt: skip
    return result[:sequences].astype(x.dtype), cache
