"""Operators that no program can hold run by themselves; what is around them stays in programs."""

import pytest
import torch
from graph_checks import check, graphs
from torch.nn import functional as F

from systolic.compile.executables import recording


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


@torch.library.custom_op("test_cuts::outside", mutates_args=())
def outside(x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    return x * n, x.sum(0)


outside.register_fake(lambda x, n: (torch.empty_like(x), x.new_empty(x.shape[1:])))
outside.register_autograd(
    lambda ctx, a, b: (a * ctx.n + b.expand_as(a), None),
    setup_context=lambda ctx, inputs, output: setattr(ctx, "n", inputs[1]),
)


def around(x, w):
    y = ((x @ w).sin() + 1).cos()
    values, indices = y.sort(0)
    z, total = outside(y * 2, x.shape[0])
    return (z + total).tanh().exp() @ w + values, indices


def graph_programs(programs) -> list[str]:
    return [program.name for program in programs if program.name.startswith("graph")]


def test_what_is_around_is_one_program_each_with_gradients():
    with recording() as programs, pytest.warns(UserWarning, match="at test_cuts.outside.default"):
        x, w = (torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 3))
        check(around, x, w, whole=False)
    assert len(graph_programs(programs)) == 3  # before, after, and backward, which is made of ordinary operators


def test_dynamic_sizes_and_writes_pass_the_cut():
    def f(x, w, state):
        state.add_(x.sum(0))
        return around(x, w)[0] + state

    compiled, before = torch.compile(f, backend="tpu", fullgraph=True, dynamic=True), graphs()
    w = torch.randn(3, 3)
    with pytest.warns(UserWarning, match="cut into several programs"):
        for n in (4, 6, 5):
            host, x = torch.zeros(3), torch.randn(n, 3)
            state = host.tpu()
            got, want = compiled(x.tpu(), w.tpu(), state), f(x, w, host)
            torch.testing.assert_close(got.cpu(), want)
            torch.testing.assert_close(state.cpu(), host)
    assert graphs() == before + 1


def test_sizes_that_only_the_data_tells():
    def f(x):
        kept = x[x > 0]
        rows = torch.nonzero(x)
        return F.softmax(kept * 2, 0).cumsum(0), rows.sum(0) + rows.shape[0], kept.mean().exp()

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True):
        compiled, before = torch.compile(f, backend="tpu", fullgraph=True), graphs()
        with recording() as programs, pytest.warns(UserWarning, match="cut into several programs"):
            for x in ([1.0, -2.0, 3.0, 4.0], [1.0, 2.0, -3.0, 0.0], [5.0, 2.0, 0.0, -1.0]):
                for a, b in zip(compiled(torch.tensor(x).tpu()), f(torch.tensor(x))):
                    torch.testing.assert_close(a.cpu(), b)
    assert graphs() == before + 1 and graph_programs(programs)


def test_a_condition_on_the_data_is_checked():
    def f(x, n):
        count = n.item()
        torch._check(count > 2)
        return x.sin() * count

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(f, backend="tpu", fullgraph=True)
        x = torch.ones(3)
        with pytest.warns(UserWarning, match="cut into several programs"):
            torch.testing.assert_close(compiled(x.tpu(), torch.tensor(4).tpu()).cpu(), x.sin() * 4)
        with pytest.raises(RuntimeError, match="Runtime assertion failed"):
            compiled(x.tpu(), torch.tensor(1).tpu())


def test_random_numbers_on_both_sides_follow_the_generator():
    compiled = torch.compile(lambda x: F.dropout(outside(F.dropout(x, 0.5), 2)[0], 0.5), backend="tpu")
    x = torch.ones(8, 16).tpu()
    with pytest.warns(UserWarning, match="cut into several programs"):
        torch.manual_seed(2)
        first, second = compiled(x).cpu(), compiled(x).cpu()
    torch.manual_seed(2)
    assert torch.equal(compiled(x).cpu(), first) and not torch.equal(first, second)
