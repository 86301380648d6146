"""What a compiled function may hold: PyTorch's transforms, contexts, hooks, checkpoints, annotations, data-sized results."""

import functools

import pytest
import torch
from graph_checks import check, graphs, leaf, programs, to_tpu
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


linear = nn.Linear(3, 2)


def per_sample(x, y, w, b):
    loss = lambda p, x, y: F.mse_loss(torch.func.functional_call(linear, p, (x,)), y)  # noqa: E731
    return torch.func.vmap(torch.func.grad(loss), (None, 0, 0))({"weight": w, "bias": b}, x, y)


TRANSFORMS = {
    "grad": (lambda x: torch.func.grad(lambda y: (y.sin() * y).sum())(x), (4,)),
    "vmap": (lambda x, w: torch.func.vmap(lambda a: (w @ a).tanh())(x), (5, 3), (4, 3)),
    "jvp": (lambda x, t: torch.func.jvp(lambda y: y.sin() * y, (x,), (t,)), (4,), (4,)),
    "jacrev": (lambda x: torch.func.jacrev(lambda y: y.sin() * y.sum())(x), (3,)),
    "jacfwd": (lambda x: torch.func.jacfwd(lambda y: y.sin() * y.sum())(x), (3,)),
    "functional_call, per sample": (per_sample, (5, 3), (5, 2), (2, 3), (2,)),
}


@pytest.mark.parametrize("case", TRANSFORMS.values(), ids=TRANSFORMS)
def test_function_transforms(case):
    function, *shapes = case
    check(function, *(torch.randn(shape) for shape in shapes), rtol=1e-4, atol=1e-5)  # sums in another order


def test_random_numbers_under_vmap_differ():
    f = lambda x: torch.func.vmap(lambda a: a + torch.rand_like(a), randomness="different")(x)  # noqa: E731
    out = torch.compile(f, backend="tpu", fullgraph=True)(torch.zeros(3, 4).tpu()).cpu()
    assert not torch.equal(out[0], out[1])


def test_dropout_differs_each_call_and_repeats_with_the_seed_without_a_new_program():
    compiled = torch.compile(lambda x: F.dropout(x, 0.5), backend="tpu", fullgraph=True)
    x = torch.ones(128).tpu()
    compiled(x)
    before = programs(), graphs()
    torch.manual_seed(0)
    first, second = compiled(x), compiled(x)
    torch.manual_seed(0)
    third = compiled(x)
    assert (programs(), graphs()) == before
    assert first.tolist() == third.tolist() != second.tolist()


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_autocast(where):
    f = lambda x, w: (x @ w).softmax(-1)  # noqa: E731

    def inside(x, w):
        with torch.autocast("tpu", dtype=torch.bfloat16):
            return f(x, w)

    x, w = torch.randn(3, 4).tpu(), torch.randn(4, 5).tpu()
    compiled = torch.compile(inside if where == "inside" else f, backend="tpu", fullgraph=True)
    with torch.autocast("tpu", dtype=torch.bfloat16):
        got, want = compiled(x, w), f(x, w)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got.cpu(), want.cpu(), rtol=1e-2, atol=1e-2)  # bfloat16 rounds between programs only
    assert where == "inside" or compiled(x, w).dtype == torch.float32


def test_views_and_writes_inside():
    def f(x):
        y = x.clone()
        v = y[1:]
        v.add_(1)
        y.t()[0].mul_(3)
        y[:, ::2].zero_()
        return y, v, y.view(-1)[2:]

    check(f, torch.randn(4, 6))

    def with_gradients(x):
        y = x * 1
        y[0].mul_(2)
        y[:, 1] = y[:, 0]
        return y.relu_()

    check(with_gradients, leaf(3, 3))


def block(x, w):
    return ((x @ w).relu() @ w).sin()


def selected(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE


CHECKPOINTS = {
    "plain": {"use_reentrant": False},
    "selective": {
        "use_reentrant": False, "context_fn": functools.partial(create_selective_checkpoint_contexts, selected),
    },
}  # fmt: skip


@pytest.mark.parametrize("options", CHECKPOINTS.values(), ids=CHECKPOINTS)
def test_activation_checkpoints(options):
    check(lambda x, w: checkpoint(block, x, w, **options), leaf(3, 4), leaf(4, 4), rtol=1e-4, atol=1e-5)  # order of sums


def test_a_checkpoint_draws_its_random_numbers_again():
    def f(x):
        return checkpoint(lambda a: F.dropout(a * 1.5, 0.5).sin() + F.dropout(a, 0.3), x, use_reentrant=False)

    x = torch.rand(256).tpu().requires_grad_()
    compiled = torch.compile(f, backend="tpu", fullgraph=True)
    for _ in range(2):
        x.grad = None
        out = compiled(x)
        out.sum().backward()
        # each element of the sum is one of four functions of x, told apart by its value; so is its gradient
        host, grad = x.detach().cpu(), x.grad.cpu()
        first = (host * 3).sin(), 3 * (host * 3).cos()
        second = host / 0.7, torch.full_like(host, 1 / 0.7)
        values = torch.stack([a + b for a in (first[0], 0 * host) for b in (second[0], 0 * host)])
        slopes = torch.stack([a + b for a in (first[1], 0 * host) for b in (second[1], 0 * host)])
        chosen = (values - out.detach().cpu()).abs().argmin(0)
        assert len(chosen.unique()) == 4
        torch.testing.assert_close(grad, slopes.gather(0, chosen[None])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.long
def test_hooks_of_modules_and_tensors():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).to("tpu")
    model[0].register_forward_hook(lambda module, args, out: out * 2)
    model[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model[2].register_full_backward_hook(lambda module, gi, go: tuple(None if g is None else g * 3 for g in gi))
    x = torch.randn(2, 3).tpu()
    want = model(x)
    want.sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    got = torch.compile(model, backend="tpu")(x)
    got.sum().backward()
    torch.testing.assert_close(got, want)
    for p, g in zip(model.parameters(), gradients):
        torch.testing.assert_close(p.grad, g)

    def f(x):
        y = x * 2
        y.register_hook(lambda g: g * 5)
        return y.sin()

    check(f, leaf(3))


def test_inference_mode_and_gradients_of_the_same_function():
    compiled = torch.compile(lambda x, w: (x @ w).relu(), backend="tpu", fullgraph=True)
    x, w = torch.randn(3, 4).tpu(), torch.randn(4, 4).tpu().requires_grad_()
    with torch.inference_mode():
        out = compiled(x, w)
        assert out.is_inference()
    again = compiled(x, w)
    again.sum().backward()
    torch.testing.assert_close(out.cpu(), again.detach().cpu())
    assert w.grad is not None


def test_annotations_of_torch_compiler():
    @torch.compiler.disable
    def outside(x):
        return x + 1

    def inside(x):
        return x.sin() + x.shape[0]

    torch.compiler.allow_in_graph(inside)
    check(lambda x: outside(x * 2) * 3, torch.randn(3), whole=False)
    check(lambda x: inside(x * 2) * 3, torch.randn(3))
    compiled = torch.compile(lambda x: x * (2 if torch.compiler.is_compiling() else 3), backend="tpu", fullgraph=True)
    x = torch.ones(1).tpu()
    torch.compiler.cudagraph_mark_step_begin()
    assert compiled(x).item() == 2 and not torch.compiler.is_compiling() and "tpu" in torch.compiler.list_backends()
    with torch.compiler.set_stance("force_eager"):
        assert compiled(x).item() == 3
    with torch.compiler.set_stance("fail_on_recompile"):
        assert compiled(x).item() == 2
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            compiled(x.double())
    with torch.compiler.set_stance("eager_on_recompile"):
        assert compiled(x.double()).item() == 3


def test_results_whose_size_only_the_data_tells_break_the_graph():
    x = torch.tensor([1.0, -2.0, 3.0, 0.0])
    f = lambda x: (x * 2)[x > 0].sum() + torch.nonzero(x).shape[0] + x.sum().item()  # noqa: E731
    check(f, x, whole=False)
    torch._dynamo.reset()
    with pytest.warns(UserWarning, match="is cut into several programs at aten.index.*nonzero"):
        check(f, x, whole=False, compiled=torch.compile(f, backend="tpu", fullgraph=True))  # then PyTorch captures them
    check(lambda x: torch.nonzero_static(x > 0, size=3, fill_value=-1), x)  # a bound makes it static


def test_captured_data_sizes_cut_the_graph():
    def f(x, n):
        count = n.item()
        torch._check(count >= 1)
        return torch.zeros(count, device=x.device) + x[:1], x[x > 0] * 2

    before = torch.tpu.fallbacks()
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        with pytest.warns(UserWarning, match="is cut into several programs at aten._local_scalar_dense.default, aten.index"):
            check(f, torch.tensor([1.0, -2.0, 3.0]), torch.tensor(4), whole=False)
    assert torch.tpu.fallbacks() == before


def test_custom_operators_without_a_lowering_say_where_they_run():
    @torch.library.custom_op("test_breadth::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x * x * x

    cube.register_fake(lambda x: torch.empty_like(x))
    cube.register_autograd(
        lambda ctx, g: g * 3 * ctx.saved_tensors[0] ** 2,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),
    )
    with pytest.warns(UserWarning, match="at test_breadth.cube.default, which cannot be part of one"):
        check(lambda x: cube(x + 1) * 2, leaf(4), whole=False)

    @torch.library.custom_op("test_breadth::increment", mutates_args=("x",))
    def increment(x: torch.Tensor) -> None:
        x.add_(1)

    def f(x):
        y = x * 2
        increment(y)
        return y

    with pytest.warns(UserWarning, match="at auto_functionalized.*, which cannot be part of one"):
        check(f, torch.randn(4), whole=False)


def test_gradients_inside_an_optimizer_inside_and_compiled_autograd():
    model = nn.Linear(3, 3).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step = torch.compile(lambda: optimizer.step(), backend="tpu")
    x, before = torch.randn(2, 3).tpu(), model.weight.detach().clone()
    for _ in range(2):
        with torch._dynamo.config.patch(compiled_autograd=True):
            torch.compile(lambda x: model(x).sum(), backend="tpu")(x).backward()
        step()
        optimizer.zero_grad()
    assert not torch.equal(model.weight.detach().cpu(), before.cpu())

    def gradient(x, w):
        return torch.autograd.grad((x @ w).square().sum(), w)[0]

    x, w = torch.randn(2, 3), leaf(3, 3)
    got = torch.compile(gradient, backend="tpu")(*to_tpu((x, w)))
    torch.testing.assert_close(got.cpu(), gradient(x, w))


def test_equal_layers_that_read_a_constant_of_the_graph():
    """Dynamo puts a constant's node where its first layer reads it, that is among the nodes of the layers."""

    class Layers(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.ParameterList(torch.randn(4, 4) for _ in range(6))

        def forward(self, x):
            for weight in self.weights:
                x = torch.tanh(x @ weight) + torch.tensor([1.0, 2.0, 3.0, 4.0], device=x.device)
            return x

    layers, x = Layers(), torch.randn(3, 4)
    with torch.no_grad():
        want = layers(x)
        got = torch.compile(layers.to("tpu"), backend="tpu")(x.to("tpu"))
    torch.testing.assert_close(got.cpu(), want)
