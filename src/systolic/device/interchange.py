"""Tensors and JAX arrays over the same memory, and the DLPack protocol of ``tpu`` tensors.

JAX arrays never change, tensors do: memory that both see is copied by the next write to the tensor, so an
array keeps the values of the moment at which it was made.
"""

from __future__ import annotations

import torch

from . import _C, client


def to_jax(tensor: torch.Tensor):
    """The values of a ``tpu`` tensor as a ``jax.Array`` of the same shape and dtype.

    On XLA:CPU it shares the tensor's memory if the tensor is contiguous and is all of its storage; a view,
    and any tensor on a TPU, is copied.  Raises ValueError for a tensor of another device.
    """
    if tensor.device.type != "tpu":
        raise ValueError(f"expected a tpu tensor, got one on {tensor.device}; move it with .to('tpu') first")
    return _alias(_whole_array(tensor), tensor.device.index)


def from_jax(array) -> torch.Tensor:
    """A contiguous ``tpu`` tensor with the values of a ``jax.Array``.

    On XLA:CPU it shares the array's memory if the array is on one of the tensor's devices; otherwise it is
    copied.  Raises TypeError for what is not a ``jax.Array`` and for dtypes that PyTorch does not have.
    """
    import jax

    from ..ops.numerics import tdtype

    if not isinstance(array, jax.Array):
        raise TypeError(f"expected a jax.Array, got {type(array).__name__}; use torch.as_tensor for other arrays")
    _C.ensure_initialized()
    placed = list(array.devices())
    devices = client.devices()
    index = devices.index(placed[0]) if len(placed) == 1 and placed[0] in devices else _C.current_device()
    try:
        dtype = tdtype(array.dtype)
    except (KeyError, TypeError, ValueError):
        raise TypeError(f"PyTorch has no dtype for {array.dtype}; convert the array with .astype first") from None
    return _C.tensor_from_array(_alias(array, index), tuple(array.shape), dtype, index)


def _whole_array(tensor: torch.Tensor):
    """The array in a tensor's storage if it has the tensor's shape and dtype, else that of a copy."""
    from ..ops.numerics import jdtype

    tensor = tensor.detach().resolve_conj().resolve_neg()

    def fitting(t):
        array = _C.array_of(t)
        fits = array is not None and array.shape == tuple(t.shape) and array.dtype == jdtype(t.dtype)
        return array if fits and t.is_contiguous() and t.storage_offset() == 0 else None

    array = fitting(tensor)
    if array is None:
        # Not a clone: that could keep strides which are not contiguous.
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        copy.copy_(tensor)
        array = _C.array_of(copy.zero_() if copy.numel() == 0 else copy)
    return array


def _alias(array, index: int):
    """Another array over the memory of ``array`` that donating either does not take away; else a copy."""
    import jax

    if client.is_cpu() and list(array.devices()) == [client.devices()[index]] and array.size:
        try:
            with jax.enable_x64(True):
                return jax.dlpack.from_dlpack(array)
        except (BufferError, TypeError, ValueError, RuntimeError):
            pass  # a dtype that DLPack does not carry
    with jax.enable_x64(True):
        return jax.device_put(array, client.sharding(index), may_alias=False)


def install() -> None:
    """Give ``tpu`` tensors the DLPack protocol: consumers see memory of the XLA device that they are in."""
    original, original_device = torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__

    def dlpack(self, **options):
        if self.device.type != "tpu":
            return original(self, **options)
        if self.requires_grad:
            raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
        options.pop("stream", None)
        return to_jax(self).__dlpack__(**options)

    def dlpack_device(self):
        if self.device.type != "tpu":
            return original_device(self)
        return _whole_array(self).__dlpack_device__()

    torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__ = dlpack, dlpack_device
