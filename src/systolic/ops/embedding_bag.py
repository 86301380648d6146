"""Sums, means and maxima over bags of embedding rows, with their gradients.

``offsets`` says where each bag begins; entries equal to ``padding_idx`` do not count.
"""

from __future__ import annotations

import jax.numpy as jnp

from .indexing import read_positions, write_positions
from .numerics import opmath
from .registry import lower, out

_SUM, _MEAN, _MAX = range(3)


def _bags(indices, offsets, count: int):
    """The bag of each index: int64 ``[n]``."""
    place = jnp.arange(indices.shape[0], dtype=jnp.int64)
    return jnp.searchsorted(offsets[:count].astype(jnp.int64), place, side="right") - 1


def _lengths(bags, used, count: int):
    return jnp.zeros((count,), jnp.int64).at[bags].add(used.astype(jnp.int64), mode="drop")


@lower("_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    weight, indices, offsets, scale_grad_by_freq=False, mode=_SUM, sparse=False, per_sample_weights=None,
    include_last_offset=False, padding_idx=-1,
):  # fmt: skip
    """(pooled rows ``[bags, width]``, bag of each index, entries of each bag, row of each maximum)."""
    count, width = out(0).shape
    dtype = opmath(weight.dtype)
    if indices.shape[0] == 0 or count == 0:
        return tuple(jnp.zeros(out(i).shape, out(i).dtype) for i in range(4))
    bags = _bags(indices, offsets, count)
    used = indices != padding_idx
    lengths = _lengths(bags, used, count)
    rows = jnp.take(weight, read_positions(indices, weight.shape[0]), axis=0, mode="clip").astype(dtype)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.astype(dtype)[:, None]
    best = jnp.zeros((count, width), jnp.int64)
    if mode == _MAX:
        low = jnp.asarray(-jnp.inf, dtype)
        rows = jnp.where(used[:, None], rows, low)
        pooled = jnp.full((count, width), low).at[bags].max(rows, mode="drop")
        pooled = jnp.where((lengths > 0)[:, None], pooled, jnp.zeros((), dtype))
        # The first entry that reaches the maximum.
        place = jnp.arange(indices.shape[0])[:, None]
        hit = used[:, None] & (rows == pooled[bags])
        first = jnp.full((count, width), indices.shape[0]).at[bags].min(
            jnp.where(hit, place, indices.shape[0]), mode="drop"
        )
        best = jnp.take(indices, first, mode="clip") * (lengths > 0)[:, None]
    else:
        rows = jnp.where(used[:, None], rows, jnp.zeros((), dtype))
        pooled = jnp.zeros((count, width), dtype).at[bags].add(rows, mode="drop")
        if mode == _MEAN:
            pooled = pooled / jnp.maximum(lengths, 1)[:, None].astype(dtype)
    return pooled, _shaped(bags, 1), _shaped(lengths, 2), _shaped(best, 3)


def _shaped(value, index: int):
    """``value`` padded to the expected shape, or zeros where the caller has no use for it."""
    shape = out(index).shape
    if len(shape) == value.ndim == 1:
        return jnp.pad(value, (0, shape[0] - value.shape[0]))
    return value if value.shape == shape else jnp.zeros(shape, value.dtype)


@lower("_embedding_bag_backward")
def _embedding_bag_backward(
    grad, indices, offsets, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, sparse,
    per_sample_weights, padding_idx=-1,
):  # fmt: skip
    """Gradient of the embedding table."""
    if sparse:
        raise NotImplementedError("embedding_bag with sparse=True is not supported on tpu: use sparse=False")
    return _dense_backward(
        grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights,
        padding_idx,
    )  # fmt: skip


@lower("_embedding_bag_dense_backward")
def _dense_backward(
    grad, indices, offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights,
    padding_idx=-1,
):  # fmt: skip
    dtype = opmath(grad.dtype)
    count, width = grad.shape
    table = jnp.zeros((num_weights, width), dtype)
    if indices.shape[0] == 0 or count == 0:
        return table
    grad, used = grad.astype(dtype), indices != padding_idx
    lengths = _lengths(offset2bag, used, count)
    if mode == _MAX:
        given = jnp.where((lengths > 0)[:, None], grad, jnp.zeros((), dtype))
        rows = write_positions(maximum_indices.reshape(count, width), num_weights)
        return table.at[rows, jnp.arange(width)].add(given, mode="drop")
    share = jnp.where(used, jnp.ones((), dtype), jnp.zeros((), dtype))
    if per_sample_weights is not None:
        share = share * per_sample_weights.astype(dtype)
    if mode == _MEAN:
        share = share / jnp.maximum(lengths, 1).astype(dtype)[offset2bag]
    rows = write_positions(indices, num_weights)
    if scale_grad_by_freq:
        occurrences = jnp.zeros((num_weights + 1,), jnp.int64).at[rows].add(1)
        share = share / occurrences[rows].astype(dtype)
    return table.at[rows].add(grad[offset2bag] * share[:, None], mode="drop")


@lower("_embedding_bag_per_sample_weights_backward")
def _per_sample_weights_backward(grad, weight, indices, offsets, offset2bag, mode, padding_idx=-1):
    dtype = opmath(grad.dtype)
    if indices.shape[0] == 0:
        return jnp.zeros(out().shape, dtype)
    rows = jnp.take(weight, read_positions(indices, weight.shape[0]), axis=0, mode="clip").astype(dtype)
    product = jnp.sum(rows * grad.astype(dtype)[offset2bag], axis=1)
    return jnp.where(indices != padding_idx, product, jnp.zeros((), dtype))
