"""torch.cond, loops and scans inside compiled graphs are one program, with gradients and random numbers."""

import pytest
import torch
from graph_checks import check, graphs, leaf, programs
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.foreach_map import foreach_map
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional as F

from systolic.compile.identity import digest


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def test_cond_takes_the_branch_of_its_predicate_without_another_program():
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    compiled = check(f, torch.ones(3))
    x = -torch.ones(3).tpu()
    before = programs(), graphs()
    torch.testing.assert_close(compiled(x).cpu(), torch.cos(torch.ones(3)))
    assert (programs(), graphs()) == before


def test_cond_has_gradients_and_nests():
    def f(x, w):
        inner = lambda x: torch.cond(x.sum() > 10, lambda x: x @ w, lambda x: (x - 1) @ w, (x,))  # noqa: E731
        return torch.cond(x.sum() > 0, inner, lambda x: x.exp() @ w, (x,))

    w = leaf(3, 2)
    compiled = check(f, leaf(4, 3), w)
    for value in (5.0, -1.0):
        check(f, torch.full((4, 3), value).requires_grad_(), w, compiled=compiled)


def test_cond_on_a_size_is_decided_by_each_size():
    def f(x):
        return torch.cond(x.shape[0] > 3, lambda x: x + 1, lambda x: x - 1, (x,))

    compiled = torch.compile(f, backend="tpu", dynamic=True)
    for n in (2, 5, 7):
        assert compiled(torch.zeros(n).tpu()).tolist() == [1.0 if n > 3 else -1.0] * n


def test_while_loop_with_a_closure_and_dynamic_sizes():
    def f(x, w):
        return while_loop(
            lambda i, x: (i < x.shape[0]) & (x.sum() < 1e6),
            lambda i, x: (i + 1, x @ w + x.shape[0]),
            (torch.zeros((), dtype=torch.int64, device=x.device), x),
        )

    compiled, before = torch.compile(f, backend="tpu", fullgraph=True, dynamic=True), graphs()
    for n in (3, 5, 7):
        check(f, torch.ones(n, 4), torch.eye(4), compiled=compiled)
    assert graphs() == before + 1


def test_while_loop_with_a_python_counter_gives_its_value():
    def f(x):
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, x * 2 + i), (0, x))

    with pytest.warns(UserWarning, match="is cut into several programs at while_loop"):  # the count is a number that only data tells
        check(f, torch.ones(3), whole=False)


def test_scan_carries_stacks_and_differentiates():
    def f(start, xs, w):
        return scan(lambda c, x: ((c @ w + x).tanh(), c * x), start, xs, dim=1, reverse=True)

    check(f, leaf(2, 3), leaf(2, 5, 3), leaf(3, 3), rtol=1e-4, atol=1e-5)  # sums in another order


def test_scan_takes_trees_and_dynamic_lengths():
    def f(start, xs):
        return scan(lambda c, x: ({"a": c["a"] + x[0]}, x[1] * c["a"]), start, xs, dim=0)

    compiled, before = torch.compile(f, backend="tpu", fullgraph=True, dynamic=True), graphs()
    for n in (5, 3, 8):
        check(f, {"a": torch.zeros(3)}, (torch.randn(n, 3), torch.randn(n, 3)), compiled=compiled)
    assert graphs() == before + 1


def test_the_time_to_trace_a_scan_does_not_grow_with_its_length():
    from systolic.compile.executables import recording

    sizes = []
    for n in (4, 64):
        with recording() as built:
            torch.compile(lambda c, xs: scan(lambda c, x: (c + x.sin(), c * x), c, xs), backend="tpu")(
                torch.zeros(3).tpu(), torch.ones(n, 3).tpu()
            )
        sizes.append(max(program.size for program in built))
    assert sizes[1] < 1.2 * sizes[0]  # an unrolled loop would be many times larger


def test_cond_in_a_scan_and_map_and_associative_scan():
    def pick(c, x):
        return torch.cond(x.sum() > 0, lambda c: c + 1, lambda c: c * 2, (c,)), x * c

    check(lambda c, xs: scan(pick, c, xs), torch.ones(3), torch.randn(5, 3))
    check(lambda xs, y: map_over(lambda x, y: x.sin() * y, xs, y), leaf(4, 3), leaf(3))
    linear = lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1])  # noqa: E731
    check(lambda a, b: associative_scan(linear, (a, b), 0, combine_mode="generic"), leaf(6, 3), leaf(6, 3))
    check(lambda xs: foreach_map(lambda a: a * 2 + 1, xs), [torch.randn(2), torch.randn(3)])


def test_regions_that_are_compiled_once():
    @torch.compiler.nested_compile_region
    def layer(x, w):
        return (x @ w).sin() + x

    def f(x, ws):
        for w in ws:
            x = layer(x, w)
        return x

    check(f, leaf(2, 3), [leaf(3, 3) for _ in range(5)], rtol=1e-4, atol=1e-5)  # sums in another order


@pytest.mark.parametrize("kind", ["cond", "while", "scan", "map"])
def test_random_numbers_inside_follow_the_generator_and_differ_by_step(kind):
    def f(x):
        if kind == "cond":
            return torch.cond(x.sum() > 0, lambda x: F.dropout(x, 0.5), lambda x: x * 2, (x,))
        if kind == "while":
            count = torch.zeros((), dtype=torch.int64, device=x.device)
            step = lambda i, a, b: (i + 1, b.clone(), torch.rand_like(a))  # noqa: E731
            return torch.stack(while_loop(lambda i, a, b: i < 4, step, (count, x, x * 2))[1:])
        if kind == "scan":
            return scan(lambda c, x: (c + 1, F.dropout(x, 0.5)), x[0], x)[1]
        return map_over(lambda x: torch.rand_like(x), x)

    compiled = torch.compile(f, backend="tpu", fullgraph=True)
    x = torch.ones(8, 16).tpu()
    torch.manual_seed(1)
    first = compiled(x).cpu()
    before = programs()
    second = compiled(x).cpu()
    torch.manual_seed(1)
    assert torch.equal(compiled(x).cpu(), first) and not torch.equal(first, second) and programs() == before
    assert kind == "cond" or not torch.equal(first[0], first[1])


def test_a_loop_without_bound_on_what_it_keeps_runs_by_itself():
    def f(x):
        count = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * x.sin()), (count, x))[1]

    x = torch.ones(3, requires_grad=True)
    device = x.detach().tpu().requires_grad_()
    with pytest.warns(UserWarning, match="is cut into several programs at (aten._local_scalar_dense|while_loop_stack_output)"):
        torch.compile(f, backend="tpu", fullgraph=True)(device).sum().backward()
    y = x
    for _ in range(3):
        y = y * y.sin()
    y.sum().backward()
    torch.testing.assert_close(device.grad.cpu(), x.grad)


def test_what_a_branch_computes_is_part_of_a_programs_identity():
    class Branch(torch.nn.Module):
        def __init__(self, number):
            super().__init__()
            self.number = number

        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x + self.number, lambda x: x.sin(), (x,))

    def identity(number):
        exported = torch.export.export(Branch(number), (torch.ones(2),))
        return digest(exported.graph_module, exported.graph, results="")

    assert identity(1) == identity(1) != identity(2)


def test_autocast_reaches_inside():
    functions = {
        "cond": lambda x, w: torch.cond(x.sum() > 1e9, lambda x: x.sin() @ w, lambda x: x @ w, (x,)),
        "scan": lambda x, w: scan(lambda c, row: (c + 1, w @ row), x[0] * 0, x)[1],
        "map": lambda x, w: map_over(lambda row, w: w @ row, x, w),
    }
    x, w = torch.randn(4, 4).tpu(), torch.randn(4, 4).tpu()
    for name, f in functions.items():
        with torch.autocast("tpu", dtype=torch.bfloat16):
            got = torch.compile(f, backend="tpu", fullgraph=True)(x, w)
            want = x @ (w if name == "cond" else w.t())
        assert got.dtype == torch.bfloat16, name
        torch.testing.assert_close(got.cpu(), want.cpu(), rtol=2e-2, atol=2e-2)  # bfloat16 rounds at other places


def test_a_scan_keeps_its_random_numbers_for_the_gradient_and_others_refuse_one():
    """PyTorch's derivatives of the others run their graphs again, with new numbers."""
    x = torch.ones(8, 64).tpu().requires_grad_()
    dropped = torch.compile(lambda x: scan(lambda c, row: (c + 0, F.dropout(row, 0.5)), x[0] * 0, x)[1], backend="tpu")
    out = dropped(x)
    out.sum().backward()
    assert torch.equal((out.detach() != 0).cpu(), (x.grad != 0).cpu())
    for f in (
        lambda x: torch.cond(x.sum() > 0, lambda x: F.dropout(x, 0.5), lambda x: x * 2, (x,)),
        lambda x: map_over(lambda row: F.dropout(row, 0.5), x),
    ):
        with pytest.raises(Exception, match="would draw other random numbers than the forward pass did. Draw them out"):
            torch.compile(f, backend="tpu")(x).sum().backward()
