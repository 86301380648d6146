"""Results of compiled graphs that are views: their values, their strides, and whose storage they share."""

import pytest
import torch

CASES = {
    "slice from a symbol": lambda a: (a[a.shape[0] // 2 :], a * 2),
    "expanded by a symbol": lambda a: (a[0].expand(a.shape[0] * 2, 3),),
    "two slices of a new tensor": lambda a: ((b := a + 1)[a.shape[0] // 2 :], b[a.shape[0] - 1 :]),
    "expanded new tensor": lambda a: ((a + 1)[0].expand(a.shape[0], 3), a),
    "fixed views": lambda a: (a[2:], a[1::2], a.t(), a.expand(2, 4, 3), *a.unbind(1), a.unfold(0, 2, 1)),
    "meshgrid": lambda a: torch.meshgrid(a[0], a.reshape(-1)[5], a[:, 1], indexing="ij"),
}


def pointer(t):
    return torch.tpu._C.array_of(t).unsafe_buffer_pointer()


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [True, False], ids=["dynamic", "static"])
@pytest.mark.parametrize("function", CASES.values(), ids=CASES)
def test_views_have_the_values_and_gradients_of_eager(function, dynamic):
    start = torch.arange(12.0).reshape(4, 3)
    inputs = start.clone().requires_grad_(), start.tpu().requires_grad_()
    want = function(inputs[0])
    got = torch.compile(function, dynamic=dynamic)(inputs[1])
    for w, g in zip(want, got, strict=True):
        torch.testing.assert_close(g.detach().cpu(), w.detach(), rtol=0, atol=0)
        assert g.stride() == w.stride() and g.requires_grad == w.requires_grad
    for results in (want, got):
        sum((i + 1) * (t * t).sum() for i, t in enumerate(results)).backward()
    torch.testing.assert_close(inputs[1].grad.cpu(), inputs[0].grad)


def test_a_view_of_a_written_input_sees_the_new_values():
    def function(a):
        before = a * 1
        a.add_(1)
        return a[a.shape[0] // 2 :], before[a.shape[0] // 2 :]

    x = torch.arange(12.0).reshape(4, 3)
    y = x.tpu()
    got, want = torch.compile(function, dynamic=True)(y), function(x)
    for g, w in zip((*got, y), (*want, x)):
        assert torch.equal(g.cpu(), w)
    y.zero_()
    assert got[0].tolist() == [[0.0] * 3] * 2 and torch.equal(got[1].cpu(), want[1])


def test_what_is_saved_for_the_backward_pass_is_not_copied():
    weight = torch.randn(64, 64).tpu().requires_grad_()
    x = torch.randn(8, 64).tpu()
    out = torch.compile(lambda x, w: (x @ w) @ w)(x, weight)
    saved = [t for t in out.grad_fn.saved_tensors if t.shape == (64, 64)]
    assert saved and all(pointer(t) == pointer(weight) for t in saved)


def test_a_saved_input_that_is_written_is_an_error_in_the_backward_pass():
    x = torch.randn(4, 4).tpu()
    w = torch.randn(4, 4).tpu().requires_grad_()
    out = torch.compile(lambda x, w: x @ w)(x, w)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


CONJUGATES = {
    "input": lambda a: a.conj(),
    "new tensor": lambda a: (a + 1).conj(),
    "imaginary part of a conjugate": lambda a: (a * 2).conj().imag,
    "product with a conjugate": lambda a: a.conj() @ a,
}


@pytest.mark.parametrize("function", CONJUGATES.values(), ids=CONJUGATES)
def test_conjugation_stays_in_the_program(function):
    x = torch.randn(3, 3, dtype=torch.complex64)
    before = dict(torch.tpu.fallbacks())
    got = torch.compile(function, fullgraph=True)(x.tpu())
    torch.testing.assert_close(got.cpu().resolve_conj().resolve_neg(), function(x).resolve_conj().resolve_neg())
    assert dict(torch.tpu.fallbacks()) == before


def test_as_strided_reads_the_storage_behind_an_input():
    stored = torch.arange(20.0)
    part, got = stored[5:15], stored.tpu()[5:15]
    function = lambda a: a.as_strided((2, 3), (4, 1), 1) * 2 + a[:3]  # noqa: E731
    assert torch.equal(torch.compile(function)(got).cpu(), function(part))
    turned = lambda a: (a.t() + 1).as_strided((4, 2), (2, 1)).clone()  # noqa: E731
    x = torch.arange(8.0).reshape(4, 2)
    assert torch.equal(torch.compile(turned)(x.tpu()).cpu(), turned(x))


def test_an_lstm_without_biases_is_traced():
    module = torch.nn.LSTM(3, 4, bias=False)
    x = torch.randn(5, 2, 3)
    want = module(x)[0]
    torch.testing.assert_close(torch.compile(module.tpu())(x.tpu())[0].cpu(), want)
