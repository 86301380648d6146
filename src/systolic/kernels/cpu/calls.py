"""JAX-traceable wrappers of the CPU custom calls."""

from __future__ import annotations

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
