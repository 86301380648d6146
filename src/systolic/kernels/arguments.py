"""Checks of kernels' arguments."""

from __future__ import annotations

from collections.abc import Iterable

import jax.numpy as jnp

# What kernels compute in, and what a cache may hold.
FLOATS = (jnp.float32, jnp.bfloat16)
CACHES = (*FLOATS, jnp.int8, jnp.float8_e4m3fn, jnp.float8_e5m2)

def need(condition: bool, message: str) -> None:
    """Raise ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


def names(dtypes: Iterable) -> str:
    """Dtypes as a list for a message, such as "int8, float32"."""
    return ", ".join(jnp.dtype(t).name for t in dtypes)


def need_batch(tokens: int, block_table, seq_lens, query_start_loc, slot_mapping, num_seqs) -> None:
    """Raise ValueError unless these describe ``tokens`` rows of a batch over a paged cache.

    They are int32 [sequences, pages], [sequences], [sequences + 1], int32 or int64 [tokens], and int32 [1].
    """
    sequences = block_table.shape[0]
    for name, array, shape in (("seq_lens", seq_lens, (sequences,)),
                               ("query_start_loc", query_start_loc, (sequences + 1,)),
                               ("slot_mapping", slot_mapping, (tokens,)), ("num_seqs", num_seqs, (1,))):
        need(array.shape == shape, f"{name} has shape {array.shape}; it must be {shape}")
    for name, array in (("block_table", block_table), ("seq_lens", seq_lens),
                        ("query_start_loc", query_start_loc), ("num_seqs", num_seqs)):
        need(array.dtype == jnp.int32, f"{name} has dtype {array.dtype}; it must be int32")
    need(slot_mapping.dtype in (jnp.int32, jnp.int64),
         f"slot_mapping has dtype {slot_mapping.dtype}; it must be int32 or int64")
