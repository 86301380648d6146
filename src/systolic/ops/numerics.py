"""Type rules shared by the lowerings: PyTorch's promotion, expressed on JAX values."""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

from .registry import Scalar, out

_TORCH_TO_NUMPY = {
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
}
_NUMPY_TO_TORCH = {v: k for k, v in _TORCH_TO_NUMPY.items()}


def jdtype(dtype: torch.dtype) -> np.dtype:
    """The NumPy/JAX dtype of a torch dtype; TypeError when XLA has none."""
    try:
        return _TORCH_TO_NUMPY[dtype]
    except KeyError:
        raise TypeError(
            f"dtype {dtype} has no XLA equivalent; supported: {sorted(map(str, _TORCH_TO_NUMPY))}"
        ) from None


def tdtype(dtype) -> torch.dtype:
    """The torch dtype of a NumPy/JAX dtype."""
    return _NUMPY_TO_TORCH[np.dtype(dtype)]


def kind_of(x) -> type:
    """bool, int, float or complex for a Python number or a :class:`Scalar`."""
    return x.kind if isinstance(x, Scalar) else type(x)


def is_number(x) -> bool:
    """True for a Python number and for a run-time :class:`Scalar`."""
    return isinstance(x, (bool, int, float, complex, Scalar))


_EXAMPLE = {bool: True, int: 1, float: 1.0, complex: 1j}


def result_dtype(*operands) -> np.dtype:
    """PyTorch's promoted dtype of tensors (JAX values) and numbers, as a NumPy dtype.

    Follows torch.result_type: dimensioned tensors, then 0-d tensors, then numbers.
    """
    category = {0: None, 1: None, 2: None}  # dimensioned, 0-d, number
    for x in operands:
        if is_number(x):
            level, t = 2, torch.tensor(_EXAMPLE[kind_of(x)]).dtype
        else:
            level, t = (0 if x.ndim else 1), tdtype(x.dtype)
        category[level] = t if category[level] is None else torch.promote_types(category[level], t)
    result = category[0]
    for level in (1, 2):
        other = category[level]
        if other is None:
            continue
        if result is None:
            result = other
        elif _rank(other) > _rank(result):
            result = torch.promote_types(result, other)
    return jdtype(result)


def _rank(dtype: torch.dtype) -> int:
    if dtype.is_complex:
        return 3
    if dtype.is_floating_point:
        return 2
    return 0 if dtype == torch.bool else 1


def cast(x, dtype):
    """A tensor, number or :class:`Scalar` as a JAX value of ``dtype`` (NumPy or torch)."""
    if isinstance(dtype, torch.dtype):
        dtype = jdtype(dtype)
    if isinstance(x, Scalar):
        x = x.value
    if hasattr(x, "dtype") and hasattr(x, "astype"):
        if x.dtype == dtype:
            return x
        if jnp.issubdtype(x.dtype, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating):
            x = (x != 0) if dtype == np.bool_ else x.real
        return x.astype(dtype)
    if isinstance(x, int) and np.issubdtype(dtype, np.integer):
        return jnp.asarray(np.asarray(x & ((1 << (8 * dtype.itemsize)) - 1), np.uint64).astype(dtype))
    return jnp.asarray(np.asarray(x).astype(dtype))


def promote(*operands):
    """All operands cast to their PyTorch result dtype."""
    dtype = result_dtype(*operands)
    return tuple(cast(x, dtype) for x in operands)


def opmath(dtype) -> np.dtype:
    """The dtype PyTorch's kernels compute in: float32 for 16-bit and 8-bit floats, else ``dtype``."""
    dtype = np.dtype(dtype)
    return np.dtype(np.float32) if is_float(dtype) and dtype.itemsize < 4 else dtype


def compute(*operands):
    """All operands promoted, then widened to :func:`opmath` of their result dtype.

    Dimensioned tensors are rounded to the result dtype first; 0-d tensors and numbers keep the
    wider precision, as in PyTorch's CPU kernels.
    """
    return _widen(operands, result_dtype(*operands))


def compute_float(*operands):
    """:func:`compute` for operators that turn integers into floats (``div``, ``exp``, ...).

    Integers become the operator's own result dtype, which follows torch's default dtype.
    """
    dtype = result_dtype(*operands)
    if not (is_float(dtype) or is_complex(dtype)):
        wanted = out(0).dtype
        dtype = np.dtype(wanted) if is_float(wanted) or is_complex(wanted) else np.dtype(np.float32)
    return _widen(operands, dtype)


def _widen(operands, dtype):
    wide = opmath(dtype)
    return tuple(cast(cast(x, dtype) if not is_number(x) and x.ndim else x, wide) for x in operands)


def is_float(x) -> bool:
    """True when ``x`` (value or dtype) is a floating type."""
    return jnp.issubdtype(getattr(x, "dtype", x), jnp.floating)


def is_complex(x) -> bool:
    """True when ``x`` (value or dtype) is complex."""
    return jnp.issubdtype(getattr(x, "dtype", x), jnp.complexfloating)


def canonical_dims(dim, ndim: int) -> tuple[int, ...]:
    """Normalise an ATen ``dim`` argument (None, int, list; negatives) to a sorted tuple."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(ndim))
    dims = [dim] if isinstance(dim, int) else list(dim)
    return tuple(sorted(d % ndim for d in dims)) if ndim else ()
