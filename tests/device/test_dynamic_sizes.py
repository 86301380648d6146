"""Operators whose result size depends on the data equal the CPU's, and seldom compile for a new size."""

import pytest
import torch

MASK = torch.tensor([[True, False, True, True], [False, False, True, False], [True, True, False, True]])
VALUES = torch.arange(12.0).view(3, 4)
CUBE = torch.arange(24.0).view(2, 3, 4)
NUMBERS = torch.tensor([3, 1, 3, 0, 1, 1])
ROWS = torch.tensor([[1, 0, 1], [0, 1, 1], [1, 0, 1], [0, 0, 0], [0, 1, 1]])
COLUMN = torch.tensor([True, False, True, True])

CASES = {
    "nonzero": (lambda m: m.nonzero(), MASK),
    "nonzero tuple": (lambda m: m.nonzero(as_tuple=True), MASK),
    "nonzero of a number": (lambda t: t.nonzero(), torch.tensor(3)),
    "nonzero of zero": (lambda t: t.nonzero(), torch.tensor(0)),
    "nonzero of nothing": (lambda t: t.nonzero(), torch.empty(0, 2)),
    "nonzero without any": (lambda t: t.nonzero(), torch.zeros(3)),
    "nonzero transposed": (lambda m: m.t().nonzero(), MASK),
    "where": (lambda m: torch.where(m), MASK),
    "argwhere": (torch.argwhere, MASK),
    "masked_select": (torch.masked_select, VALUES, MASK),
    "masked_select broadcast": (torch.masked_select, VALUES, COLUMN),
    "masked_select none": (torch.masked_select, VALUES, MASK & ~MASK),
    "masked_select out": (lambda x, m: torch.masked_select(x, m, out=x.new_empty(0)), VALUES, MASK),
    "mask": (lambda x, m: x[m], VALUES, MASK),
    "mask of rows": (lambda x, m: x[m.any(1) & (x[:, 0] > 0)], VALUES, MASK),
    "mask of columns": (lambda x, m: x[:, m], VALUES, COLUMN),
    "mask behind ellipsis": (lambda x, m: x[..., m], CUBE, COLUMN),
    "mask of two dimensions": (lambda x, m: x[:, m], CUBE, MASK),
    "mask and index": (lambda x, m, i: x[m, i], VALUES, MASK[:, 2], torch.tensor([1, 3])),
    "mask and index behind": (lambda x, m, i: x[:, m, i], CUBE, MASK[:, 2], torch.tensor([1, 3])),
    "two masks": (lambda x, m, n: x[m, n], VALUES, MASK[:, 0], torch.tensor([False, True, True, False])),
    "true": (lambda x: x[True], VALUES),
    "false": (lambda x: x[False], VALUES),
    "unique": (lambda t: torch.unique(t, return_inverse=True, return_counts=True), NUMBERS),
    "unique of floats": (lambda t: torch.unique(t, return_inverse=True, return_counts=True), ROWS / 2),
    "unique of bools": (lambda t: torch.unique(t, return_counts=True), MASK),
    "unique of nothing": (lambda t: torch.unique(t, return_inverse=True, return_counts=True), torch.empty(0)),
    "unique of NaN": (lambda t: torch.unique(t).isnan(), torch.tensor([1.0, float("nan"), float("nan")])),
    "unique rows": (lambda t: torch.unique(t, dim=0, return_inverse=True, return_counts=True), ROWS),
    "unique columns": (lambda t: torch.unique(t, dim=1, return_inverse=True, return_counts=True), ROWS),
    "unique_consecutive": (lambda t: torch.unique_consecutive(t, True, True), NUMBERS),
    "unique_consecutive rows": (lambda t: torch.unique_consecutive(t, True, True, dim=0), ROWS),
    "bincount": (torch.bincount, NUMBERS),
    "bincount weights": (torch.bincount, NUMBERS, torch.arange(6) / 4),
    "bincount minlength": (lambda t: torch.bincount(t, minlength=9), NUMBERS),
    "bincount of nothing": (torch.bincount, torch.empty(0, dtype=torch.int64)),
    "repeat_interleave": (torch.repeat_interleave, NUMBERS),
    "repeat_interleave rows": (
        lambda x, r: torch.repeat_interleave(x, r, dim=0),
        VALUES,
        torch.tensor([2, 0, 1]),
    ),
    "equal": (torch.equal, VALUES, VALUES),
    "equal not": (torch.equal, VALUES, VALUES + 1),
    "equal shape": (torch.equal, VALUES, VALUES[0]),
    "equal NaN": (torch.equal, VALUES / 0 * 0, VALUES / 0 * 0),
    "allclose": (torch.allclose, VALUES, VALUES * (1 + 1e-7)),
}


@pytest.mark.parametrize("name", CASES)
def test_equals_the_cpu(name):
    function, *inputs = CASES[name]
    wanted, given = function(*inputs), function(*(t.tpu() for t in inputs))
    if not isinstance(wanted, tuple):
        wanted, given = (wanted,), (given,)
    assert len(wanted) == len(given)
    for want, got in zip(wanted, given):
        if isinstance(want, bool):
            assert type(got) is bool and got == want
        else:
            assert got.device.type == "tpu" and got.dtype == want.dtype and got.shape == want.shape
            assert torch.equal(got.cpu(), want)


WRITES = {
    "number": lambda x, m, c: x.__setitem__(m, 5.0),
    "vector": lambda x, m, c: x.__setitem__(m, torch.arange(7.0, device=x.device)),
    "rows": lambda x, m, c: x.__setitem__(m[:, 0], torch.ones(2, 4, device=x.device)),
    "columns": lambda x, m, c: x.__setitem__((slice(None), c), torch.arange(9.0, device=x.device).view(3, 3)),
    "columns of one row": lambda x, m, c: x.__setitem__((slice(None), c), torch.arange(3.0, device=x.device)),
    "with an index": lambda x, m, c: x.__setitem__((m[:, 2], torch.tensor([1, 3], device=x.device)), -1.0),
    "accumulate": lambda x, m, c: x.index_put_((m,), torch.ones(7, device=x.device), accumulate=True),
    "nothing": lambda x, m, c: x.__setitem__(m & ~m, x[m & ~m]),
    "nothing, rows": lambda x, m, c: x.__setitem__((m & ~m)[:, 0], x.new_empty(0, 4)),
    "nothing, accumulate": lambda x, m, c: x.index_put_((m & ~m,), x[m & ~m] + 1, accumulate=True),
    "into a view": lambda x, m, c: x[:, 1:].__setitem__(m[:, 1:], 0.5),
}


@pytest.mark.parametrize("name", WRITES)
def test_writing_by_mask_equals_the_cpu(name):
    host, device = VALUES.clone(), VALUES.tpu()
    WRITES[name](host, MASK, COLUMN)
    WRITES[name](device, MASK.tpu(), COLUMN.tpu())
    assert torch.equal(device.cpu(), host)


@pytest.mark.parametrize("read", [lambda x, m, c: x[m].pow(2).sum(), lambda x, m, c: x[:, c].pow(2).sum(),
                                  lambda x, m, c: x.masked_select(m).pow(2).sum()])  # fmt: skip
def test_gradients_through_masks(read):
    host, device = VALUES.clone().requires_grad_(), VALUES.tpu().requires_grad_()
    read(host, MASK, COLUMN).backward()
    read(device, MASK.tpu(), COLUMN.tpu()).backward()
    assert torch.equal(device.grad.cpu(), host.grad)


def test_errors_are_those_of_the_cpu():
    device = VALUES.tpu()
    with pytest.raises(IndexError, match="shape of the mask"):
        device[torch.ones(4, dtype=torch.bool, device="tpu")]
    with pytest.raises(IndexError, match="too many indices"):
        device[COLUMN[:3].tpu(), COLUMN.tpu(), COLUMN.tpu()]
    with pytest.raises(RuntimeError, match="shape mismatch"):
        device[MASK.tpu()] = torch.zeros(3, device="tpu")
    with pytest.raises(RuntimeError, match="BoolTensor"):
        torch.masked_select(device, device)
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.bincount(-NUMBERS.tpu())
    with pytest.raises(RuntimeError, match="can not be negative"):
        torch.repeat_interleave(-NUMBERS.tpu())
    with pytest.raises(RuntimeError, match="0 sized dimensions"):
        torch.unique(torch.empty(2, 0, device="tpu"), dim=0)


def test_a_new_size_in_the_same_power_of_two_compiles_nothing():
    t = torch.arange(64, device="tpu")
    bound = torch.tensor(40, device="tpu")

    def use(n):
        bound.fill_(n)
        return t[t < bound].shape[0], (t < bound).nonzero().shape[0]

    assert use(40) == (40, 40)
    before = torch.tpu.compilations()
    assert use(33) == (33, 33) and use(64) == (64, 64)
    assert torch.tpu.compilations() == before


@pytest.mark.parametrize("compiled", [False, True])
def test_assertions_on_values(compiled):
    def check(x):
        torch._assert_async((x > 0).all(), "every element must be positive")
        return x + 1

    function = torch.compile(check, backend="tpu") if compiled else check
    before = torch.tpu.fallbacks()
    assert torch.equal(function(torch.ones(3).tpu()).cpu(), torch.full((3,), 2.0))
    with pytest.raises(RuntimeError, match="every element must be positive"):
        function(torch.zeros(3).tpu())
    assert torch.tpu.fallbacks() == before
    with pytest.raises(RuntimeError, match="single nonzero value"):
        torch._assert_async(torch.tensor(0).tpu())
