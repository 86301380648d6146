"""Wrong use raises PyTorch's exception types with messages that say what to do."""

import pytest
import torch


def tpu(*shape):
    return torch.ones(*shape, device="tpu")


@pytest.mark.parametrize("make", [
    lambda: torch.ones(1, device="tpu:63"),
    lambda: torch.empty(1, device="tpu:63"),
    lambda: torch.ones(1).to("tpu:63"),
    lambda: torch.ones(1).tpu(63),
    lambda: torch.randn(1, device="tpu:63"),
    lambda: torch.tensor([1], device="tpu:63"),
    lambda: torch.tpu.set_device(63),
    lambda: torch.tpu.get_device_name(63),
    lambda: torch.tpu.memory_allocated("tpu:63"),
    lambda: torch.tpu.synchronize(63),
    lambda: torch.nn.Linear(1, 1).to("tpu:63"),
])  # fmt: skip
def test_absent_device_is_named_with_the_remedy(make):
    with pytest.raises(RuntimeError, match=r"tpu:63 does not exist.*xla_force_host_platform_device_count"):
        make()
    assert tpu(1).item() == 1  # nothing is left in a bad state


def test_absent_device_through_the_accelerator():
    with pytest.raises(RuntimeError, match="63"):
        torch.accelerator.set_device_index(63)
    assert torch.tpu.current_device() == 0


def test_wrong_device_kind():
    with pytest.raises(ValueError, match="use 'tpu' or 'tpu:N'"):
        torch.tpu.get_device_name("cpu")


@pytest.mark.parametrize("call", [
    lambda: tpu(2) + torch.ones(2),
    lambda: torch.ones(2) + tpu(2),
    lambda: tpu(2, 2) @ torch.ones(2, 2),
    lambda: torch.cat([tpu(2), torch.ones(2)]),
    lambda: torch.where(tpu(2) > 0, tpu(2), torch.ones(2)),
    lambda: torch.nn.functional.linear(tpu(1, 2), torch.ones(2, 2)),
    lambda: torch.nn.Linear(2, 2)(tpu(1, 2)),
    lambda: tpu(3).gather(0, torch.tensor([0])),
])  # fmt: skip
def test_mixed_devices(call):
    with pytest.raises(RuntimeError, match="(?s)on the same device.*(tpu:0.*cpu|cpu.*tpu:0)"):
        call()


@pytest.mark.parametrize("call,kind,words", [
    (lambda: tpu(2, 3) @ tpu(2, 3), RuntimeError, "shape|size"),
    (lambda: tpu(2) + tpu(3), RuntimeError, "must match"),
    (lambda: tpu(4).view(3), RuntimeError, "invalid for input of size 4"),
    (lambda: tpu(2, 3).t().view(6), RuntimeError, "reshape"),
    (lambda: tpu(2)[2], IndexError, "out of"),
    (lambda: tpu(2).sum(dim=1), IndexError, "Dimension out of range"),
    (lambda: torch.cat([tpu(2, 2), tpu(2, 3)]), RuntimeError, "match"),
    (lambda: tpu(2).softmax(3), IndexError, "Dimension out of range"),
    (lambda: torch.arange(3, device="tpu").mean(), RuntimeError, "dtype"),
    (lambda: tpu(2).long().add_(1.5), RuntimeError, "can't be cast"),
    (lambda: torch.ones(-1, device="tpu"), RuntimeError, "negative dimension"),
    (lambda: torch.add(tpu(2), 1, out=tpu(2).long()), RuntimeError, "can't be cast"),
    (lambda: torch.empty(2, device="tpu", layout=torch.sparse_coo), NotImplementedError, "Sparse"),
    (lambda: torch.full((2,), 1, device="tpu").expand(3), RuntimeError, "must match the existing size"),
    (lambda: tpu(1).backward(), RuntimeError, "does not require grad"),
])  # fmt: skip
def test_types_and_words_are_those_of_pytorch(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


@pytest.mark.parametrize("dtype", [torch.complex32, torch.float8_e4m3fnuz], ids=str)
def test_unsupported_dtype_lists_the_supported_ones(dtype):
    with pytest.raises(TypeError, match="float32.*bool"):
        torch.empty(2, dtype=dtype, device="tpu")


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch.ones(3, dtype=torch.bool, device=d).mul_(2),
        lambda d: torch.ones(3, dtype=torch.int32, device=d).mul_(2.5),
        lambda d: torch.ones(3, dtype=torch.int32, device=d).add_(torch.ones(3, device=d)),
        lambda d: torch.ones(3, dtype=torch.int64, device=d).div_(2),
        lambda d: torch.ones(3, device=d).mul_(1j),
        lambda d: torch.add(
            torch.ones(3, device=d), 1, out=torch.empty(3, dtype=torch.int32, device=d)
        ),
        lambda d: torch.ones(3, dtype=torch.complex64, device=d) > 2,
        lambda d: torch.ones(3, dtype=torch.complex64, device=d).amax(0),
        lambda d: torch.ones(3, dtype=torch.complex64, device=d).sort(),
        lambda d: torch.ones(3, dtype=torch.complex64, device=d).clamp(0, 1),
        lambda d: torch.ones(3, dtype=torch.complex64, device=d).floor(),
    ],
)
def test_dtypes_that_the_cpu_refuses(call):
    with pytest.raises(Exception) as want:
        call("cpu")
    with pytest.raises(want.type) as got:
        call("tpu")
    assert str(got.value).splitlines()[0] == str(want.value).splitlines()[0]


def test_writes_to_expanded_memory():
    """Filling is well defined; writes by mask or index, which the CPU warns about, are refused."""
    for t in (torch.zeros(2, 1), tpu(2, 1)):
        t.expand(2, 3).fill_(3)
        assert t.tolist() == [[3.0], [3.0]]
        t.expand(2, 3).zero_()
        assert t.tolist() == [[0.0], [0.0]]
    t = tpu(2, 1).expand(2, 3)
    for write in (lambda: t.add_(1), lambda: t.masked_fill_(t > 0, 2), lambda: t.copy_(tpu(2, 3)),
                  lambda: t.index_fill_(0, torch.tensor([0], device="tpu"), 2)):  # fmt: skip
        with pytest.raises(RuntimeError, match="single memory location"):
            write()


def test_errors_leave_tensors_usable():
    t = tpu(2)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            t.add_(tpu(3))
    assert t.tolist() == [1.0, 1.0]


def test_dlpack_says_what_to_do_or_works():
    import jax

    t = tpu(2)
    try:
        array = jax.dlpack.from_dlpack(t)
    except (RuntimeError, TypeError, BufferError, ValueError, NotImplementedError) as error:
        assert "cpu" in str(error).lower() or "tpu" in str(error).lower()
    else:
        assert array.tolist() == [1.0, 1.0]
