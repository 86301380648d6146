"""JAX-traceable wrappers of the CPU custom calls."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from systolic.kernels.cpu.build import load


def paged_attention_cpu(q, k, v, kv_cache, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs,
                        alibi_slopes=None, sinks=None, *, scale: float, sliding_window: int = 0,
                        soft_cap: float = 0.0, causal: bool = True):
    """Paged attention as one custom call; see `systolic.kernels.paged_attention` for the arguments.

    Returns:
        (out, kv_cache). The cache aliases the argument: inside `jax.jit` with the cache donated it is
        updated in place, otherwise XLA copies it first.
    """
    load()
    none = jnp.zeros((0,), jnp.float32)
    call = jax.ffi.ffi_call(
        "systolic_paged_attention",
        (jax.ShapeDtypeStruct(q.shape, jnp.float32), jax.ShapeDtypeStruct(kv_cache.shape, jnp.float32)),
        input_output_aliases={3: 1},
    )
    out, cache = call(
        q, k, v, kv_cache, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs,
        none if alibi_slopes is None else alibi_slopes, none if sinks is None else sinks,
        scale=np.float32(scale), sliding_window=np.int32(sliding_window), soft_cap=np.float32(soft_cap),
        causal=np.bool_(causal))
    return out, cache


def small_linear_cpu(x, weight, bias=None):
    """y = x @ weight.T + bias as one custom call; see `systolic.kernels.small_linear`."""
    load()
    call = jax.ffi.ffi_call("systolic_small_linear",
                            jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), jnp.float32))
    return call(x, weight, jnp.zeros((0,), jnp.float32) if bias is None else bias)


def rms_norm_cpu(x, weight=None, *, epsilon: float):
    """RMS norm over the last axis as one custom call; see `systolic.kernels.decoder.rms_norm`.

    x: [..., d] float32; weight: [d] float32 or None.
    """
    load()
    rows = _rows(x)
    weight = jnp.zeros((0,), jnp.float32) if weight is None else weight
    call = jax.ffi.ffi_call("systolic_rms_norm", jax.ShapeDtypeStruct(rows.shape, jnp.float32))
    return call(rows, weight, epsilon=np.float32(epsilon)).reshape(x.shape)


def add_rms_norm_cpu(x, residual, weight=None, *, epsilon: float):
    """(rms_norm(x + residual), x + residual) as one custom call; see `systolic.kernels.decoder`.

    x and residual: [..., d] float32; weight: [d] float32 or None.
    """
    load()
    rows = _rows(x)
    weight = jnp.zeros((0,), jnp.float32) if weight is None else weight
    result = jax.ShapeDtypeStruct(rows.shape, jnp.float32)
    call = jax.ffi.ffi_call("systolic_add_rms_norm", (result, result))
    normed, total = call(rows, _rows(residual), weight, epsilon=np.float32(epsilon))
    return normed.reshape(x.shape), total.reshape(x.shape)


def rotary_cpu(positions, x, cos_sin_cache, *, head_size: int, rotary_dim: int, neox: bool):
    """Rotary embedding as one custom call; see `systolic.kernels.decoder.rotary`.

    positions: [T] int32 or int64; x: [T, heads * head_size] float32; cos_sin_cache: [P, rotary_dim]
    float32 with P > 0.
    """
    load()
    call = jax.ffi.ffi_call("systolic_rotary", jax.ShapeDtypeStruct(x.shape, jnp.float32))
    return call(positions, x, cos_sin_cache, head_size=np.int64(head_size), rotary_dim=np.int64(rotary_dim),
                neox=np.bool_(neox))


def silu_and_mul_cpu(x):
    """silu(x[..., :d]) * x[..., d:] as one custom call; x: [..., 2 d] float32, returns [..., d]."""
    load()
    rows = _rows(x)
    width = x.shape[-1] // 2
    result = jax.ShapeDtypeStruct((rows.shape[0], width), jnp.float32)
    return jax.ffi.ffi_call("systolic_silu_and_mul", result)(rows).reshape(*x.shape[:-1], width)


def gemm_cpu(x, weight, bias=None):
    """y = x @ weight.T + bias for many rows as one custom call; see `systolic.kernels.small_linear.linear`.

    x: [M, K] float32; weight: [N, K] float32; bias: [N] float32, of shape [0] or None for none.
    """
    load()
    call = jax.ffi.ffi_call("systolic_gemm", jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), jnp.float32))
    return call(x, weight, jnp.zeros((0,), jnp.float32) if bias is None else bias)


def batched_matmul_cpu(a, b, *, transposed: bool):
    """a @ b as one custom call; a: [B, M, K] float32, b: [B, K, N] float32. See `systolic.kernels.dense`.

    With ``transposed`` the call takes b with its columns contiguous, which spares XLA a copy of a transposed array.
    """
    load()
    result = jax.ShapeDtypeStruct((*a.shape[:2], b.shape[2]), jnp.float32)
    layouts = (None, (0, 2, 1) if transposed else None)
    call = jax.ffi.ffi_call("systolic_batched_matmul", result, input_layouts=layouts)
    return call(a, b, transposed=np.bool_(transposed))


def convolution_2d_cpu(x, weight, *, result, stride, padding, dilation):
    """A 2-D convolution as one custom call; ``result`` gives its shape. See `systolic.kernels.dense`."""
    load()
    pairs = {"stride": stride, "padding": padding, "dilation": dilation}
    attributes = {name: np.array(pair, np.int64) for name, pair in pairs.items()}
    call = jax.ffi.ffi_call("systolic_convolution", jax.ShapeDtypeStruct(result.shape, jnp.float32))
    return call(x, weight, **attributes)


def _rows(x):
    """x [..., d] as [M, d]; d comes from the shape, as -1 has no meaning for an empty array."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
