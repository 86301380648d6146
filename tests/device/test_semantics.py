"""Rules of PyTorch that a device can get wrong without anyone noticing: exact integers, order, nothing, overlap."""

import pytest
import torch

BIG = 2**53 + 1  # no float64


def both(call):
    """The call's result on the CPU and on tpu, as CPU tensors."""
    return call("cpu").cpu(), call("tpu").cpu()


INTEGERS = {
    "add": lambda t: t * 3 + 1,
    "sum": lambda t: t.sum(),
    "cumulative": lambda t: t.cumsum(0) - t.flip(0).cumsum(0),
    "product": lambda t: t.prod(),
    "floor division": lambda t: t // 7,
    "remainder": lambda t: t % -7,
    "comparison": lambda t: t > BIG - 1,
    "maximum": lambda t: t.max(),
    "sort": lambda t: t.sort().values,
    "unique": lambda t: t.unique(),
    "matmul": lambda t: t.view(1, -1) @ t.view(-1, 1).fmod(5),
    "bits": lambda t: (t << 3) ^ 5 | t >> 2,
    "power": lambda t: t.fmod(5) ** 25,
    "scalar": lambda t: t + BIG * 4,
    "index": lambda t: torch.zeros_like(t).index_add_(0, torch.zeros_like(t), t),
    "true division": lambda t: t / 3,
    "to float": lambda t: t.float(),
    "equal": lambda t: t.eq(BIG) | t.ne(2**33),
    "where": lambda t: torch.where(t > 2**40, t, BIG),
    "arange": lambda t: torch.arange(BIG, BIG + 5, 2, device=t.device),
    "full": lambda t: torch.full((2,), 2**62 + 1, device=t.device),
    "randint": lambda t: torch.randint(BIG, BIG + 1, (3,), device=t.device),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_beyond_32_and_53_bits(name):
    values = [2**33, 2**40 + 3, BIG, BIG - 1, -BIG, 5]
    want, got = both(lambda d: INTEGERS[name](torch.tensor(values, device=d)))
    assert got.dtype == want.dtype
    # Integers exactly; XLA divides by a scalar with an error of one unit in the last place of float32.
    torch.testing.assert_close(got, want, rtol=2**-23 if got.is_floating_point() else 0, atol=0)


def test_stable_sort_keeps_the_order_of_ties():
    ties = torch.tensor([2.0, 1, float("nan"), 2, 1, float("nan"), 0.0, -0.0, 0.0] * 9)
    for descending in (False, True):
        want = ties.sort(stable=True, descending=descending)
        got = ties.tpu().sort(stable=True, descending=descending)
        assert torch.equal(got.indices.cpu(), want.indices)
        assert torch.equal(ties.tpu().argsort(stable=True, descending=descending).cpu(), want.indices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16, torch.bool], ids=str)
def test_topk_takes_the_lowest_index_of_ties(dtype):
    t = torch.tensor([[1, 1, 0, 1, 0, 1], [0, 0, 0, 0, 0, 0]]).to(dtype)
    assert t.tpu().topk(3).indices.tolist() == [[0, 1, 3], [0, 1, 2]]
    assert t.tpu().topk(3, largest=False).indices.tolist() == [[2, 4, 0], [0, 1, 2]]
    assert t.tpu().topk(0).indices.shape == (2, 0)


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize(
    "write",
    [
        lambda t, i, v: t.scatter_add_(0, i, v),
        lambda t, i, v: t.scatter_reduce_(0, i, v, "prod"),
        lambda t, i, v: t.scatter_reduce_(0, i, v, "mean", include_self=False),
        lambda t, i, v: t.scatter_reduce_(0, i, v, "amin"),
        lambda t, i, v: t.index_add_(0, i, v, alpha=2),
        lambda t, i, v: t.index_reduce_(0, i, v, "amax"),
        lambda t, i, v: t.index_put_((i,), v, accumulate=True),
    ],
)
def test_duplicate_indices_accumulate(write):
    def call(device):
        index = torch.tensor([1, 1, 0, 1, 1], device=device)
        return write(torch.ones(3, device=device), index, torch.arange(1.0, 6, device=device))

    want, got = both(call)
    assert torch.equal(got, want)


def test_duplicate_indices_keep_the_last_value():
    """PyTorch leaves it open; the device's rule is the CPU's."""
    index, values = torch.tensor([1, 0, 1, 1], device="tpu"), torch.arange(4.0, device="tpu")
    for write in (lambda t: t.scatter_(0, index, values), lambda t: t.index_put_((index,), values),
                  lambda t: t.index_copy_(0, index, values)):  # fmt: skip
        assert write(torch.zeros(3, device="tpu")).tolist() == [1.0, 3.0, 0.0]


REDUCTIONS = ["sum", "prod", "mean", "amax", "max", "argmax", "std", "all", "any", "median", "mode", "kthvalue",
              "nansum", "norm", "cumsum", "cummax", "aminmax", "logsumexp", "sort", "topk", "count_nonzero"]  # fmt: skip


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_of_nothing(name, dim):
    def call(device):
        t = torch.empty(0, 3, device=device)
        if name == "aminmax":
            return t.aminmax() if dim is None else t.aminmax(dim=dim)
        first = [0] if name == "topk" else [1] if name == "kthvalue" else []
        return getattr(t, name)(*first) if dim is None else getattr(t, name)(*first, dim)

    try:
        want = call("cpu")
    except (RuntimeError, IndexError, TypeError) as error:
        with pytest.raises(type(error)) as raised:
            call("tpu")
        assert str(raised.value).splitlines()[0] == str(error).splitlines()[0]
        return
    got = call("tpu")
    pairs = [(want, got)] if isinstance(want, torch.Tensor) else list(zip(want, got))
    for expected, result in pairs:
        assert result.dtype == expected.dtype
        assert torch.equal(result.cpu().nan_to_num(77.0), expected.nan_to_num(77.0))


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x[1:].copy_(x[:-1]),
        lambda x: x[1:].add_(x[:-1]),
        lambda x: x[:-1].mul_(x[1:]),
        lambda x: torch.add(x[:-1], 1, out=x[1:]),
        lambda x: x[2:6].index_copy_(0, torch.arange(4, device=x.device), x[3:7]),
        lambda x: x[1:].scatter_(0, torch.arange(9, device=x.device), x[:-1]),
        lambda x: x.__setitem__(slice(1, None), x[:-1]),
    ],
)
def test_memory_that_overlaps_in_part_is_refused(write):
    for device in ("cpu", "tpu"):
        x = torch.arange(10.0, device=device)
        with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor refer"):
            write(x)
        assert x.tolist() == list(range(10))


def test_memory_that_is_the_same_or_separate_is_written():
    for device in ("cpu", "tpu"):
        x = torch.arange(10.0, device=device)
        x.add_(x)
        x[:5].add_(x[5:])
        x[::2].sub_(x[1::2])
        x[2:4].copy_(x[2:4])
        assert x.tolist() == [-4.0, 14.0, -4.0, 22.0, 16.0, 10.0, -2.0, 14.0, -2.0, 18.0]


def test_deterministic_mode():
    torch.use_deterministic_algorithms(True)
    try:
        x = torch.zeros(3, device="tpu")
        index = torch.tensor([1, 1, 1], device="tpu")
        x.index_add_(0, index, torch.tensor([1.0, 2, 3], device="tpu"))
        x.index_put_((torch.tensor([2, 2], device="tpu"),), torch.tensor([3.0, 4], device="tpu"))
        x.scatter_add_(0, torch.tensor([0, 0], device="tpu"), torch.tensor([1.0, 2], device="tpu"))
        assert x.tolist() == [3.0, 6.0, 4.0]
        assert x.cumsum(0).tolist() == [3.0, 9.0, 13.0] and x.kthvalue(2).values.item() == 4.0
        # Memory that was never written reads as zeros on this device, in every mode.
        assert torch.empty(2, device="tpu").tolist() == [0.0, 0.0]
        runs = [torch.randn(64, 64, generator=torch.Generator("tpu").manual_seed(1), device="tpu").sum().item()
                for _ in range(3)]  # fmt: skip
        assert len(set(runs)) == 1
    finally:
        torch.use_deterministic_algorithms(False)
