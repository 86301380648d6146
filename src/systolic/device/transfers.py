"""Bytes between host memory and XLA buffers."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from ..ops.numerics import jdtype
from . import _C, client


# c10::ScalarType numbers: fixed by PyTorch's serialized formats.
_SCALAR_TYPES = {
    0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64, 5: torch.float16,
    6: torch.float32, 7: torch.float64, 9: torch.complex64, 10: torch.complex128, 11: torch.bool,
    15: torch.bfloat16, 23: torch.float8_e5m2, 24: torch.float8_e4m3fn, 27: torch.uint16, 28: torch.uint32,
    29: torch.uint64,
}  # fmt: skip


def check_dtype(scalar_type: int) -> None:
    """Raise TypeError when XLA has no such dtype."""
    if scalar_type not in _SCALAR_TYPES:
        supported = ", ".join(str(d).removeprefix("torch.") for d in _SCALAR_TYPES.values())
        raise TypeError(f"the tpu device has no dtype of number {scalar_type}; it supports {supported}")


def _view(pointer: int, nbytes: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """A NumPy array over foreign memory; the caller keeps the memory alive."""
    if nbytes == 0:
        return np.empty(shape, dtype)
    raw = (ctypes.c_uint8 * nbytes).from_address(pointer)
    return np.frombuffer(raw, np.uint8).view(dtype).reshape(shape)


def put(array: np.ndarray, index: int):
    """Copy a NumPy array to a device.  The copy is complete, or owns its bytes, when this returns."""
    from jax._src import core
    from jax._src.lib import xla_client

    _C.check_not_forked()
    # Without this the CPU client aliases 64-byte aligned host memory, and later writes by the owner would show.
    semantics = xla_client.HostBufferSemantics.IMMUTABLE_ONLY_DURING_CALL
    aval = core.ShapedArray(array.shape, array.dtype)
    device = client.devices()[index]
    return xla_client.batched_device_put(
        aval, client.sharding(index), [array], [device], True, False, semantics, enable_x64=True
    )


def from_host(pointer: int, nbytes: int, shape: tuple[int, ...], scalar_type: int, index: int):
    """A device array from contiguous host memory."""
    return put(_view(pointer, nbytes, shape, jdtype(_SCALAR_TYPES[scalar_type])), index)


def number_array(raw: bytes, scalar_type: int, index: int):
    """A 0-d device array from the first bytes of ``raw``."""
    dtype = jdtype(_SCALAR_TYPES[scalar_type])
    return put(np.frombuffer(raw, np.uint8, dtype.itemsize).copy().view(dtype).reshape(()), index)


def random_state(seed: int, offset: int, index: int):
    """The ``uint64[2]`` input of a program that draws random numbers."""
    return put(np.array([seed & (2**64 - 1), offset], np.uint64), index)


def read_bytes(array, pointer: int, nbytes: int, start: int = 0) -> None:
    """Wait for an array and copy ``nbytes`` of it, from byte ``start`` on, to host memory."""
    if client.is_cpu():
        # Not np.asarray: its view would pin the buffer, and a donated update would copy the whole array.
        array.block_until_ready()
        ctypes.memmove(pointer, array.unsafe_buffer_pointer() + start, nbytes)
    else:
        host = np.ascontiguousarray(np.asarray(array))
        ctypes.memmove(pointer, host.ctypes.data + start, nbytes)


def move_to(array, index: int):
    """Copy an array to another device of the same client."""
    import jax

    return jax.device_put(array, client.sharding(index))


def resized_bytes(array, nbytes: int, index: int):
    """The array's bytes, cut or padded with zeros to ``nbytes``, as uint8."""
    host = np.ascontiguousarray(np.array(array)).reshape(-1).view(np.uint8)
    out = np.zeros(nbytes, np.uint8)
    keep = min(nbytes, host.size)
    out[:keep] = host[:keep]
    return put(out, index)
