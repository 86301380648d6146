"""`torch.tpu.debug()` finds what XLA would silently clamp, drop or make up."""

import pytest
import torch
from torch import nn

X = torch.arange(6.0).view(3, 2)


def at(*values):
    return torch.tensor(values, device="tpu")


BAD_INDICES = {
    "index": lambda x: x[at(0, 3)],
    "negative": lambda x: x[at(-4)],
    "second dimension": lambda x: x[:, at(2)],
    "write": lambda x: x.index_put_((at(5),), torch.zeros((), device="tpu")),
    "index_select": lambda x: x.index_select(1, at(2)),
    "gather": lambda x: x.gather(0, at(0, 3).view(1, 2)),
    "scatter": lambda x: x.scatter_(1, at(0, 2).view(1, 2), 1.0),
    "index_add": lambda x: x.index_add(0, at(7), x[:1]),
    "take": lambda x: x.take(at(6)),
    "embedding": lambda x: nn.functional.embedding(at(3), x),
    "negative embedding": lambda x: nn.functional.embedding(at(-1), x),
    "label": lambda x: nn.functional.cross_entropy(x, at(-1, -1, 1)),
    "large label": lambda x: nn.functional.nll_loss(x, at(0, 0, 2)),
}


@pytest.mark.parametrize("name", BAD_INDICES)
def test_index_out_of_bounds(name):
    with torch.tpu.debug(), pytest.raises(IndexError, match="out of (bounds|range)"):
        BAD_INDICES[name](X.tpu())


@pytest.mark.parametrize("divide", [lambda a, b: a // b, lambda a, b: a % b, lambda a, b: torch.fmod(a, b),
                                    lambda a, b: torch.div(a, b, rounding_mode="trunc")])  # fmt: skip
def test_integer_division_by_zero(divide):
    a = at(4, 5)
    with torch.tpu.debug():
        for zero in (0, at(1, 0)):
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                divide(a, zero)
        assert torch.equal(divide(a, at(2, -2)).cpu(), divide(a.cpu(), torch.tensor([2, -2])))
        assert divide(a.float(), 0.0).shape == (2,)


def test_good_values_pass_and_results_are_the_same():
    x, index = X.tpu(), at(2, -3)
    labels = at(0, -100, 1)
    plain = (x[index], nn.functional.cross_entropy(x, labels), x / 0, x[x > 2])
    with torch.tpu.debug():
        checked = (x[index], nn.functional.cross_entropy(x, labels), x / 0, x[x > 2])
    for a, b in zip(plain, checked):
        torch.testing.assert_close(a, b, equal_nan=True)


def test_without_it_reads_clamp_and_writes_drop():
    x = X.tpu()
    assert x[at(9)].tolist() == [[4.0, 5.0]]
    assert torch.equal(x.index_fill(0, at(9), 7.0).cpu(), X)
