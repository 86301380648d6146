"""`torch.compile` on tpu tensors: one trace, an executable per size, donated mutations, backward, random numbers."""

from __future__ import annotations

import pytest
import torch

from systolic.compile import executables


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


def _block():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    )


@pytest.mark.parametrize("backend", ["tpu", None])
def test_module_equals_cpu_forward_and_backward(backend):
    reference = _block()
    module = _block().to("tpu")
    compiled = torch.compile(module, fullgraph=True, **({"backend": backend} if backend else {}))
    x = torch.randn(5, 8)
    want, got = reference(x), compiled(x.to("tpu"))
    torch.testing.assert_close(got.cpu(), want)
    want.pow(2).mean().backward()
    got.pow(2).mean().backward()
    for ours, theirs in zip(module.parameters(), reference.parameters()):
        torch.testing.assert_close(ours.grad.cpu(), theirs.grad)


def test_default_backend_of_cpu_tensors_is_untouched():
    calls = []

    def backend(gm, inputs):
        calls.append(len(inputs))
        return gm.forward

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    torch.testing.assert_close(compiled(torch.ones(3)), torch.full((3,), 2.0))
    assert len(calls) == 1


def test_one_trace_serves_all_sizes():
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(lambda x: x * 2 + x.sum(0), backend="tpu", dynamic=True, fullgraph=True)
    for size in (3, 5, 7, 11):
        x = torch.arange(size * 4, dtype=torch.float32).reshape(size, 4)
        torch.testing.assert_close(compiled(x.to("tpu")).cpu(), x * 2 + x.sum(0))
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs == 1, f"{graphs} graphs were traced"


def test_symbolic_size_as_value():
    compiled = torch.compile(lambda x: x + x.shape[0], backend="tpu", dynamic=True)
    for size in (3, 6):
        assert compiled(torch.zeros(size, 2, device="tpu"))[0, 0].item() == size


def test_same_size_again_compiles_nothing():
    compiled = torch.compile(lambda x: torch.sin(x) * 3, backend="tpu")
    x = torch.randn(6, device="tpu")
    compiled(x)
    before = executables.statistics.compilations
    with executables.forbid("the test says so"):
        compiled(x)
        compiled(torch.randn(6, device="tpu"))
    assert executables.statistics.compilations == before


def _pointer(tensor) -> int:
    return torch.tpu._C.array_of(tensor).unsafe_buffer_pointer()


def test_mutated_input_is_updated_in_place():
    cache = torch.zeros(1000, 64, device="tpu")
    cache.add_(0.0)  # gives the storage an array
    before = _pointer(cache)

    @torch.compile(backend="tpu", fullgraph=True)
    def update(cache, rows, values):
        cache[rows] = values
        return cache[rows].sum()

    total = update(cache, torch.tensor([1, 3], device="tpu"), torch.ones(2, 64, device="tpu"))
    assert total.item() == 128
    assert _pointer(cache) == before, "the cache was copied instead of donated"
    host = cache.cpu()
    assert host[[1, 3]].eq(1).all() and host.sum() == 128


def test_several_mutated_inputs_of_one_shape_are_not_swapped():
    caches = [torch.full((100, 8), float(i), device="tpu") for i in range(4)]
    before = [_pointer(c) for c in caches]

    @torch.compile(backend="tpu", fullgraph=True)
    def update(a, b, c, d):
        for number, cache in enumerate((d, c, b, a)):
            cache[0] += 10 * (number + 1)
        return a + b

    update(*caches)
    assert [_pointer(c) for c in caches] == before
    assert [c[0, 0].item() for c in caches] == [40, 31, 22, 13]
    assert [c[1, 0].item() for c in caches] == [0, 1, 2, 3]


def test_view_inputs_and_outputs():
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    device = base.to("tpu")
    compiled = torch.compile(lambda a, b: (a + b, a.t(), b), backend="tpu")
    got = compiled(device[1:3, ::2], device[:2, 1::2])
    a, b = base[1:3, ::2], base[:2, 1::2]
    for ours, theirs in zip(got, (a + b, a.t(), b)):
        torch.testing.assert_close(ours.cpu(), theirs)


def test_write_through_a_view_inside_the_graph_reaches_the_base():
    base = torch.zeros(4, 4, device="tpu")
    torch.compile(lambda x: x.mul_(2).add_(3), backend="tpu")(base[1:3, 1:3])
    want = torch.zeros(4, 4)
    want[1:3, 1:3] = 3
    torch.testing.assert_close(base.cpu(), want)


def test_dropout_differs_each_call_and_reproduces_with_the_seed():
    compiled = torch.compile(lambda x: torch.nn.functional.dropout(x, 0.5), backend="tpu")
    x = torch.ones(4096, device="tpu")
    torch.manual_seed(7)
    first, second = compiled(x).cpu(), compiled(x).cpu()
    with executables.forbid("a new seed must not recompile"):
        torch.manual_seed(7)
        again = compiled(x).cpu()
    assert not torch.equal(first, second)
    assert torch.equal(first, again)
    # 4096 draws with p = 1/2: five standard deviations are 160.
    assert abs(int(first.eq(0).sum()) - 2048) < 160


def test_python_numbers_are_inputs():
    compiled = torch.compile(lambda x, a, b: x * a + b, backend="tpu", dynamic=True)
    x = torch.ones(3, device="tpu")
    for a, b in ((2.0, 3), (4.5, 6), (0.25, 9)):
        torch.testing.assert_close(compiled(x, a, b).cpu(), torch.full((3,), a + b))


def test_unknown_option_is_refused():
    with pytest.raises(Exception, match="knows no options"):
        torch.compile(lambda x: x + 1, backend="tpu", options={"fast": True})(torch.ones(2, device="tpu"))


def test_equal_layers_are_found_and_give_the_same_numbers():
    torch.manual_seed(0)
    layers = [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.LayerNorm(16)) for _ in range(8)]
    deep = torch.nn.Sequential(*layers).requires_grad_(False)
    x = torch.randn(3, 16)
    want = deep(x)
    from systolic.compile.trace import trace

    device = deep.to("tpu")
    weights = list(device.parameters())

    def function(*tensors):
        names = [name for name, _ in device.named_parameters()]
        return torch.func.functional_call(device, dict(zip(names, tensors[:-1])), (tensors[-1],))

    graph = trace(function, [*weights, x.to("tpu")], {}, "deep")
    assert graph.repeats is not None and len(graph.repeats.groups) >= 6
    torch.testing.assert_close(graph.call([*weights, x.to("tpu")])[0].cpu(), want)
    graph.repeats = None
    graph.program = torch.tpu._C.Program(graph._build)
    torch.testing.assert_close(graph.call([*weights, x.to("tpu")])[0].cpu(), want)
