"""Sizes under torch.compile: one trace serves all, one program a size, guards where PyTorch documents them."""

import pytest
import torch
from graph_checks import check, graphs, programs
from torch import nn


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def expressions(x):
    n, m = x.shape
    return (
        x.repeat(2, 1),
        x[: n // 2],
        torch.arange(n * 3 - 1, device=x.device),
        x.new_zeros(n + 1, m % 3 + 1),
        x.view(-1).cumsum(0),
        x.transpose(0, 1).reshape(m * n)[1:],
        torch.cat([x, x[:1]]).unfold(0, 2, 1),
        (n, n * m, float(n) / 2),
    )


def test_symbolic_expressions_in_results_one_trace_and_one_program_a_size():
    compiled, before = torch.compile(expressions, backend="tpu", fullgraph=True, dynamic=True), graphs()
    inputs = [torch.randn(n, 5) for n in (4, 7, 6, 9)]  # n // 2 stays above 1
    for x in inputs:
        check(expressions, x, compiled=compiled)
    assert graphs() == before + 1
    devices, known = [x.tpu() for x in inputs], programs()
    for x in devices:
        compiled(x)
    assert programs() == known  # sizes seen before
    x = torch.randn(11, 5).tpu()
    known = programs()
    compiled(x)
    assert programs() == known + 1 and graphs() == before + 1


def test_sizes_zero_and_one_have_graphs_of_their_own():
    """PyTorch's rule: 0 and 1 are never symbolic."""
    f = lambda x: (x * 2 + x.shape[0], x.sum(), x.sum(1))  # noqa: E731
    compiled, before = torch.compile(f, backend="tpu", fullgraph=True, dynamic=True), graphs()
    for n in (4, 0, 1, 3, 0, 1):
        check(f, torch.randn(n, 3), compiled=compiled)
    assert graphs() == before + 3


def test_dynamic_false_traces_every_size():
    f = lambda x: x.sin() + x.shape[0]  # noqa: E731
    compiled, before = torch.compile(f, backend="tpu", dynamic=False), graphs()
    for n in (3, 4, 5, 4):
        check(f, torch.randn(n), compiled=compiled)
    assert graphs() == before + 3


def test_automatic_dynamic_is_the_default():
    f = lambda x, y: x @ y  # noqa: E731
    compiled, before = torch.compile(f, backend="tpu"), graphs()
    for n in (3, 4, 6, 9):
        check(f, torch.randn(n, 2), torch.randn(2, 5), compiled=compiled)
    assert graphs() == before + 2
    check(f, torch.randn(4, 7), torch.randn(7, 5), compiled=compiled)
    assert graphs() == before + 3


def test_mark_dynamic_and_its_limits():
    f = lambda x: x.relu().sum(1)  # noqa: E731
    compiled, before = torch.compile(f, backend="tpu"), graphs()
    for n in (8, 3, 5):
        x = torch.randn(n, 4).tpu()
        torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
        torch.testing.assert_close(compiled(x).cpu(), f(x.cpu()))
    assert graphs() == before + 1
    torch._dynamo.reset()
    x = torch.randn(8, 4).tpu()
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(Exception, match="mark_dynamic|specializ|Constraints violated"):
        torch.compile(lambda x: x if x.shape[0] == 8 else x + 1, backend="tpu")(x)


def test_mark_static_and_maybe_mark_dynamic():
    f = lambda x: x * x.shape[1]  # noqa: E731
    compiled, before = torch.compile(f, backend="tpu", dynamic=True), graphs()
    for n, m in ((3, 4), (5, 4), (5, 6)):
        x = torch.randn(n, m).tpu()
        torch._dynamo.mark_static(x, 1)
        torch.testing.assert_close(compiled(x).cpu(), x.cpu() * m)
    assert graphs() == before + 2  # the static dimension changed once
    torch._dynamo.reset()
    compiled, before = torch.compile(f, backend="tpu"), graphs()
    for n in (3, 7):
        x = torch.randn(n, 2).tpu()
        torch._dynamo.maybe_mark_dynamic(x, 0)
        compiled(x)
    assert graphs() == before + 1


def test_guards_of_branches_on_sizes():
    f = lambda x: x + 1 if x.shape[0] > 6 else x - 1  # noqa: E731
    compiled, before = torch.compile(f, backend="tpu", dynamic=True), graphs()
    for n in (3, 9, 5, 12, 6, 7):
        check(f, torch.randn(n), compiled=compiled)
    assert graphs() == before + 2


def test_equal_sizes_share_a_symbol_and_part_when_they_differ():
    f = lambda x, y: torch.cat([x, y]) * (x.shape[0] + y.shape[0])  # noqa: E731
    compiled, before = torch.compile(f, backend="tpu", dynamic=True), graphs()
    for n, m in ((4, 4), (6, 6), (6, 3), (2, 9)):
        check(f, torch.randn(n), torch.randn(m), compiled=compiled)
    assert graphs() == before + 2


def test_training_with_dynamic_sizes_is_traced_once():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    f = lambda x, *p: torch.func.functional_call(model, dict(zip(names, p)), (x,)).mean()  # noqa: E731
    names = [n for n, _ in model.named_parameters()]
    compiled, before = torch.compile(f, backend="tpu", fullgraph=True, dynamic=True), graphs()
    for n in (5, 3, 8):
        parameters = [p.detach().clone().requires_grad_() for p in model.parameters()]
        check(f, torch.randn(n, 3), *parameters, compiled=compiled)
    assert graphs() == before + 1
