"""Bugs of related projects that this device must not have."""

import pytest
import torch
from torch import nn

from systolic.compile.executables import statistics


def programs():
    """Programs made so far, compiled or loaded from disk."""
    return statistics.compilations + statistics.cache_hits


def test_split_gives_views():
    a = torch.arange(4, device="tpu")
    b, c = a.split(2)
    a[0] = -1
    assert b.tolist() == [-1, 1]
    c.zero_()
    assert a.tolist() == [-1, 1, 0, 0]


def test_rebinding_data_leaves_old_views_alone():
    x = torch.arange(10, device="tpu")
    y = x.view(2, 5)
    x.data.add_(1)
    assert y.view(-1).tolist() == list(range(1, 11))
    x.data = x.data + 1
    assert y.view(-1).tolist() == list(range(1, 11))
    assert x.tolist() == list(range(2, 12))


def test_scatter_reads_a_transposed_source_in_logical_order():
    source = torch.arange(1.0, 7.0).view(2, 3).t()
    index = torch.zeros(3, 2, dtype=torch.int64)
    for reduce in (None, "add"):
        results = []
        for device in ("cpu", "tpu"):
            target = torch.zeros(1, 2, device=device)
            if reduce:
                results.append(
                    target.scatter_add_(0, index.to(device), source.to(device).t().contiguous().t())
                )
            else:
                results.append(target.scatter_(0, index[:1].to(device), source.to(device)))
        assert torch.equal(results[1].cpu(), results[0])
    device = source.contiguous().tpu().t().contiguous().t()
    assert device.stride() == (1, 3)
    target = torch.zeros(3, 2, device="tpu").scatter_(1, torch.tensor([[0, 1]] * 3, device="tpu"), device)
    assert torch.equal(target.cpu(), source)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.bool], ids=str)
def test_integer_reductions_accumulate_in_int64(dtype):
    t = torch.tensor([100, 100]).to(dtype)
    for reduce in (torch.prod, torch.sum, lambda x: x.cumsum(0), lambda x: x.cumprod(0), lambda x: x.sum(0)):
        got, want = reduce(t.tpu()), reduce(t)
        assert got.dtype == want.dtype == torch.int64
        assert torch.equal(got.cpu(), want)


def test_integer_floor_division_is_exact_and_compiles_once():
    t = torch.tensor([-7, 7, 2**30 + 1], dtype=torch.int32, device="tpu")
    assert (t // 2).tolist() == [-4, 3, 2**29]
    before = programs()
    assert (t // 3).tolist() == [-3, 2, (2**30 + 1) // 3]
    assert (t // -2).tolist() == [3, -4, -(2**29) - 1]
    assert programs() == before
    assert (t // 2).dtype == torch.int32
    assert (t % 3).tolist() == [2, 1, (2**30 + 1) % 3]
    big = torch.tensor([2**62 + 1], device="tpu")
    assert (big // 2).tolist() == [2**61]
    assert torch.div(t, 2, rounding_mode="trunc").tolist() == [-3, 3, 2**29]


def test_other_scalars_do_not_compile_again():
    t = torch.ones(3, device="tpu")
    # Not pow and addmm: a known exponent or factor makes them much cheaper, so it is part of the program.
    for use in (lambda s: t + s, lambda s: t.mul(s), lambda s: t / s, lambda s: t.clamp(min=s),
                lambda s: t.masked_fill(t > 0, s), lambda s: t.clone().fill_(s), lambda s: t > s,
                lambda s: torch.full((3,), s, device="tpu"), lambda s: t.addcmul(t, t, value=s)):  # fmt: skip
        use(1.5)
        before = programs()
        use(2.5), use(-3.25)
        assert programs() == before


def test_bad_class_label_is_found_in_debug_mode():
    logits = torch.randn(3, 4, device="tpu")
    with torch.tpu.debug(), pytest.raises(IndexError, match="Target -1 is out of bounds"):
        nn.functional.cross_entropy(logits, torch.tensor([-1, -1, 3], device="tpu"))


def test_ties_of_topk_and_sort_go_to_the_lowest_index():
    t = torch.tensor([3, 2, 3, 2, 1, 1], device="tpu")
    assert t.topk(2).indices.tolist() == [0, 2]
    assert t.topk(3).indices.tolist() == [0, 2, 1]
    assert t.topk(2, largest=False).indices.tolist() == [4, 5]
    assert t.sort(stable=True).indices.tolist() == [4, 5, 1, 3, 0, 2]
    assert t.argmax().item() == 0 and t.argmin().item() == 4 and t.max(0).indices.item() == 0


def test_dropout_mask_differs_between_runs_of_one_compiled_graph():
    run = torch.compile(lambda x: nn.functional.dropout(x, 0.5), backend="tpu")
    x = torch.ones(256, device="tpu")
    torch.manual_seed(0)
    first, second = run(x).cpu(), run(x).cpu()
    before = programs()
    assert not torch.equal(first, second)
    torch.manual_seed(0)
    assert torch.equal(run(x).cpu(), first) and torch.equal(run(x).cpu(), second)
    torch.manual_seed(1)
    assert not torch.equal(run(x).cpu(), first)
    assert programs() == before


@pytest.mark.parametrize("scan", [torch.cummax, torch.cummin], ids=["cummax", "cummin"])
def test_scans_of_nothing(scan):
    values, indices = scan(torch.rand(0, device="tpu"), -1)
    assert values.shape == indices.shape == (0,) and indices.dtype == torch.int64
    assert torch.rand(0, device="tpu").cumsum(0).shape == (0,)


def test_indexing_by_an_arange_and_a_tensor_compiles():
    @torch.compile(backend="tpu", fullgraph=True)
    def pick(m, p):
        return m[torch.arange(m.shape[0], device=m.device), p]

    m, p = torch.arange(4.0).view(2, 2), torch.tensor([1, 0])
    assert pick(m.tpu(), p.tpu()).tolist() == m[torch.arange(2), p].tolist()


def test_round_is_half_to_even():
    t = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5])
    assert t.tpu().round().tolist() == [0.0, 2.0, 2.0, -0.0, -2.0]
    assert torch.equal((t.tpu() / 10).round(decimals=1).cpu(), (t / 10).round(decimals=1))


def test_integer_division_by_zero_raises_in_debug_mode():
    t = torch.tensor([4, -4], device="tpu")
    with torch.tpu.debug(), pytest.raises(RuntimeError, match="ZeroDivisionError"):
        t // 0
    assert (t.float() / 0).tolist() == [float("inf"), float("-inf")]


def test_floats_out_of_range_of_an_integer_saturate():
    """PyTorch promises nothing here; the device's rule is: the nearest value of the dtype, and 0 for NaN."""
    t = torch.tensor([300.0, -300.0, float("inf"), float("nan")], device="tpu")
    assert t.to(torch.int8).tolist() == [127, -128, 127, 0]
    assert t.to(torch.uint8).tolist() == [255, 0, 255, 0]
    assert torch.tensor([1e20], device="tpu").long().tolist() == [2**63 - 1]
