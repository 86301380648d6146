"""Gradients on the device equal those on the CPU, with the same graph semantics."""

import pytest
import torch
from torch import nn


def grads(f, *hosts, device):
    xs = [h.clone().to(device).requires_grad_() for h in hosts]
    return [g.cpu() for g in torch.autograd.grad(f(*xs), xs)]


SQUARE, ROW = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(1.0, 5.0)

FUNCTIONS = {
    "matmul": lambda a, b: ((a @ a) @ b).sum(),
    "pointwise": lambda a, b: (a.sin() * b.exp() / (1 + a * a)).sum(),
    "broadcast": lambda a, b: (a * b + b.view(4, 1)).pow(2).sum(),
    "softmax": lambda a, b: (a.softmax(-1) * b).sum(),
    "views": lambda a, b: (a[1:, ::2].t().reshape(-1).sum() * b[1:3].prod()),
    "index": lambda a, b: (a[[0, 0, 2]] * b).sum() + a[a > 0].sum(),
    "gather": lambda a, b: (
        a.gather(1, torch.tensor([[0], [1], [1], [3]], device=a.device)) * b.view(4, 1)).sum(),
    "where": lambda a, b: torch.where(a > b, a * 2, b * 3).sum(),
    "reductions": lambda a, b: a.max() + a.amax(0).sum() + a.std() + (b * a.mean(1)).sum() + a.norm(),
    "cat": lambda a, b: torch.cat([a, b.view(1, 4)]).cumsum(0).tanh().sum(),
    "in place": lambda a, b: (a.clone().mul_(b).add_(1) ** 2).sum(),
    "in place view": lambda a, b: _write_row(a, b).pow(2).sum(),
    "sort": lambda a, b: (a.sort(1).values * b).sum() + a.topk(2).values.sum(),
    "layer_norm": lambda a, b: nn.functional.layer_norm(a, (4,), b).pow(2).sum(),
    "cross_entropy": lambda a, b: nn.functional.cross_entropy(
        a * b, torch.tensor([0, 3, 1, 2], device=a.device)),
    "attention": lambda a, b: nn.functional.scaled_dot_product_attention(
        a.view(1, 1, 4, 4), a.view(1, 1, 4, 4) * b, a.view(1, 1, 4, 4), is_causal=True).pow(2).sum(),
    "conv": lambda a, b: nn.functional.conv1d(a.view(1, 4, 4), (a * b).view(4, 4, 1)).pow(2).sum(),
}  # fmt: skip


def _write_row(a, b):
    out = a.clone()
    out[1] = b
    out[:, 2].mul_(2)
    return out


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient_equals_the_cpu(name):
    want = grads(FUNCTIONS[name], SQUARE, ROW, device="cpu")
    got = grads(FUNCTIONS[name], SQUARE, ROW, device="tpu")
    for g, w in zip(got, want):
        # float32 sums of a few dozen terms in another order
        torch.testing.assert_close(g, w, rtol=2e-5, atol=2e-5)


def test_backward_accumulates_into_grad():
    x = torch.ones(3, device="tpu", requires_grad=True)
    (x * 2).sum().backward()
    (x * 3).sum().backward()
    assert x.grad.device.type == "tpu" and x.grad.tolist() == [5.0] * 3
    x.grad.zero_()
    assert x.grad.sum().item() == 0


def test_gradient_crosses_devices():
    x = torch.ones(3, requires_grad=True)
    y = (x.to("tpu") * 2).cpu() * torch.tensor([1.0, 2.0, 3.0])
    y.sum().backward()
    assert x.grad.device.type == "cpu" and x.grad.tolist() == [2.0, 4.0, 6.0]


def test_second_derivative():
    x = torch.tensor([1.0, 2.0], device="tpu", requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.tolist() == [6.0, 12.0]


def test_hooks_and_retain_grad():
    seen = []
    x = torch.ones(2, device="tpu", requires_grad=True)
    y = x * 3
    y.retain_grad()
    y.register_hook(lambda g: seen.append(g.tolist()))
    (y * 2).sum().backward()
    assert seen == [[2.0, 2.0]] and y.grad.tolist() == [2.0, 2.0]


def test_in_place_on_a_leaf_and_on_saved_values_raises():
    x = torch.ones(2, device="tpu", requires_grad=True)
    with pytest.raises(RuntimeError, match="leaf Variable"):
        x.add_(1)
    y = x * 1
    z = y.exp()
    z.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_view_and_base_share_the_graph():
    x = torch.ones(4, device="tpu", requires_grad=True)
    y = x.clone()
    view = y[:2]
    view.mul_(5)
    assert y.grad_fn is not None and view._is_view() and view._base is y
    y.sum().backward()
    assert x.grad.tolist() == [5.0, 5.0, 1.0, 1.0]


def test_custom_function_and_checkpoint():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            assert x.device.type == "tpu"
            return grad * 2

    x = torch.ones(2, device="tpu", requires_grad=True)
    Double.apply(x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    x.grad = None
    torch.utils.checkpoint.checkpoint(
        lambda t: nn.functional.dropout(t, 0.5).sum(), x, use_reentrant=False
    ).backward()
    assert set(x.grad.tolist()) <= {0.0, 2.0}


def test_functional_transforms():
    def f(x):
        return (x.sin() * x).sum()

    host = torch.tensor([0.5, 1.0, 2.0])
    device = host.tpu()
    torch.testing.assert_close(torch.func.grad(f)(device).cpu(), torch.func.grad(f)(host))
    torch.testing.assert_close(torch.func.vmap(torch.sin)(device).cpu(), host.sin())
    torch.testing.assert_close(torch.func.jacrev(torch.sin)(device).cpu(), torch.func.jacrev(torch.sin)(host))


def test_gradcheck_in_double_precision():
    x = torch.randn(3, 3, dtype=torch.float64, device="tpu", requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: (t @ t).tanh().sum(), x)


def test_gradcheck_of_complex_products():
    x = torch.randn(3, 3, dtype=torch.complex128, device="tpu", requires_grad=True)
    assert torch.autograd.gradcheck(lambda t: torch.linalg.solve(t @ t.mH + 4 * torch.eye(3, device="tpu"), t), x)


def test_forward_gradients_of_products_with_a_constant():
    """The missing tangent is a tensor of zeros without memory, which `dot` gets as it is."""
    import torch.autograd.forward_ad as forward

    a, b, tangent = torch.randn(3, device="tpu"), torch.randn(3, device="tpu"), torch.randn(3, device="tpu")
    with forward.dual_level():
        dual = forward.make_dual(a, tangent)
        for result in (torch.dot(dual, b), torch.dot(b, dual), torch.matmul(b, dual)):
            torch.testing.assert_close(forward.unpack_dual(result).tangent.cpu(), tangent.cpu() @ b.cpu())
