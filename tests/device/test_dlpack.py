"""Exchange with JAX and NumPy: shared memory where it is possible, values of the moment everywhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.int32, torch.uint8, torch.bool,
          torch.complex64, torch.int64, torch.float64]  # fmt: skip
shares_memory = pytest.mark.skipif(torch.tpu.get_device_name() != "XLA on the CPU", reason="TPU memory is copied")


def pointer(array):
    return array.unsafe_buffer_pointer()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_both_ways(dtype):
    host = torch.arange(-3, 3).to(dtype).view(2, 3)
    tensor = host.tpu()
    array = torch.tpu.to_jax(tensor)
    assert array.shape == (2, 3) and str(array.dtype) == str(dtype).removeprefix("torch.")
    back = torch.tpu.from_jax(array)
    assert back.dtype == dtype and back.device == tensor.device and back.is_contiguous()
    assert torch.equal(back.cpu(), host)
    assert torch.equal(torch.tpu.from_jax(torch.tpu.to_jax(tensor.t())).cpu(), host.t())
    assert torch.equal(torch.tpu.from_jax(torch.tpu.to_jax(tensor[1])).cpu(), host[1])
    empty = torch.empty(0, 3, dtype=dtype, device="tpu")
    assert torch.tpu.from_jax(torch.tpu.to_jax(empty)).shape == (0, 3)


@shares_memory
def test_whole_tensors_share_memory_and_views_do_not():
    tensor = torch.arange(24.0).view(4, 6).tpu()
    first, second = torch.tpu.to_jax(tensor), torch.tpu.to_jax(tensor)
    assert pointer(first) == pointer(second)
    assert pointer(torch.tpu.to_jax(tensor[1:])) != pointer(first)
    array = jnp.arange(5.0)
    assert pointer(torch.tpu.to_jax(torch.tpu.from_jax(array))) == pointer(array)


def test_writes_to_a_tensor_do_not_reach_an_array():
    tensor = torch.zeros(6).tpu()
    array = torch.tpu.to_jax(tensor)
    tensor.add_(1)
    tensor[2:4] = 7
    assert array.tolist() == [0.0] * 6 and tensor.tolist() == [1, 1, 7, 7, 1, 1]
    source = jnp.arange(4.0)
    taken = torch.tpu.from_jax(source)
    taken.mul_(2)
    taken[0] = 9
    assert source.tolist() == [0, 1, 2, 3] and taken.tolist() == [9, 2, 4, 6]
    kept = jnp.ones(3) * 5
    taken = torch.tpu.from_jax(kept)
    del kept
    assert (taken + 1).tolist() == [6.0] * 3


def test_protocol():
    tensor = torch.arange(6.0).view(2, 3).tpu()
    assert np.array_equal(jax.dlpack.from_dlpack(tensor), np.arange(6.0).reshape(2, 3))
    assert np.array_equal(jax.dlpack.from_dlpack(tensor.t()), np.arange(6.0).reshape(2, 3).T)
    if tensor.__dlpack_device__()[0] == 1:
        assert np.from_dlpack(tensor).tolist() == tensor.tolist()
        assert torch.from_dlpack(tensor).device.type == "cpu"
    assert torch.from_dlpack(jnp.arange(3.0), device="tpu").tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(BufferError, match="detach"):
        torch.ones(2, device="tpu", requires_grad=True).__dlpack__()


def test_what_is_refused():
    with pytest.raises(ValueError, match="expected a tpu tensor, got one on cpu"):
        torch.tpu.to_jax(torch.ones(2))
    with pytest.raises(TypeError, match="expected a jax.Array, got ndarray"):
        torch.tpu.from_jax(np.ones(2))
    with pytest.raises(TypeError, match="no dtype for int4"):
        torch.tpu.from_jax(jnp.ones(2, jnp.int4))
