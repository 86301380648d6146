"""torch.compile on the device: one trace, one program a size, in-place updates without copies."""

import pytest
import torch
from graph_checks import programs
from torch import nn
from torch._dynamo.utils import counters


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    counters.clear()


def graphs():
    """Graphs that Dynamo captured in this test."""
    return counters["stats"]["unique_graphs"]


def pointer(t):
    return torch.tpu._C.array_of(t).unsafe_buffer_pointer()


def check(function, *hosts, **options):
    """The compiled function on the device equals the plain one on the CPU."""
    compiled = torch.compile(function, **options)
    got = compiled(*(h.tpu() if isinstance(h, torch.Tensor) else h for h in hosts))
    want = function(*hosts)
    torch.testing.assert_close(tuple(t.cpu() for t in _flat(got)), tuple(_flat(want)))
    return compiled


def _flat(x):
    return x if isinstance(x, (tuple, list)) else (x,)


OPTIONS = {
    "default": {},
    "explicit": {"backend": "tpu"},
    "explicit fullgraph": {"backend": "tpu", "fullgraph": True},
    "default fullgraph": {"fullgraph": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_whole_graph_is_one_program(options):
    x, w = torch.randn(4, 8).tpu(), torch.randn(8, 8).tpu()
    compiled = torch.compile(lambda a, b: torch.softmax((a @ b).relu() + 1, -1).sum(0), **options)
    before = programs()
    out = compiled(x, w)
    assert graphs() == 1 and programs() == before + 1
    assert type(out) is torch.Tensor and out.device.type == "tpu"
    torch.testing.assert_close(out.cpu(), torch.softmax((x.cpu() @ w.cpu()).relu() + 1, -1).sum(0))
    compiled(x + 1, w)
    assert graphs() == 1


def test_dynamic_sizes_are_traced_once():
    compiled = torch.compile(lambda x: (x * 2).view(-1, 2).sum(0) + x.shape[0], dynamic=True)
    inputs = {n: torch.arange(float(2 * n)).tpu() for n in (3, 5, 9)}
    before = programs()
    for n, x in inputs.items():
        assert compiled(x).tolist() == ((torch.arange(2.0 * n) * 2).view(-1, 2).sum(0) + 2 * n).tolist()
    assert graphs() == 1 and programs() == before + 3
    for x in inputs.values():
        compiled(x)
    assert graphs() == 1 and programs() == before + 3


def test_marked_dimension_and_automatic_dynamic():
    compiled = torch.compile(lambda x: x.cumsum(0).tanh())
    x = torch.randn(7, 3).tpu()
    torch._dynamo.mark_dynamic(x, 0)
    compiled(x)
    for n in (4, 11):
        y = torch.randn(n, 3)
        torch.testing.assert_close(compiled(y.tpu()).cpu(), y.cumsum(0).tanh())
    assert graphs() == 1
    torch._dynamo.reset()
    counters.clear()
    for n in (4, 5, 6, 8, 10):
        compiled(torch.randn(n, 3).tpu())
    assert graphs() == 2  # the first size alone, then all others


def test_numbers_as_inputs():
    compiled = torch.compile(lambda x, n, s, flag: (x * s + n)[:n] if flag else x, dynamic=True)
    x = torch.arange(8.0)
    for n, s in ((3, 0.5), (4, 1.25), (6, -2.0)):
        torch.testing.assert_close(compiled(x.tpu(), n, s, True).cpu(), (x * s + n)[:n])
    assert compiled(x.tpu(), 1, 1.0, False).tolist() == x.tolist()
    assert compiled(torch.arange(8).tpu(), 2**40, 1.0, True)[0].item() == 2**40


def test_another_float_is_not_another_program():
    compiled = torch.compile(lambda x, s: x * s, dynamic=True)
    x = torch.ones(3).tpu()
    compiled(x, 0.5), compiled(x, 1.5)
    before = programs()
    assert compiled(x, 7.25).tolist() == [7.25] * 3
    assert programs() == before


def test_mutated_inputs_keep_their_buffer():
    def step(cache, rows, index, count):
        cache.index_copy_(0, index, rows)
        count.add_(1)
        return cache[index] * 2

    cache, count = (
        torch.zeros(4096, 64, device="tpu").add_(0),
        torch.zeros((), dtype=torch.int64, device="tpu").add_(0),
    )
    compiled = torch.compile(step, fullgraph=True)
    place = pointer(cache)
    for i in range(3):
        index = torch.tensor([i, 4000 + i], device="tpu")
        out = compiled(cache, torch.full((2, 64), i + 1.0, device="tpu"), index, count)
        assert pointer(cache) == place
        assert out[0, 0].item() == 2 * (i + 1)
    assert count.item() == 3
    assert cache.sum(1).tolist()[:4] == [64.0, 128.0, 192.0, 0.0]
    assert cache[4002, 0].item() == 3


def test_mutation_of_a_view_reaches_the_base():
    def step(view):
        view.mul_(2)
        view[0] = -1

    base = torch.arange(12.0).view(4, 3)
    for take in (lambda t: t[1:3], lambda t: t[:, 1:], lambda t: t.t(), lambda t: t[::2]):
        host, device = base.clone(), base.tpu()
        step(take(host))
        torch.compile(step)(take(device))
        assert torch.equal(device.cpu(), host)


def test_views_as_inputs():
    base = torch.arange(24.0).view(4, 6)
    compiled = torch.compile(lambda v: v * 2 + v.sum(), dynamic=False)
    for take in (
        lambda t: t[1:3],
        lambda t: t.t(),
        lambda t: t[:, ::2],
        lambda t: t[0].expand(3, 6),
        lambda t: t[2, 3],
    ):
        torch.testing.assert_close(compiled(take(base.tpu())).cpu(), take(base) * 2 + take(base).sum())
    device = base.tpu()
    compiled(device[0:2])
    before = programs()
    assert compiled(device[2:4])[0, 0].item() == 2 * 12 + base[2:4].sum().item()
    assert programs() == before  # the place of a contiguous view is a run-time number


def test_outputs_that_are_inputs_or_views_of_them():
    def f(x, y):
        return x, x.view(-1), y + 1, y.t(), None, x.shape[0]

    x, y = torch.arange(4.0, device="tpu").view(2, 2), torch.ones(2, 3, device="tpu")
    same, flat, more, turned, nothing, size = torch.compile(f)(x, y)
    assert same.data_ptr() == flat.data_ptr() == x.data_ptr()
    flat[0] = 9
    assert x[0, 0].item() == 9
    assert turned.data_ptr() == y.data_ptr() and turned.stride() == (1, 3)
    assert more.tolist() == [[2.0] * 3] * 2 and nothing is None and size == 2


def test_same_tensor_given_twice():
    def f(a, b):
        a.add_(1)
        return a * b

    t = torch.ones(3, device="tpu")
    assert torch.compile(f)(t, t).tolist() == [4.0] * 3
    assert t.tolist() == [2.0] * 3


def test_inputs_that_overlap():
    def f(a, b):
        a.add_(1)
        return b * 2

    base = torch.zeros(4, device="tpu")
    assert torch.compile(f)(base[:3], base[1:]).tolist() == [2.0, 2.0, 0.0]
    assert base.tolist() == [1.0, 1.0, 1.0, 0.0]


def test_backward_equals_eager():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)).to("tpu")
    x, y = torch.randn(5, 6, device="tpu"), torch.tensor([0, 1, 2, 1, 0], device="tpu")

    def loss(x):
        return nn.functional.cross_entropy(model(x), y[: x.shape[0]])

    loss(x).backward()
    want = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(loss, fullgraph=True)
    before = programs()
    compiled(x).backward()
    assert programs() <= before + 3  # forward, backward, and the gradient's seed
    for p, w in zip(model.parameters(), want):
        # float32 sums fused in another order
        torch.testing.assert_close(p.grad, w, rtol=1e-4, atol=1e-6)


def test_backward_with_dynamic_sizes():
    compiled = torch.compile(lambda x: (x.sin() * x).sum(), dynamic=True)
    for n in (3, 5):
        host = torch.randn(n, 2, requires_grad=True)
        device = host.detach().tpu().requires_grad_()
        (host.sin() * host).sum().backward()
        compiled(device).backward()
        torch.testing.assert_close(device.grad.cpu(), host.grad)
    assert graphs() == 1


def test_dropout_has_the_same_mask_forward_and_backward():
    compiled = torch.compile(lambda x: nn.functional.dropout(x, 0.5))
    x = torch.ones(512, device="tpu", requires_grad=True)
    out = compiled(x)
    out.sum().backward()
    assert torch.equal((out.detach() != 0).cpu(), (x.grad != 0).cpu())
    assert 0 < (out == 0).sum().item() < 512


def test_random_numbers_follow_the_generator():
    compiled = torch.compile(lambda x: x + torch.rand_like(x) + torch.randn(4, device=x.device))
    x = torch.zeros(4, device="tpu")
    torch.manual_seed(3)
    first, second = compiled(x).cpu(), compiled(x).cpu()
    torch.manual_seed(3)
    assert torch.equal(compiled(x).cpu(), first) and torch.equal(compiled(x).cpu(), second)
    assert not torch.equal(first, second)


def test_training_step_with_buffers():
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    models[1].to("tpu")
    x = torch.randn(16, 3)
    for model, where in zip(models, ("cpu", "tpu")):
        forward = torch.compile(model) if where == "tpu" else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            forward(x.to(where)).square().mean().backward()
            optimizer.step()
    for a, b in zip(models[0].state_dict().values(), models[1].state_dict().values()):
        # three float32 steps
        torch.testing.assert_close(b.cpu(), a, rtol=1e-3, atol=1e-5)


def test_no_inputs_constants_and_host_numbers():
    table = torch.arange(4.0).tpu()
    assert torch.compile(lambda: torch.arange(5, device="tpu") * 2)().tolist() == [0, 2, 4, 6, 8]
    assert torch.compile(lambda x: x + table)(torch.ones(4).tpu()).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert torch.compile(lambda x, s: x * s)(torch.ones(2).tpu(), torch.tensor(3.0)).tolist() == [3.0, 3.0]


def test_graphs_that_reach_the_host():
    def f(x, host):
        host.mul_(2)
        moved = host.to(x.device) + x
        return moved, moved.cpu() + 1, torch.arange(2) * 3

    compiled = torch.compile(f, fullgraph=True)
    x, host = torch.ones(2, 2, device="tpu"), torch.arange(4.0).view(2, 2)
    before = programs()
    moved, back, made = compiled(x, host)
    assert (moved.device.type, back.device.type, made.device.type) == ("tpu", "cpu", "cpu")
    assert host.tolist() == [[0.0, 2.0], [4.0, 6.0]]
    assert moved.tolist() == [[1.0, 3.0], [5.0, 7.0]] and back.tolist() == [[2.0, 4.0], [6.0, 8.0]]
    assert made.tolist() == [0, 3] and programs() == before + 1


def test_graph_breaks_give_right_results():
    def f(x):
        y = x * 2
        if y.sum().item() > 0:
            return y[y > 2].sum()
        return y

    assert torch.compile(f)(torch.arange(4.0).tpu()).item() == 10.0
    assert torch.compile(f)(-torch.arange(4.0).tpu()).tolist() == [-0.0, -2.0, -4.0, -6.0]


def test_python_of_the_device_is_not_traced_after_a_graph_break():
    def f(x):
        print(end="")  # a graph break: what follows may run as plain Python
        values, counts = torch.unique(x, return_counts=True)
        return x[x > 1].tolist(), values.cpu(), counts

    eager = f(torch.tensor([3, 1, 3]))
    for shape in ((3,), (3,)):
        x = torch.tensor([3, 1, 3], device="tpu").view(shape)
        listed, values, counts = torch.compile(f)(x)
        assert listed == eager[0] and torch.equal(values, eager[1]) and torch.equal(counts.cpu(), eager[2])
    frames = [str(f) for f in counters["frames"]] + [k for k in counters["graph_break"]]
    assert not any("systolic" in str(k) or "jax" in str(k) for k in frames)


def test_operators_without_a_lowering_run_on_the_cpu_and_say_so():
    x = torch.linspace(0, 1, 4)
    before = sum(torch.tpu.fallbacks().values())
    with torch.library._scoped_library("unlowered_graph", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        library.impl("twice", lambda x: torch.empty_like(x), "Meta")
        compiled = torch.compile(lambda x: torch.ops.unlowered_graph.twice(x * 2) + 1, fullgraph=True)
        with pytest.warns(UserWarning, match="unlowered_graph.twice.* cannot be part of one"):
            got = compiled(x.tpu())
    torch.testing.assert_close(got.cpu(), x * 4 + 1)
    assert sum(torch.tpu.fallbacks().values()) == before + 1


def test_masks_stay_static_in_graphs():
    def f(x):
        x = x.clone()
        x[x > 2] = 0
        return torch.where(x > 1, x, -x)

    check(f, torch.arange(6.0), fullgraph=True)


def test_modes_of_autograd():
    compiled = torch.compile(lambda x: x * 3)
    x = torch.ones(2, device="tpu", requires_grad=True)
    with torch.no_grad():
        assert not compiled(x).requires_grad
    with torch.inference_mode():
        assert compiled(torch.ones(2, device="tpu")).is_inference()
    assert compiled(x).requires_grad


def test_common_functions():
    torch.manual_seed(0)
    x, i = torch.randn(4, 6), torch.tensor([2, 0])
    for f in (
        lambda x, i: x[i].t().contiguous(),
        lambda x, i: torch.cat([x, x[:1]]).split(2, 1)[1],
        lambda x, i: nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True),
        lambda x, i: (x.sort(1).values, x.topk(2).indices, x.argmax(1)),
        lambda x, i: torch.einsum("ab,cb->ac", x, x).triu(),
        lambda x, i: nn.functional.embedding(i, x).mean(1),
        lambda x, i: x.view(2, 2, 6).permute(2, 0, 1).reshape(6, 4).flip(0),
        lambda x, i: torch.linspace(0, 1, 6, device=x.device) * x.std(0),
        lambda x, i: x.as_strided((3, 2), (2, 6), 1) + x.unfold(1, 2, 3)[:3, 0],
        lambda x, i: x.to(torch.bfloat16).float().int().bitwise_and(3),
    ):
        check(f, x, i, fullgraph=True)


def test_options_that_do_not_exist_are_refused():
    x = torch.ones(1, device="tpu")
    with pytest.raises(Exception, match="knows only the option 'buckets', got ..speed..; leave others out"):
        torch.compile(lambda x: x + 1, backend="tpu", options={"speed": 11})(x)
    with pytest.raises(Exception, match="knows no mode 'max-autotune'"):
        torch.compile(lambda x: x + 1, backend="tpu", mode="max-autotune")(x)


def test_options_of_inductor_are_not_ignored_silently():
    x = torch.ones(1, device="tpu")
    with pytest.warns(UserWarning, match="options and modes of Inductor have no effect on tpu: max_autotune"):
        assert torch.compile(lambda x: x + 1, options={"max_autotune": True})(x).item() == 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_other_backends_take_tpu_tensors_too(backend):
    compiled = torch.compile(lambda x: x.sin() + 1, backend=backend)
    x = torch.arange(3.0)
    torch.testing.assert_close(compiled(x.tpu()).cpu(), x.sin() + 1)
    torch.testing.assert_close(compiled(x), x.sin() + 1)


def test_host_functions_still_use_inductor():
    before = programs()
    from torch._inductor.utils import run_and_get_code

    compiled = torch.compile(lambda: torch.ones(2) + 1)  # no tensor inputs
    assert compiled().tolist() == [2.0, 2.0]
    out, code = run_and_get_code(torch.compile(lambda x: x.sin() + 1), torch.zeros(2))
    assert out.tolist() == [1.0, 1.0] and code
    assert programs() == before


@pytest.mark.parametrize("name", ["addcmul_", "addcdiv_"])
def test_in_place_multiply_add_is_part_of_the_program(name, recwarn):
    """Dynamo splits these into primitives of its own before a backend sees them."""

    def step(p, a, b):
        getattr(p, name)(a, b, value=-0.1)

    hosts = [torch.rand(16) + 1 for _ in range(3)]
    tensors = [h.tpu() for h in hosts]
    before = programs()
    torch.compile(step, backend="tpu")(*tensors)
    assert programs() == before + 1
    assert not [w for w in recwarn if "cut into several" in str(w.message)]
    step(*hosts)
    torch.testing.assert_close(tensors[0].cpu(), hosts[0])
