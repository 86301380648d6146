"""Indexing with tensors: ``x[i, :, j]``, ``x[i] = v``, index_select and its relatives, embedding.

Indices outside a dimension are an error in eager PyTorch, which a compiled program cannot raise.
The rule here: a read gives the nearest valid row, a write is dropped.  Negative indices count
from the end where PyTorch allows them.  With duplicate indices the last write wins on XLA:CPU.
Boolean indices select a number of elements that depends on the data: a write has a static form,
a read needs ``nonzero`` first and is refused.
"""

from __future__ import annotations

import jax.numpy as jnp

from .numerics import cast, opmath
from .registry import lower, out


def read_positions(index, size: int):
    """``index`` counted from the start and clamped into ``[0, size)``; int32 where it fits."""
    index = index.astype(jnp.int64)
    index = jnp.clip(jnp.where(index < 0, index + size, index), 0, max(size - 1, 0))
    return index.astype(jnp.int32) if size <= 2**31 - 1 else index


def write_positions(index, size: int):
    """``index`` counted from the start; what is outside becomes ``size``, which a write drops."""
    index = index.astype(jnp.int64)
    index = jnp.where(index < 0, index + size, index)
    index = jnp.where((index < 0) | (index >= size), size, index)
    return index.astype(jnp.int32) if size <= 2**31 - 1 else index


def at_dim(dim: int, index):
    """The tuple that indexes dimension ``dim`` only."""
    return (slice(None),) * dim + (index,)


def _is_mask(index) -> bool:
    return index is not None and index.dtype in (jnp.bool_, jnp.uint8)


def _advanced(self, indices, positions):
    """The NumPy-style index tuple; PyTorch places the broadcast dimensions by the same rule."""
    return tuple(
        slice(None) if index is None else positions(index, self.shape[d]) for d, index in enumerate(indices)
    )


@lower("index.Tensor", "_unsafe_index.Tensor")
def _index(self, indices):
    if any(_is_mask(i) for i in indices):
        raise NotImplementedError(
            "index with a boolean or uint8 mask has a size that depends on the data; "
            "turn the mask into indices with nonzero() first, or use torch.where"
        )
    if self.size == 0:
        return jnp.zeros(out().shape, self.dtype)
    return self.at[_advanced(self, indices, read_positions)].get(mode="clip")


def _put_mask(self, mask, before: int, values, accumulate: bool):
    """``self[:, ..., mask] = values`` with ``before`` full dimensions in front of the mask."""
    if values.size == 0:  # the mask selects nothing
        return self
    mask = mask.astype(jnp.bool_)
    after = self.ndim - before - mask.ndim
    if values.ndim > after and values.shape[values.ndim - 1 - after] != 1:
        # one value for each selected element, in order
        if before:
            raise NotImplementedError(
                "index_put with a mask behind full dimensions takes one value for all selected "
                "elements; turn the mask into indices with nonzero() first"
            )
        order = jnp.cumsum(mask.reshape(-1).astype(jnp.int64)) - 1
        chosen = jnp.take(values, read_positions(jnp.maximum(order, 0), values.shape[0]), axis=0, mode="clip")
        values = chosen.reshape(mask.shape + values.shape[1:])
    elif values.ndim > after:
        front = values.shape[: values.ndim - 1 - after]
        values = values.reshape(front + (1,) * mask.ndim + values.shape[values.ndim - after :])
    mask = mask.reshape(mask.shape + (1,) * after)
    return jnp.where(mask, self + values if accumulate else values, self)


def put(self, indices, values, accumulate: bool):
    """``self`` with ``values`` written at ``indices`` (a list of index tensors and None)."""
    values = cast(values, self.dtype)
    masks = [d for d, index in enumerate(indices) if _is_mask(index)]
    if masks:
        if sum(index is not None for index in indices) > 1:
            raise NotImplementedError(
                "index_put with a mask beside other index tensors has a size that depends on the data; "
                "turn the mask into indices with nonzero() first"
            )
        return _put_mask(self, indices[masks[0]], masks[0], values, accumulate)
    if self.size == 0 or any(i is not None and i.size == 0 for i in indices):
        return self
    spot = self.at[_advanced(self, indices, write_positions)]
    if not accumulate:
        return spot.set(values, mode="drop")
    return spot.max(values, mode="drop") if self.dtype == jnp.bool_ else spot.add(values, mode="drop")


@lower("index_put", "_index_put_impl", "_unsafe_index_put")
def _index_put(self, indices, values, accumulate=False, unsafe=False):
    return put(self, indices, values, accumulate)


def _at_least_1d(self, dim):
    """(self with a dimension, a non-negative dim): PyTorch treats 0-d as one row here."""
    x = self if self.ndim else self.reshape(1)
    return x, dim % x.ndim


@lower("index_select")
def _index_select(self, dim, index):
    x, dim = _at_least_1d(self, dim)
    index = index.reshape(-1)
    if x.shape[dim] == 0 or index.size == 0:
        return jnp.zeros(out().shape, self.dtype)
    return jnp.take(x, read_positions(index, x.shape[dim]), axis=dim, mode="clip").reshape(out().shape)


@lower("index_add")
def _index_add(self, dim, index, source, alpha=1):
    x, dim = _at_least_1d(self, dim)
    index = index.reshape(-1)
    source = cast(source, self.dtype)
    source = source.reshape(x.shape[:dim] + (index.shape[0],) + x.shape[dim + 1 :])
    if self.dtype == jnp.bool_:
        scaled = source & cast(alpha, self.dtype)
        done = x.at[at_dim(dim, write_positions(index, x.shape[dim]))].max(scaled, mode="drop")
    else:
        scaled = source * cast(alpha, self.dtype)
        done = x.at[at_dim(dim, write_positions(index, x.shape[dim]))].add(scaled, mode="drop")
    return done.reshape(self.shape)


@lower("index_copy")
def _index_copy(self, dim, index, source):
    x, dim = _at_least_1d(self, dim)
    index = index.reshape(-1)
    source = cast(source, self.dtype).reshape(x.shape[:dim] + (index.shape[0],) + x.shape[dim + 1 :])
    done = x.at[at_dim(dim, write_positions(index, x.shape[dim]))].set(source, mode="drop")
    return done.reshape(self.shape)


@lower("index_fill")
def _index_fill(self, dim, index, value):
    x, dim = _at_least_1d(self, dim)
    value = cast(value, self.dtype)
    done = x.at[at_dim(dim, write_positions(index.reshape(-1), x.shape[dim]))].set(value, mode="drop")
    return done.reshape(self.shape)


@lower("take")
def _take(self, index):
    if self.size == 0:
        return jnp.zeros(index.shape, self.dtype)
    return self.reshape(-1)[read_positions(index, self.size)]


@lower("put")
def _put(self, index, source, accumulate=False):
    flat = put(self.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate)
    return flat.reshape(self.shape)


@lower("masked_scatter")
def _masked_scatter(self, mask, source):
    mask = jnp.broadcast_to(mask, out().shape)
    self = jnp.broadcast_to(self, out().shape)
    if source.size == 0 or self.size == 0:
        return self
    order = jnp.cumsum(mask.reshape(-1).astype(jnp.int64)).reshape(mask.shape) - 1
    return jnp.where(mask, source.reshape(-1)[read_positions(jnp.maximum(order, 0), source.size)], self)


@lower("masked_scatter_backward")
def _masked_scatter_backward(grad_output, mask, sizes):
    count = out().shape
    mask = jnp.broadcast_to(mask, grad_output.shape).reshape(-1)
    total = 1
    for size in count:
        total *= size
    order = jnp.where(mask, jnp.cumsum(mask.astype(jnp.int64)) - 1, total)
    gradient = jnp.zeros((total,), grad_output.dtype)
    return gradient.at[order].set(grad_output.reshape(-1), mode="drop").reshape(count)


@lower("embedding")
def _embedding(weight, indices, padding_idx=-1, scale_grad_by_freq=False, sparse=False):
    if indices.size == 0 or weight.size == 0:
        return jnp.zeros(out().shape, weight.dtype)
    return jnp.take(weight, read_positions(indices, weight.shape[0]), axis=0, mode="clip")


@lower("embedding_dense_backward")
def _embedding_dense_backward(grad_output, indices, num_weights, padding_idx, scale_grad_by_freq):
    width = grad_output.shape[-1]
    rows = write_positions(indices.reshape(-1), num_weights)
    gradient = grad_output.reshape(-1, width).astype(opmath(grad_output.dtype))
    gradient = jnp.where((rows == padding_idx)[:, None], jnp.zeros((), gradient.dtype), gradient)
    if scale_grad_by_freq:
        counts = jnp.zeros((num_weights + 1,), jnp.int32).at[rows].add(1)
        gradient = gradient / counts[rows][:, None].astype(gradient.dtype)
    return jnp.zeros((num_weights, width), gradient.dtype).at[rows].add(gradient, mode="drop")


@lower("embedding_renorm")
def _embedding_renorm(self, indices, max_norm, norm_type):
    rows = write_positions(indices.reshape(-1), self.shape[0])
    used = jnp.zeros((self.shape[0],), jnp.bool_).at[rows].set(True, mode="drop")
    values = jnp.abs(self.astype(opmath(self.dtype)))
    norms = jnp.sum(values**norm_type, axis=1) ** (1.0 / norm_type)
    scale = jnp.where(used & (norms > max_norm), max_norm / (norms + 1e-7), jnp.ones((), norms.dtype))
    return self * scale.astype(self.dtype)[:, None]
