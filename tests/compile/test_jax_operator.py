"""A user's JAX function as a PyTorch operator: eager, compiled, with gradients."""

import jax
import jax.numpy as jnp
import pytest
import torch
from graph_checks import graphs, programs

from systolic.kernels import jax_op

softcap = jax_op(
    "test_jax_op::softcap", lambda x, limit: jnp.tanh(x / limit) * limit, static=("limit",), backward="jax"
)
split = jax_op("test_jax_op::split", lambda x: (x[:, ::2].astype(jnp.bfloat16), x.sum(1)), results=2)
same = jax_op("test_jax_op::same", lambda x: x * 2, shape=lambda x: torch.empty_like(x))


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def test_eager_and_compiled_give_what_jax_gives():
    x = torch.randn(3, 4)
    want = torch.tanh(x / 2) * 2
    torch.testing.assert_close(softcap(x.tpu(), 2.0).cpu(), want)
    before = programs()
    compiled = torch.compile(lambda x: softcap(x * 1, 2.0) + 1, backend="tpu", fullgraph=True)
    device = x.tpu()
    torch.testing.assert_close(compiled(device).cpu(), want + 1)
    assert programs() == before + 1  # one program with what is around it


def test_shapes_and_dtypes_come_from_jax():
    a, b = split(torch.arange(12.0).view(3, 4).tpu())
    assert (a.dtype, tuple(a.shape), b.tolist()) == (torch.bfloat16, (3, 2), [6.0, 22.0, 38.0])
    a, b = torch.compile(split, backend="tpu", fullgraph=True)(torch.arange(12.0).view(3, 4).t().tpu())
    assert tuple(a.shape) == (4, 2) and b.tolist() == [12.0, 15.0, 18.0, 21.0]


@pytest.mark.parametrize("compile", [False, True])
def test_derivative_by_jax(compile):
    host = torch.randn(3, 4, requires_grad=True)
    device = host.detach().tpu().requires_grad_()
    f = lambda x: softcap(x, 2.0).square().sum()  # noqa: E731
    (torch.compile(f, backend="tpu", fullgraph=True) if compile else f)(device).backward()
    (torch.tanh(host / 2) * 2).square().sum().backward()
    torch.testing.assert_close(device.grad.cpu(), host.grad)


def test_derivative_by_a_function_of_your_own():
    scaled = jax_op(
        "test_jax_op::scaled", lambda x, i, w: x[i] * w,
        backward=lambda g, x, i, w: (jnp.zeros_like(x).at[i].add(g * w), None, (g * x[i]).sum(0) * 10),
    )  # fmt: skip
    x, w = torch.randn(4, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    dx, dw = (t.detach().tpu().requires_grad_() for t in (x, w))
    i = torch.tensor([2, 0, 2])
    scaled(dx, i.tpu(), dw).sum().backward()
    (x[i] * w).sum().backward()
    torch.testing.assert_close(dx.grad.cpu(), x.grad)
    torch.testing.assert_close(dw.grad.cpu(), w.grad * 10)  # the function says ten times


def test_without_a_derivative_a_backward_pass_is_refused():
    x = torch.ones(2, requires_grad=True, device="tpu")
    with pytest.raises(NotImplementedError, match='test_jax_op::same has no backward.*backward="jax"'):
        same(x).sum().backward()
    with torch.no_grad():
        assert same(x).tolist() == [2.0, 2.0]


def test_symbolic_sizes_with_a_shape_function():
    before = graphs()
    compiled = torch.compile(lambda x: same(x) + 1, backend="tpu", fullgraph=True, dynamic=True)
    for n in (3, 5, 8):
        assert compiled(torch.ones(n).tpu()).tolist() == [3.0] * n
    assert graphs() == before + 1
    compiled = torch.compile(lambda x: softcap(x, 1.0), backend="tpu", fullgraph=True, dynamic=True)
    for n in (3, 5):  # without one, each size is traced
        assert compiled(torch.zeros(n).tpu()).tolist() == [0.0] * n
    assert graphs() == before + 3


def test_views_random_keys_and_integer_statics():
    roll = jax_op("test_jax_op::roll", lambda x, by: jnp.roll(x, by), static={"by": int})
    x = torch.arange(6.0).view(2, 3)
    assert roll(x.tpu().t()[0], 1).tolist() == [3.0, 0.0]
    noise = jax_op("test_jax_op::noise", lambda x, key: x + jax.random.uniform(jax.random.wrap_key_data(key), x.shape))
    key = torch.tensor([0, 7], dtype=torch.uint32).tpu()
    torch.testing.assert_close(noise(torch.zeros(4).tpu(), key), noise(torch.zeros(4).tpu(), key))


@pytest.mark.parametrize(
    "arguments, options, error, words",
    [
        (("plain", lambda x: x), {}, ValueError, 'such as "mine::operator", got \'plain\''),
        (("test_jax_op::same", lambda x: x), {}, ValueError, "exists already"),
        (("test_jax_op::many", lambda *x: x), {}, TypeError, "plain positional"),
        (("test_jax_op::unknown", lambda x: x), {"static": ("y",)}, TypeError, "static 'y'"),
        (("test_jax_op::none", lambda n: n), {"static": ("n",)}, TypeError, "takes no array"),
    ],
)
def test_what_cannot_be_an_operator_is_refused(arguments, options, error, words):
    with pytest.raises(error, match=words):
        jax_op(*arguments, **options)


def test_a_wrong_number_of_results_is_named():
    pair = jax_op("test_jax_op::pair", lambda x: (x, x))
    with pytest.raises(RuntimeError, match="returned 2 results, expected 1; say results=2"):
        pair(torch.ones(2).tpu())


def test_programs_are_kept_on_disk_only_under_a_version(tmp_path):
    """Nothing else tells on disk that the function of an operator is another one today."""
    from systolic import settings

    settings.apply({"cache_dir": str(tmp_path)}, "test")
    try:
        for version, files in ((None, 0), ("1", 1)):
            op = jax_op(f"test_jax_op::version_{version}", lambda x: x * 3, version=version)
            x = torch.ones(5).tpu()
            before = len(list(tmp_path.rglob("*.xla")))
            op(x)
            assert len(list(tmp_path.rglob("*.xla"))) == before + files
    finally:
        settings.reset()
