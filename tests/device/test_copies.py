"""Copies: between host and device, between dtypes, to Python numbers, to other frameworks."""

import numpy as np
import pytest
import torch

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.uint32,
    torch.uint64, torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
    torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_round_trip_keeps_every_bit(dtype):
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (5, 16), dtype=torch.uint8)
    host = raw.view(dtype)
    back = host.tpu().cpu()
    assert back.dtype == dtype and back.shape == host.shape
    assert torch.equal(back.view(torch.uint8), raw)


NUMBERS = [d for d in DTYPES if d not in (torch.uint16, torch.uint32, torch.uint64)]


@pytest.mark.parametrize("source", NUMBERS, ids=str)
def test_conversion_between_dtypes(source):
    # Values that every one of the dtypes holds exactly.
    host = torch.tensor([0.0, 1.0, 2.0, 3.0]).to(source)
    device = host.tpu()
    for target in NUMBERS:
        want = host.to(target)
        copies = [device.to(target), host.to("tpu", target), device.to("cpu", target)]
        copies.append(torch.empty(4, dtype=target, device="tpu").copy_(device))
        for got in copies:
            assert got.dtype == target
            assert torch.equal(got.cpu().to(torch.complex128), want.to(torch.complex128)), (source, target)


def test_conversion_of_fractions_and_negatives():
    host = torch.tensor([-2.7, -0.5, 0.5, 1.5, 2.5, 100.9])
    for target in (
        torch.int8,
        torch.int32,
        torch.int64,
        torch.bool,
        torch.float16,
        torch.bfloat16,
        torch.float64,
    ):
        assert torch.equal(host.tpu().to(target).cpu(), host.to(target))
    wrapped = torch.tensor([-1, 300, 2**33 + 5])
    for target in (torch.uint8, torch.int8, torch.int16, torch.int32):
        assert torch.equal(wrapped.tpu().to(target).cpu(), wrapped.to(target))


def test_64_bit_integers_are_exact():
    big = torch.tensor([2**62 + 1, -(2**40) - 3, 2**32])
    device = big.tpu()
    assert torch.equal((device + 1).cpu(), big + 1)
    assert torch.equal((device // 3).cpu(), big // 3)
    assert device.sum().item() == big.sum().item()
    assert (device[2] * 2**20).item() == 2**52
    assert torch.tensor(2**53 + 1, device="tpu").item() == 2**53 + 1
    assert (torch.tensor([1.0], dtype=torch.float64, device="tpu") + 2**-50).item() == 1 + 2**-50


def test_numbers_out_of_a_tensor():
    t = torch.tensor([1.5, -2.0], device="tpu")
    assert t[0].item() == 1.5 and float(t[1]) == -2.0 and int(t[1]) == -2
    assert bool(t[0]) and not bool(t[0] - 1.5)
    assert t.tolist() == [1.5, -2.0]
    assert [x.item() for x in t] == [1.5, -2.0]
    assert torch.tensor(True, device="tpu").item() is True
    assert torch.tensor(2 - 3j, device="tpu").item() == 2 - 3j
    assert list(range(4))[torch.tensor(2, device="tpu")] == 2
    assert len(t) == 2 and -2.0 in t
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        t.item()
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(t)


def test_copies_are_independent():
    host = torch.zeros(64)
    device = host.tpu()
    host.fill_(1)
    assert device.sum().item() == 0
    back = device.cpu()
    device.add_(5)
    assert back.sum().item() == 0
    back.fill_(2)
    assert device.sum().item() == 5 * 64


def test_non_blocking_copies_hold_the_values_of_their_moment():
    host = torch.arange(1024.0)
    device = host.to("tpu", non_blocking=True)
    host.zero_()
    assert torch.equal(device.cpu(), torch.arange(1024.0))
    back = torch.empty(1024)
    back.copy_(device, non_blocking=True)
    device.zero_()
    torch.tpu.synchronize()
    assert torch.equal(back, torch.arange(1024.0))


def test_to_the_same_device_returns_the_tensor_itself():
    t = torch.ones(2, device="tpu")
    assert t.to("tpu") is t and t.tpu() is t
    assert t.to("tpu", copy=True).data_ptr() != t.data_ptr()


def test_strided_copies_both_ways():
    host = torch.arange(24.0).view(4, 6)
    assert torch.equal(host.t()[::2].tpu().cpu(), host.t()[::2])
    assert torch.equal(host.expand(2, 4, 6).tpu().cpu(), host.expand(2, 4, 6))
    device = host.tpu()
    target = torch.zeros(6, 4)
    target.copy_(device.t())
    assert torch.equal(target, host.t())
    into = torch.zeros(6, 8)
    into[:, ::2].copy_(device.t())
    assert torch.equal(into[:, ::2], host.t()) and into[:, 1::2].sum() == 0
    into = torch.zeros(4, 6, dtype=torch.int32)
    into.copy_(device)
    assert torch.equal(into, host.int())


def test_copy_broadcasts():
    t = torch.zeros(3, 4, device="tpu")
    t.copy_(torch.arange(4.0))
    assert torch.equal(t.cpu(), torch.arange(4.0).expand(3, 4))
    t.copy_(torch.arange(3.0, device="tpu").view(3, 1))
    assert torch.equal(t.cpu(), torch.arange(3.0).view(3, 1).expand(3, 4))
    with pytest.raises(RuntimeError):
        t.copy_(torch.zeros(5))
    with pytest.raises(RuntimeError):
        t.copy_(torch.zeros(5, device="tpu"))


def test_zero_dimensional_cpu_tensors_work_beside_tpu_tensors():
    t = torch.arange(3, device="tpu")
    assert (t + torch.tensor(2)).tolist() == [2, 3, 4]
    assert (torch.tensor(2) * t).tolist() == [0, 2, 4]
    assert (t * torch.tensor(0.5)).dtype == torch.float32
    assert (t.float() * torch.tensor(0.5, dtype=torch.float64)).dtype == torch.float32
    assert torch.where(t > 1, t, torch.tensor(7)).tolist() == [7, 7, 2]
    assert t.masked_fill(t > 1, torch.tensor(9)).tolist() == [0, 1, 9]
    t[0] = torch.tensor(5)
    assert t.tolist() == [5, 1, 2]


def test_python_numbers_promote_as_on_the_cpu():
    for dtype in (
        torch.bool,
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.float64,
    ):
        host = torch.ones(2, dtype=dtype)
        for number in (True, 3, 2.5, 1j):
            if dtype == torch.float16 and number == 1j:
                continue  # complex32, which XLA does not have
            want, got = host * number, host.tpu() * number
            assert got.dtype == want.dtype
            assert torch.equal(got.cpu(), want)


def test_numpy_needs_a_host_tensor():
    t = torch.ones(2, device="tpu")
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
        t.numpy()
    with pytest.raises(TypeError, match=r"Use Tensor.cpu\(\)"):
        np.asarray(t)
    assert t.cpu().numpy().sum() == 2
    assert torch.from_numpy(np.arange(3)).tpu().tolist() == [0, 1, 2]
    assert torch.tensor(np.float32([1, 2]), device="tpu").dtype == torch.float32


def test_pinned_memory_is_only_for_host_tensors():
    with pytest.raises(RuntimeError, match="pinned"):
        torch.empty(2, device="tpu", pin_memory=True)
    assert not torch.ones(2, device="tpu").is_pinned()


def test_never_written_memory_can_be_read():
    assert torch.empty(3, device="tpu").cpu().shape == (3,)
    t = torch.empty(4, device="tpu")
    t[1:3] = 2
    assert t[1:3].tolist() == [2.0, 2.0]
    assert (torch.empty(2, 2, device="tpu") * 0 + 1).sum().item() == 4
