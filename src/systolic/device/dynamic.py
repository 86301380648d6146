"""Operators whose result size depends on the data: masks, ``nonzero``, ``unique``, ``bincount``.

Each reads one size from the device, then runs programs of static sizes there.  A result is computed
at the next power of two and is the front part of that, so that a new size seldom compiles anything.
"""

from __future__ import annotations

import warnings

import torch

from . import composites
from .outside_dynamo import never_trace

aten = torch.ops.aten
_MASKS = (torch.bool, torch.uint8)


def _room(count: int, limit: int) -> int:
    """The size to compute for ``count`` elements of at most ``limit``."""
    return 0 if count == 0 else min(1 << (count - 1).bit_length(), limit)


def _front(padded: torch.Tensor, count: int, dim: int = 0) -> torch.Tensor:
    return padded.narrow(dim, 0, count) if padded.shape[dim] != count else padded


def _count(mask: torch.Tensor) -> int:
    return int(aten.count_nonzero(mask).item())


def _positions(flags: torch.Tensor, count: int, fill: int = 0) -> torch.Tensor:
    """Positions of the nonzero elements of a vector, padded with ``fill``: int64 ``[_room(count)]``."""
    return aten.nonzero_static(flags, size=_room(count, flags.numel()), fill_value=fill)[:, 0]


def nonzero(self):
    """int64 ``[count, self.dim()]``: the indices of what is not zero, in row-major order."""
    count = _count(self)
    return _front(aten.nonzero_static(self, size=_room(count, self.numel())), count)


def masked_select(self, mask):
    """The elements of ``self`` where ``mask`` (broadcast with it) is true: ``[count]``."""
    if mask.dtype not in _MASKS:
        raise RuntimeError(f"masked_select: expected BoolTensor for mask, got {mask.dtype}")
    self, mask = torch.broadcast_tensors(self, mask)
    return _by_mask(self.reshape(-1), mask.reshape(-1), 0)


def _by_mask(self, mask, dim: int):
    """``self[:, ..., mask]`` with ``dim`` full dimensions in front of the mask."""
    if mask.dim() > 1:
        self = self.flatten(dim, dim + mask.dim() - 1)
        mask = mask.reshape(-1)
    count = _count(mask)
    found = aten.index_select(self, dim, _positions(mask, count))
    return _front(found, count, dim).contiguous()


def index_by_mask(name: str, overload: str, self, indices, *rest):
    """Indexing with at least one boolean (or uint8) mask; called by the C++ core before it gathers a key.

    ``rest`` holds the other arguments of ``name.overload`` in schema order.  Returns the operator's
    result, or None where the operator's own program can use the mask as it is.

    Raises:
        IndexError: a mask does not have the shape of the dimensions it stands for.
        RuntimeError: the values do not fit the selected elements.
    """
    indices = [i.to(self.device) if isinstance(i, torch.Tensor) else None for i in indices]
    dim = 0
    for index in indices:
        dim += _check_mask(self, index, dim) if index is not None and index.dtype in _MASKS else 1
    lone = [d for d, index in enumerate(indices) if index is not None]
    lone = lone[0] if len(lone) == 1 else None
    operator = getattr(getattr(aten, name.removeprefix("aten::")), overload or "default")
    if "index_put" in name:
        if lone is not None and _fits_as_mask(self, indices[lone], lone, rest[0]):
            return None
        return operator(self, _expanded(indices), *rest)
    if lone is None:
        result = aten._unsafe_index.Tensor(self, _expanded(indices))
    else:
        result = _by_mask(self, indices[lone], lone)
    return rest[0].resize_(result.shape).copy_(result) if operator._schema.arguments[-1].is_out else result


def _check_mask(self, mask, dim: int) -> int:
    if mask.dtype == torch.uint8:
        warnings.warn(
            "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool instead.",
            stacklevel=3,
        )
    for offset, size in enumerate(mask.shape):
        if dim + offset >= self.dim():
            raise IndexError(f"too many indices for tensor of dimension {self.dim()}")
        if self.shape[dim + offset] != size:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {offset} does not match the shape of the "
                f"indexed tensor {list(self.shape)} at index {dim + offset}"
            )
    return mask.dim()


def _fits_as_mask(self, mask, dim: int, values) -> bool:
    """Whether ``where(mask, ...)`` writes these values; raises if nothing can."""
    after = self.dim() - dim - mask.dim()
    if values.dim() <= after or values.shape[-1 - after] == 1:
        return True
    count = _count(mask)
    if values.shape[-1 - after] != count:
        selected = [*self.shape[:dim], count, *self.shape[dim + mask.dim() :]]
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing "
            f"result of shape {selected}"
        )
    return dim == 0


def _expanded(indices):
    """Index tensors with each mask replaced by the positions it selects, one tensor a dimension."""
    out = []
    for index in indices:
        if index is not None and index.dtype in _MASKS:
            out.extend(nonzero(index).unbind(1))
        else:
            out.append(index)
    return out


def _runs(values, starts, return_counts: bool):
    """(first element, length) of each run of equal elements; ``starts`` marks where a run begins."""
    total = values.shape[0]
    count = _count(starts)
    # One more than there are runs: the end of the last one.
    room = _room(count, total) + 1
    begin = aten.nonzero_static(starts, size=room, fill_value=total)[:, 0]
    first = values.index_select(0, begin[:-1].clamp(max=max(total - 1, 0)))
    lengths = _front(begin[1:] - begin[:-1], count) if return_counts else _no_counts(values)
    return _front(first, count), lengths


def _no_counts(like):
    return torch.empty(0, dtype=torch.int64, device=like.device)


def _starts(values):
    """bool ``[n]``: an element (or row) differs from the one before it."""
    starts = torch.ones(values.shape[0], dtype=torch.bool, device=values.device)
    if values.shape[0] > 1:
        differs = values[1:] != values[:-1]
        starts[1:] = differs if values.dim() == 1 else differs.flatten(1).any(1)
    return starts


def _unsorted(order, groups):
    """``groups`` of sorted elements, put back where the elements came from."""
    return torch.empty_like(groups).scatter_(0, order, groups)


def unique2(self, sorted=True, return_inverse=False, return_counts=False):
    """(distinct values in order, index of each element among them, counts)."""
    values, order = self.reshape(-1).sort()
    starts = _starts(values)
    distinct, counts = _runs(values, starts, return_counts)
    if return_inverse:
        inverse = _unsorted(order, starts.cumsum(0) - 1).view(self.shape)
    else:
        inverse = _no_counts(self)
    return distinct, inverse, counts


def unique(self, sorted=True, return_inverse=False):
    """:func:`unique2` without counts."""
    return unique2(self, sorted, return_inverse)[:2]


def unique_consecutive(self, return_inverse=False, return_counts=False, dim=None):
    """(values without repeats of their neighbour, index of each element among them, counts)."""
    rows = self.reshape(-1) if dim is None else self.movedim(dim, 0)
    starts = _starts(rows)
    distinct, counts = _runs(rows, starts, return_counts)
    inverse = starts.cumsum(0) - 1 if return_inverse else _no_counts(self)
    if dim is None:
        return distinct, inverse.view(self.shape) if return_inverse else inverse, counts
    return distinct.movedim(0, dim).contiguous(), inverse, counts


def unique_dim_consecutive(self, dim, return_inverse=False, return_counts=False):
    """:func:`unique_consecutive` along a dimension."""
    return unique_consecutive(self, return_inverse, return_counts, dim)


def _dense_ranks(columns):
    """Rank of each element among the distinct values of its column: int64, shape of ``columns``."""
    values, order = columns.sort(0)
    ranks = torch.zeros(columns.shape, dtype=torch.int64, device=columns.device)
    ranks[1:] = (values[1:] != values[:-1]).cumsum(0)
    return torch.empty_like(ranks).scatter_(0, order, ranks)


def unique_dim(self, dim, sorted=True, return_inverse=False, return_counts=False):
    """(distinct slices along ``dim`` in lexicographic order, index of each slice among them, counts)."""
    rows = self.movedim(dim, 0)
    n = rows.shape[0]
    if n == 0 or rows.numel() == 0:
        if rows.shape[1:].numel() == 0 and n > 0:
            raise RuntimeError(
                "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied"
            )
        return self.clone(), _no_counts(self), _no_counts(self)
    ranks = _dense_ranks(rows.reshape(n, -1))
    while ranks.shape[1] > 1:  # the order of two neighbouring columns is that of their pair of ranks
        if ranks.shape[1] % 2:
            ranks = torch.nn.functional.pad(ranks, (0, 1))
        ranks = _dense_ranks(ranks[:, ::2] * n + ranks[:, 1::2])
    inverse = ranks[:, 0]
    order = inverse.argsort(stable=True)
    first, counts = _runs(order, _starts(inverse.index_select(0, order)), return_counts)
    distinct = self.index_select(dim, first)
    return distinct, inverse.contiguous() if return_inverse else _no_counts(self), counts


def bincount(self, weights=None, minlength=0):
    """Occurrences of each number from 0 to the largest, or the sums of their weights."""
    if self.dim() != 1 or self.is_floating_point() or self.dtype == torch.bool:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    size = minlength
    if self.numel():
        low, high = torch.stack(self.to(torch.int64).aminmax()).tolist()
        if low < 0:
            raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
        size = max(minlength, high + 1)
    if weights is None:
        weights = torch.ones((), dtype=torch.int64, device=self.device).expand(self.shape)
    elif weights.dtype != torch.float32:
        weights = weights.to(torch.float64)
    totals = torch.zeros(_room(size, size * 2), dtype=weights.dtype, device=self.device)
    return _front(totals.scatter_add_(0, self.to(torch.int64), weights), size)


def repeat_interleave(repeats, output_size=None):
    """int64: the number ``i``, ``repeats[i]`` times, for each ``i`` in order."""
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int32, torch.int64):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if repeats.numel() == 0:
        return torch.empty(0, dtype=repeats.dtype, device=repeats.device)
    ends = repeats.to(torch.int64).cumsum(0)
    low, total = torch.stack([repeats.amin().to(torch.int64), ends[-1]]).tolist()
    if low < 0:
        raise RuntimeError("repeats can not be negative")
    if output_size is not None and output_size != total:
        raise RuntimeError(f"allocated size does not match required size: {output_size} is not {total}")
    place = torch.arange(_room(total, total * 2), device=repeats.device)
    owner = torch.searchsorted(ends, place, right=True)
    return _front(owner.to(repeats.dtype), total)


def equal(self, other):
    """True if sizes and all elements are equal."""
    if self.device != other.device:
        raise RuntimeError(
            f"Cannot compare two tensors on different devices. Got: {self.device} and {other.device}"
        )
    return self.shape == other.shape and bool((self == other).all())


def assert_async(self, message="Expected Tensor with single nonzero value, but got zero"):
    """Raise RuntimeError with ``message`` unless the only element is nonzero; waits for its value, as the CPU does."""
    if not bool(self):
        raise RuntimeError(message or "Assertion is failed")


def _into(function):
    """The ``out=`` form of an operator with one result."""

    def write(*arguments, out):
        result = function(*arguments)
        if out.dtype != result.dtype:
            raise RuntimeError(
                f"Expected out tensor to have dtype {result.dtype}, but got {out.dtype} instead"
            )
        return out.resize_(result.shape).copy_(result)

    return write


KERNELS = {
    "nonzero": nonzero,
    "nonzero.out": _into(nonzero),
    "masked_select": masked_select,
    "masked_select.out": _into(masked_select),
    "_unique": unique,
    "_unique2": unique2,
    "unique_dim": unique_dim,
    "unique_consecutive": unique_consecutive,
    "unique_dim_consecutive": unique_dim_consecutive,
    "bincount": bincount,
    "repeat_interleave.Tensor": repeat_interleave,
    "equal": equal,
    "_assert_async": assert_async,
    "_assert_async.msg": assert_async,
    **composites.KERNELS,
}

_library = None  # the registrations live as long as this object


def register_dynamic() -> None:
    """Give the operators of this file their kernels.  Call once, after the operator table is registered."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    for name, function in KERNELS.items():
        never_trace(function)
        _library.impl(name, function, "PrivateUse1")
