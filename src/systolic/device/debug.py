"""Debug mode: values are checked before an operator uses them, and errors come at the line that caused them.

XLA clamps an index that is out of bounds, drops a write to such a place and gives -1 for an integer division
by zero, all without a word.  Checking costs a read of every index, so it is off unless asked for.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def _bounds(index, size: int, dim: int) -> None:
    if index is None or index.numel() == 0 or index.dtype in (torch.bool, torch.uint8):
        return
    low, high = (int(x) for x in index.aminmax())
    bad = low if low < -size else high if high >= size else None
    if bad is not None:
        raise IndexError(f"index {bad} is out of bounds for dimension {dim} with size {size}")


def _along(self, dim, index, **_):
    dim = dim % max(self.dim(), 1)
    _bounds(index, self.shape[dim] if self.dim() else 1, dim)


def _advanced(self, indices, **_):
    dim = 0
    for index in indices:
        _bounds(index, self.shape[dim], dim)
        dim += index.dim() if index is not None and index.dtype in (torch.bool, torch.uint8) else 1


def _flat(self, index, **_):
    _bounds(index, self.numel(), 0)


def _rows(weight, indices, **_):
    if indices.numel() and int(indices.min()) < 0:
        raise IndexError(
            f"index {int(indices.min())} is out of range of an embedding with {weight.shape[0]} rows"
        )
    _bounds(indices, weight.shape[0], 0)


def _labels(self, target, ignore_index=-100, **_):
    classes = self.shape[1 if self.dim() > 1 else 0]
    bad = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if bool(bad.any()):
        raise IndexError(f"Target {int(target[bad].reshape(-1)[0])} is out of bounds.")


def _divisor(self, other, rounding_mode="floor", **_):
    integral = not any(
        t.is_floating_point() or t.is_complex() for t in (self, other) if isinstance(t, torch.Tensor)
    )
    if rounding_mode is None or not integral or isinstance(other, float):
        return
    if bool((other == 0).any() if isinstance(other, torch.Tensor) else other == 0):
        raise RuntimeError("ZeroDivisionError: integer division or remainder by zero")


_CHECKS = {
    **dict.fromkeys(("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"), _advanced),
    **dict.fromkeys(
        ("index_select", "gather", "index_add", "index_add_", "index_copy", "index_copy_"), _along
    ),
    **dict.fromkeys(
        ("index_fill", "index_fill_", "scatter", "scatter_", "scatter_add", "scatter_add_"), _along
    ),
    **dict.fromkeys(("scatter_reduce", "scatter_reduce_", "index_reduce", "index_reduce_"), _along),
    **dict.fromkeys(("take", "put", "put_"), _flat),
    "embedding": _rows,
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), _labels),
    **dict.fromkeys(("floor_divide", "floor_divide_", "remainder", "remainder_", "fmod", "fmod_"), _divisor),
    **dict.fromkeys(
        ("div", "div_", "divide"), lambda rounding_mode=None, **k: _divisor(rounding_mode=rounding_mode, **k)
    ),
}


class DebugMode(TorchDispatchMode):
    """Checks indices, class labels and integer divisors, and waits for each operator to finish.

    Raises:
        IndexError: an index or a class label is out of bounds.
        RuntimeError: an integer is divided by zero.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        check = _CHECKS.get(func._schema.name.removeprefix("aten::")) if func.namespace == "aten" else None
        if check is not None:
            named = dict(zip((a.name for a in func._schema.arguments), args))
            check(**named, **kwargs)
        result = func(*args, **kwargs)
        torch.tpu.synchronize()
        return result
