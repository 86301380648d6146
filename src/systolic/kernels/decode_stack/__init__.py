"""One decode step through all layers of a dense Llama- or Qwen3-like decoder: one call, one kernel on TPU.

Between separate kernels the stream of weights from HBM stops; here it goes on through matrix and layer borders.
Public names: `decode_stack`, `cache_shape`, `decode_stack_reference`.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp

from systolic.kernels.arguments import FLOATS, names, need
from systolic.kernels.decode_stack.reference import decode_stack_reference
from systolic.kernels.selection import dispatch

__all__ = ["cache_shape", "decode_stack", "decode_stack_reference"]

MOST_SEQUENCES = 8


def cache_shape(layers: int, num_blocks: int, block_size: int, kv_heads: int, head_dim: int) -> tuple[int, ...]:
    """Shape of the cache: a paged attention cache for each layer. A contiguous one has a block for each sequence."""
    return (layers, num_blocks, 2, kv_heads, block_size, head_dim)


def decode_stack(x, input_norm, qkv, q_norm, k_norm, out, post_norm, gate_up, down, kv_cache, block_table, seq_lens,
                 cos_sin_cache, *, epsilon: float, scale: float):
    """The layers between embedding and last norm, for one new token of each sequence.

    For each layer, with r = x before the first:
        r = r + attention(rms_norm(r) qkv^T) out^T;  r = r + (silu(g) * u) down^T  with  g, u = rms_norm(r) gate_up^T.
    Queries and keys are normalised, if at all, then rotated (halves of a head paired); keys and values go to the
    cache. The residual r and all sums are float32; what a product takes is rounded to the weights' dtype, and in
    attention to the cache's.

    Args:
        x: [sequences, hidden] float32 or bfloat16, 1 to 8 sequences.
        input_norm, post_norm: [layers, hidden], any floating dtype.
        qkv: [layers, (q_heads + 2 kv_heads) * head_dim, hidden] float32 or bfloat16: queries, keys, values.
        q_norm, k_norm: [layers, head_dim], any floating dtype, or both None.
        out: [layers, hidden, q_heads * head_dim] of qkv's dtype.
        gate_up: [layers, 2 * inner, hidden] of qkv's dtype, gate first.
        down: [layers, hidden, inner] of qkv's dtype.
        kv_cache: `cache_shape(...)` float32 or bfloat16; donate it to have it updated in place.
        block_table: [sequences, pages] int32, blocks of each sequence in order.
        seq_lens: [sequences] int32, context length with the new token, at most what block_table has room for; 0 for
            padding, which attends to nothing and writes nothing.
        cos_sin_cache: [positions, head_dim], cosines then sines of each position, any floating dtype.
        epsilon: of all norms.
        scale: factor of the attention's dot products.

    Returns:
        (r after the last layer [sequences, hidden] of x's dtype, the updated kv_cache).

    Raises:
        ValueError: a shape or a dtype is wrong, or on TPU a size that the kernel does not have: heads and inner must
            be multiples of 128, hidden and qkv's rows of 256, a page of 8 (float32) or 16 (bfloat16).
    """
    empty = jnp.zeros((0,), jnp.float32)
    need((q_norm is None) == (k_norm is None), "one of q_norm and k_norm is None; give both or none")
    q_norm, k_norm = (empty if n is None else n for n in (q_norm, k_norm))
    args = (x, input_norm, qkv, q_norm, k_norm, out, post_norm, gate_up, down, kv_cache, block_table, seq_lens,
            cos_sin_cache)  # fmt: skip
    _check(*args)
    options = {"epsilon": float(epsilon), "scale": float(scale)}
    return dispatch(args, reference=functools.partial(decode_stack_reference, **options),
                    tpu=functools.partial(_tuned_pallas, **options))  # fmt: skip


def _check(x, input_norm, qkv, q_norm, k_norm, out, post_norm, gate_up, down, kv_cache, block_table, seq_lens,
           cos_sin_cache) -> None:
    need(x.ndim == 2 and 1 <= x.shape[0] <= MOST_SEQUENCES,
         f"x has shape {x.shape}; it must be [sequences, hidden] with 1 to {MOST_SEQUENCES} sequences")
    sequences, hidden = x.shape
    need(kv_cache.ndim == 6 and kv_cache.shape[2] == 2,
         f"kv_cache has shape {kv_cache.shape}; it must be [layers, num_blocks, 2, kv_heads, block_size, head_dim]")
    layers, _, _, kv_heads, _, dim = kv_cache.shape
    need(layers > 0 and kv_heads > 0 and kv_cache.size > 0, f"kv_cache has shape {kv_cache.shape}; no size may be 0")
    need(out.ndim == 3 and out.shape[:2] == (layers, hidden) and out.shape[2] > 0
         and out.shape[2] % (kv_heads * dim) == 0,
         f"out has shape {out.shape}; it must be [{layers}, {hidden}, q_heads * {dim}]; {kv_heads} divides q_heads")
    need(down.ndim == 3 and down.shape[:2] == (layers, hidden) and down.shape[2] > 0,
         f"down has shape {down.shape}; it must be [{layers}, {hidden}, inner]")
    need(dim % 2 == 0, f"heads have {dim} elements; the rotation needs an even number")
    for name, array, shape in (("qkv", qkv, (layers, out.shape[2] + 2 * kv_heads * dim, hidden)),
                               ("gate_up", gate_up, (layers, 2 * down.shape[2], hidden)),
                               ("input_norm", input_norm, (layers, hidden)),
                               ("post_norm", post_norm, (layers, hidden)), ("seq_lens", seq_lens, (sequences,))):
        need(array.shape == shape, f"{name} has shape {array.shape}; it must be {shape}")
    for name, array in (("q_norm", q_norm), ("k_norm", k_norm)):
        need(array.shape in ((0,), (layers, dim)), f"{name} has shape {array.shape}; it must be {(layers, dim)}")
    need(block_table.ndim == 2 and block_table.shape[0] == sequences and block_table.shape[1] > 0,
         f"block_table has shape {block_table.shape}; it must be [{sequences}, pages]")
    need(cos_sin_cache.ndim == 2 and cos_sin_cache.shape[0] > 0 and cos_sin_cache.shape[1] == dim,
         f"cos_sin_cache has shape {cos_sin_cache.shape}; it must be [positions, {dim}]")
    for name, array in (("x", x), ("qkv", qkv), ("kv_cache", kv_cache)):
        need(array.dtype in FLOATS, f"{name} has dtype {array.dtype}; it must be one of {names(FLOATS)}")
    for name, array in (("out", out), ("gate_up", gate_up), ("down", down)):
        need(array.dtype == qkv.dtype, f"{name} has dtype {array.dtype}; it must be qkv's {qkv.dtype}")
    for name, array in (("block_table", block_table), ("seq_lens", seq_lens)):
        need(array.dtype == jnp.int32, f"{name} has dtype {array.dtype}; it must be int32")


def _tuned_pallas(*args, interpret, **options):
    from systolic.kernels.decode_stack.kernel import decode_stack_pallas
    from systolic.kernels.decode_stack.tuning import tuned

    _, _, qkv, _, _, out, _, _, down, kv_cache, block_table, _, _ = args
    return decode_stack_pallas(*args, **options, tuning=tuned(qkv, out, down, kv_cache, block_table),
                               interpret=interpret)  # fmt: skip
