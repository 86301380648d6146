"""One chunk of one head of a gated delta net, as matmuls: the chunked form of arXiv:2406.06484 and arXiv:2412.06464.

Token by token: S = exp(g) S; u = beta (v - S^T k); S = S + k u^T; out = S^T q.  With the pairs A[i, j] = sum over
channels of k_i k_j exp(g_(j+1) + ... + g_i), the u of all tokens are the solution of a triangular system,
(I + diag(beta) strict_lower(A)) U = diag(beta) (V - K' S), where K' is k decayed since the chunk began.

All exponents are sums of decays over an interval, never differences of sums, so that they are exact to rounding for
decays of any size; and none is positive, so that nothing overflows.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from systolic.kernels.products import BY_COLUMNS, BY_ROWS, PLAIN, UNDERFLOW, dot, indices, sums


def _levels(size: int):
    """For blocks of 1, 2, 4, ... rows: the block's size as a shift, and the pairs of a block with the one before it.

    Each pair j < i is in exactly one level.
    """
    row, column = indices(size)
    for shift in range(size.bit_length() - 1):
        block = row >> shift
        yield shift, (block == (column >> shift) + 1) & (block & 1 == 1)


def pairs(q, k, decay, dtype):
    """sum of k_i k_j exp(decay after j up to i), and the same with q_i: [C, C] float32, meant for j <= i.

    q, k: [C, K] float32, holding values of ``dtype``, in which they are multiplied where the decay allows.
    decay: [C, 1], or [C, K] for one of each channel.
    """
    size = k.shape[0]
    row, column = indices(size)
    both = jnp.concatenate([k, q])
    if decay.shape[1] == 1:
        precision = jax.lax.Precision.HIGHEST if dtype == jnp.float32 else None
        found = dot(both.astype(dtype), k.astype(dtype), BY_COLUMNS, precision=precision)
        factor = jnp.exp(sums(column <= row, jnp.where(row > column, decay, 0.0)))
        return found[:size] * factor, found[size:] * factor
    # A decay of each channel is part of the matmul: i and j are both decayed to where their blocks meet.
    found = jnp.zeros((2 * size, size), jnp.float32)
    for shift, paired in _levels(size):
        block = row >> shift
        later = block & 1 == 1
        reach = (block == column >> shift) & ((later & (column <= row)) | (~later & (column > row)))
        factor = jnp.exp(sums(reach, decay))
        product = dot(both * jnp.concatenate([factor, factor]), k * factor, BY_COLUMNS)
        found = found + jnp.where(jnp.concatenate([paired, paired]), product, 0.0)
    own = jnp.where(row == column, jnp.sum(q * k, axis=1, keepdims=True), 0.0)
    return found[:size], found[size:] + own


def inverse(lower):
    """(I + L)^-1 for L [C, C], strictly lower, C a power of two: blocks of 2, 4, ... from those of half the size.

    It solves as stably as substitution does; a product of powers of L would not, where keys repeat.
    """
    row, column = indices(lower.shape[0])
    found = jnp.where(row == column, 1.0, 0.0)
    for shift, paired in _levels(lower.shape[0]):
        part = jnp.where(paired, lower, 0.0)
        if shift:
            part = dot(dot(found, part, PLAIN), found, PLAIN)
        found = found - part
    return found


def chunk(q, k, v, decay, beta, state, *, dtype):
    """(out [C, V] without its scale, the state after the chunk), all float32.

    q, k: [C, K]; v: [C, V]; decay: [C, 1] or [C, K]; beta: [C, 1]; state: [K, V].  Rows whose k, v, decay and beta
    are zero leave the state as it is.
    """
    size = k.shape[0]
    row, column = indices(size)
    decay = jnp.maximum(decay, UNDERFLOW)
    key_pairs, query_pairs = pairs(q, k, decay, dtype)
    decays = jnp.exp(sums(jnp.concatenate([column <= row, column > row]), decay))
    since, rest = decays[:size], decays[size:]
    if decay.shape[1] == 1:
        total = since[size - 1 :]
    else:
        total = jnp.exp(dot(decay, jnp.ones((size, 1), jnp.float32), BY_ROWS))
    read = dot(jnp.concatenate([k * since, q * since]), state, PLAIN)
    solve = inverse(jnp.where(row > column, beta * key_pairs, 0.0))
    change = dot(solve, beta * (v - read[:size]), PLAIN)
    out = read[size:] + dot(jnp.where(row >= column, query_pairs, 0.0), change, PLAIN)
    return out, total * state + dot(k * rest, change, BY_ROWS)
