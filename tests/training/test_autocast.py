"""torch.autocast("tpu"): which operators change dtype, nesting, and what gradients keep."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

LOW = [torch.bfloat16, torch.float16]


def ones(*shape, dtype=torch.float32):
    return torch.ones(*shape, device="tpu", dtype=dtype)


LOWER = {
    "mm": lambda: ones(4, 4).mm(ones(4, 4)),
    "matmul": lambda: ones(2, 4, 4) @ ones(4, 4),
    "bmm": lambda: ones(2, 4, 4).bmm(ones(2, 4, 4)),
    "addmm": lambda: torch.addmm(ones(4), ones(4, 4), ones(4, 4)),
    "einsum": lambda: torch.einsum("ij,jk->ik", ones(4, 4), ones(4, 4)),
    "linear": lambda: F.linear(ones(2, 4), ones(3, 4), ones(3)),
    "conv2d": lambda: F.conv2d(ones(1, 2, 5, 5), ones(3, 2, 3, 3)),
    "attention": lambda: F.scaled_dot_product_attention(*(ones(1, 2, 4, 8) for _ in range(3))),
}
FLOAT32 = {
    "exp": lambda x: x.exp(),
    "log": lambda x: x.log(),
    "pow": lambda x: x.pow(2.0),
    "rsqrt": lambda x: x.rsqrt(),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "sum": lambda x: x.sum(),
    "cumsum": lambda x: x.cumsum(0),
    "norm": lambda x: x.norm(),
    "layer_norm": lambda x: F.layer_norm(x, (4,)),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "nll_loss": lambda x: F.nll_loss(x, torch.zeros(4, dtype=torch.int64, device="tpu")),
}


@pytest.mark.parametrize("low", LOW, ids=str)
def test_operators_that_run_in_lower_precision(low):
    with torch.autocast("tpu", low):
        for name, call in LOWER.items():
            assert call().dtype == low, name


@pytest.mark.parametrize("low", LOW, ids=str)
def test_operators_that_run_in_float32(low):
    with torch.autocast("tpu", low):
        for name, call in FLOAT32.items():
            assert call(ones(4, 4, dtype=low)).dtype == torch.float32, name


@pytest.mark.parametrize("low", LOW, ids=str)
def test_operators_that_take_the_widest_type_and_those_left_alone(low):
    with torch.autocast("tpu", low):
        narrow, wide = ones(4, 4, dtype=low), ones(4, 4)
        assert torch.cat([narrow, wide]).dtype == torch.float32
        assert torch.addcmul(narrow, wide, narrow).dtype == torch.float32
        assert narrow.relu().dtype == low and wide.relu().dtype == torch.float32
        assert (narrow + wide).dtype == torch.float32  # type promotion, not autocast
        doubles = torch.ones(4, 4, device="tpu", dtype=torch.float64)
        assert doubles.mm(doubles).dtype == torch.float64
        assert torch.ones(4, 4).mm(torch.ones(4, 4)).dtype == torch.float32  # a CPU tensor


def test_values_are_those_of_explicit_casts():
    torch.manual_seed(0)
    x, w = torch.randn(8, 16, device="tpu"), torch.randn(4, 16, device="tpu")
    with torch.autocast("tpu", torch.bfloat16):
        found = F.linear(x, w)
    assert torch.equal(found, F.linear(x.bfloat16(), w.bfloat16()))


def test_nested_and_disabled_regions():
    a = ones(4, 4)
    assert not torch.is_autocast_enabled("tpu")
    with torch.autocast("tpu", torch.bfloat16):
        assert torch.is_autocast_enabled("tpu") and torch.get_autocast_dtype("tpu") == torch.bfloat16
        with torch.autocast("tpu", torch.float16):
            assert a.mm(a).dtype == torch.float16
            with torch.autocast("tpu", enabled=False):
                low = a.half()
                assert a.mm(a).dtype == torch.float32 and low.mm(low).dtype == torch.float16
            assert a.mm(a).dtype == torch.float16
        assert a.mm(a).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("tpu") and a.mm(a).dtype == torch.float32


def test_default_dtype_decorator_and_refused_dtype():
    @torch.autocast("tpu")
    def product(x):
        return x.mm(x)

    assert product(ones(4, 4)).dtype == torch.get_autocast_dtype("tpu")
    with pytest.warns(UserWarning, match="tpu"):
        with torch.autocast("tpu", torch.float64):
            assert ones(4, 4).mm(ones(4, 4)).dtype == torch.float32


@pytest.mark.parametrize("low", LOW, ids=str)
def test_gradients_keep_the_dtype_of_their_parameters(low):
    layer = torch.nn.Linear(4, 3).to("tpu")
    with torch.autocast("tpu", low):
        first = layer(ones(2, 4))
        second = layer(ones(2, 4))  # the cast of the weight is made once and shared
        loss = (first + second).float().sum()
    loss.backward()
    assert layer.weight.grad.dtype == torch.float32
    assert torch.equal(layer.weight.grad.cpu(), torch.full((3, 4), 4.0))


def test_custom_functions():
    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tpu", cast_inputs=torch.float32)
        def forward(ctx, x):
            assert not torch.is_autocast_enabled("tpu")
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @torch.amp.custom_bwd(device_type="tpu")
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 2 * x * grad

    x = ones(3, dtype=torch.bfloat16).requires_grad_()
    with torch.autocast("tpu", torch.bfloat16):
        y = Square.apply(x)
    assert y.dtype == torch.float32
    y.sum().backward()
    assert x.grad.dtype == torch.bfloat16 and x.grad.tolist() == [2, 2, 2]


def test_autocast_inside_a_compiled_function():
    def product(x):
        with torch.autocast("tpu", torch.bfloat16):
            return x.mm(x).softmax(-1)

    x = torch.linspace(-1, 1, 16, device="tpu").view(4, 4)
    found = torch.compile(product)(x)
    assert found.dtype == torch.float32
    # One program may keep more bits between the operators than bfloat16's eight.
    torch.testing.assert_close(found, product(x), rtol=2e-2, atol=2e-3)
