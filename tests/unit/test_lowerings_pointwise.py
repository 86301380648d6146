"""Pointwise and activation lowerings agree with PyTorch's CPU kernels."""

import importlib

import pytest
import torch
from lowering_harness import Call, capture, check, check_all, opinfos_for, run

MODULES = {
    f"systolic.ops.{name}"
    for name in (
        "pointwise_unary",
        "pointwise_special",
        "pointwise_binary",
        "pointwise_logic",
        "pointwise_select",
        "activations",
    )
}
for module in MODULES:
    importlib.import_module(module)

DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16)
NAN, INF = float("nan"), float("inf")
SMALLEST = torch.iinfo(torch.int64).min


def ours(call: Call) -> bool:
    record = call.record()
    return record is not None and record.fn.__module__ in MODULES


# Relative tolerance where the default of torch.testing for the dtype is too narrow, and why.
LOOSE = {
    ("polygamma", torch.float32): 1e-4,  # a float32 series with terms of both signs
    ("special.polygamma", torch.float32): 1e-4,
    ("special.zeta", torch.float32): 1e-4,
    ("logit", torch.bfloat16): 4e-2,  # PyTorch rounds 1 - x to bfloat16 before it divides
}


def sampled(opinfo) -> dict[torch.dtype, list[Call]]:
    """A few distinct calls for each dtype; float32 also with its gradient operators."""
    calls = {}
    for dtype in DTYPES:
        if dtype in opinfo.dtypes:
            full = dtype == torch.float32
            found = capture(opinfo, dtype, samples=2, backward=full and opinfo.supports_autograd, keep=ours)
            calls[dtype] = found[: 4 if full else 1]
    return calls


@pytest.mark.long  # the default tests run such samples through the device: tests/conformance
@pytest.mark.parametrize("opinfo", opinfos_for(MODULES), ids=lambda o: o.full_name)
def test_opinfo_samples(opinfo):
    calls = sampled(opinfo)
    if not any(calls.values()):
        pytest.skip("its samples reach no operator of these modules")
    loose = {dtype: rtol for (name, dtype), rtol in LOOSE.items() if name == opinfo.name and calls.get(dtype)}
    failures = check_all([call for dtype, some in calls.items() if dtype not in loose for call in some])
    for dtype, rtol in loose.items():
        failures += check_all(calls[dtype], rtol=rtol, atol=1e-5)
    assert not failures, "\n".join(failures)


def both(op, *args, **kwargs):
    """:func:`check` for the same arguments in float32 and float64."""
    for dtype in (torch.float32, torch.float64):
        check(op, *(a.to(dtype) if isinstance(a, torch.Tensor) else a for a in args), **kwargs)


def test_integer_division_rounds_as_asked():
    a, b = torch.tensor([7, -7, 7, -7, 0, SMALLEST]), torch.tensor([2, 2, -2, -2, 3, 3])
    for mode in (None, "trunc", "floor"):
        check("aten::div.Tensor_mode", a, b, rounding_mode=mode)
    check("aten::floor_divide", a, b)
    check("aten::remainder.Tensor", a, b)
    check("aten::fmod.Tensor", a, b)
    check("aten::remainder.Scalar_Tensor", -7, b)
    check("aten::div.Tensor", a, b)
    check(
        "aten::floor_divide",
        torch.tensor([7, 250], dtype=torch.uint8),
        torch.tensor([2, 7], dtype=torch.uint8),
    )


def test_integer_division_by_zero_follows_the_documented_rule():
    """PyTorch raises here; a program cannot, so the rule of pointwise_binary's docstring holds."""
    a, zero = torch.tensor([5, -5, 0]), torch.zeros(3, dtype=torch.int64)
    for op, expected in (("aten::fmod.Tensor", [5, -5, 0]), ("aten::remainder.Tensor", [5, -5, 0])):
        assert run(Call(op, (a, zero)))[0].tolist() == expected
    assert run(Call("aten::div.Tensor_mode", (a, zero), {"rounding_mode": "trunc"}))[0].tolist() == [
        -1,
        -1,
        -1,
    ]
    assert run(Call("aten::floor_divide", (a, zero)))[0].tolist() == [-1, -2, -1]


def test_float_division_at_the_edges():
    a = torch.tensor([5.0, -5.0, INF, 1.0, -1.0, 0.0, -0.0, 0.3, NAN, -1e-30])
    b = torch.tensor([INF, 3.0, 2.0, 0.0, 0.0, -2.0, 4.0, 0.1, 1.0, 3.0])
    both("aten::floor_divide", a, b)
    both("aten::remainder.Tensor", a, b)
    both("aten::fmod.Tensor", a, b)
    both("aten::div.Tensor_mode", a, b, rounding_mode="trunc")


def test_promotion_of_scalars_and_zero_dim_tensors():
    integers, narrow = torch.arange(4), torch.ones(3, dtype=torch.bfloat16)
    check("aten::add.Tensor", integers, 2.5)
    check("aten::add.Tensor", integers, torch.tensor(2.5, dtype=torch.float64))
    check("aten::mul.Tensor", narrow, torch.tensor(0.1))
    check("aten::add.Tensor", torch.tensor([True, False]), 3)
    check("aten::add.Tensor", torch.tensor([1, 2], dtype=torch.int8), 300)
    check("aten::add_.Tensor", narrow, torch.full((3,), 0.01))
    check("aten::div.Tensor", torch.tensor([3, 4], dtype=torch.int32), 2)
    check("aten::sub.Tensor", integers, torch.tensor([1, 2, 3, 4], dtype=torch.int32), alpha=3)
    check("aten::rsub.Scalar", torch.tensor(4.0), 2, 3)
    check("aten::mul.Tensor", torch.ones(2), 1 + 2j)
    check("aten::add.Tensor", torch.ones(0, 3), torch.ones(3))
    check("aten::clamp", integers, min=0.5)
    check("aten::lt.Scalar", narrow * 0.1, 0.1)
    check("aten::eq.Scalar", narrow * 0.1, 0.1)


def test_shift_distances_out_of_range():
    a = torch.tensor([-8, 8, -1, 1, SMALLEST, 5])
    distance = torch.tensor([70, -1, 64, 63, 1, 2])
    for op in (
        "bitwise_left_shift.Tensor",
        "bitwise_right_shift.Tensor",
        "__lshift__.Tensor",
        "__rshift__.Tensor",
    ):
        check(f"aten::{op}", a, distance)
    check("aten::__ilshift__.Scalar", a, 3)
    check("aten::bitwise_right_shift.Tensor_Scalar", torch.tensor([200, 3], dtype=torch.uint8), 9)


def test_powers():
    x = torch.tensor([-2.0, -0.0, 0.0, 0.5, 3.0, NAN, INF])
    for exponent in (0, 1, 2, 3, 0.5, -0.5, -1, -2, 2.5, -3):
        both("aten::pow.Tensor_Scalar", x, exponent)
    check("aten::pow.Tensor_Tensor", x, torch.tensor([3.0, -1.0, 0.0, INF, NAN, 0.0, -1.0]))
    check("aten::pow.Tensor_Scalar", torch.tensor([-3, 2, 10]), 5)
    check("aten::pow.Tensor_Scalar", torch.tensor([-3, 2, 10]), 0.5)
    check(
        "aten::pow.Tensor_Tensor", torch.tensor([3, -1, 1, -1, 7, 2]), torch.tensor([40, -3, -5, -4, 0, 63])
    )
    check("aten::pow.Scalar", 2, torch.arange(5))
    check(
        "aten::pow.Tensor_Tensor",
        torch.tensor([True, True, False, False]),
        torch.tensor([True, False, True, False]),
    )


def test_nan_and_signed_zero():
    x = torch.tensor([NAN, -0.0, 0.0, INF, -INF, -2.0])
    y = torch.tensor([1.0, NAN, -0.0, NAN, 3.0, -2.0])
    for op in ("maximum", "minimum", "fmax", "fmin", "copysign.Tensor", "heaviside", "hypot", "atan2"):
        both(f"aten::{op}", x, y)
    for op in ("logaddexp", "logaddexp2", "xlogy.Tensor", "special_xlog1py", "nextafter"):
        both(f"aten::{op}", x, y)
    for op in (
        "sign",
        "sgn",
        "signbit",
        "isnan",
        "isinf",
        "isposinf",
        "isneginf",
        "relu",
        "round",
        "digamma",
        "angle",
    ):
        both(f"aten::{op}", x)
    for op in (
        "logical_not",
        "nan_to_num",
        "hardtanh",
        "hardswish",
        "hardsigmoid",
        "softshrink",
        "hardshrink",
    ):
        both(f"aten::{op}", x)
    both("aten::logical_and", x, y)
    both("aten::threshold", x, 0.5, 7)
    both("aten::clamp.Tensor", x, torch.tensor(1.0), y)
    check("aten::clamp", torch.arange(6), 4, 2)
    check("aten::logaddexp", torch.tensor([INF, -INF]), torch.tensor([INF, -INF]))


def test_rounding_is_half_to_even_and_log2_is_exact():
    x = torch.tensor([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1234.5678])
    check("aten::round", x)
    for decimals in (-2, 1, 2):
        check("aten::round.decimals", x, decimals=decimals)
    for op in ("round", "floor", "ceil", "trunc"):
        check(f"aten::{op}", torch.tensor([3, -3]))
    check("aten::log2", 2.0 ** torch.arange(-40, 60), rtol=0, atol=0)
    check("aten::log2", torch.tensor([0.0, -1.0, INF, NAN, 1.0000001, 0.9999999, 0.70710678]))


def test_complex_parts():
    z = torch.tensor([3 + 4j, 0j, -1 - 1j, complex(0, -2)])
    for op in (
        "abs",
        "angle",
        "sgn",
        "neg",
        "reciprocal",
        "exp",
        "_conj_physical",
        "sigmoid",
        "tanh",
        "isnan",
        "isinf",
    ):
        check(f"aten::{op}", z)
    check("aten::conj_physical_", z)
    check("aten::nan_to_num", torch.tensor([complex(NAN, INF), complex(-INF, 1)]))
    check("aten::complex", torch.ones(2, 1), torch.arange(3.0))
    check("aten::polar", torch.tensor([1.0, 2.0]), torch.tensor([0.5, -3.0]))
    check("aten::mul.Tensor", z, torch.ones(4))
    check("aten::masked_fill.Scalar", z, z.real > 0, 2j)
    check("aten::logical_or", z, torch.tensor(False))


def test_zero_dim_and_empty():
    for op in ("neg", "exp", "relu", "gelu", "isnan", "bitwise_not"):
        dtype = torch.int64 if op == "bitwise_not" else torch.float32
        check(f"aten::{op}", torch.tensor(3, dtype=dtype))
        check(f"aten::{op}", torch.ones(0, 2, dtype=dtype))
    check("aten::where.self", torch.tensor(True), torch.ones(0), torch.tensor(2))
    check(
        "aten::masked_fill.Tensor",
        torch.ones(3, 1),
        torch.tensor([True, False]),
        torch.tensor(5.0, dtype=torch.float64),
    )


GRADIENTS = {
    "silu_backward": (),
    "mish_backward": (),
    "sigmoid_backward": (),
    "tanh_backward": (),
    "hardswish_backward": (),
    "hardsigmoid_backward": (),
    "threshold_backward": (0.5,),
    "hardtanh_backward": (-1, 1),
    "leaky_relu_backward": (0.2, False),
    "softplus_backward": (2, 3),
    "hardshrink_backward": (0.5,),
    "softshrink_backward": (0.5,),
    "logit_backward": (0.1,),
    "gelu_backward": (),
}


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_gradient_operators(dtype):
    torch.manual_seed(0)
    x = torch.tensor([-4.0, -3.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0, 3.0, 25.0, NAN]).to(dtype)
    grad = torch.randn(11).to(dtype)
    calls = [Call(f"aten::{name}", (grad, x, *numbers)) for name, numbers in GRADIENTS.items()]
    calls.append(Call("aten::gelu_backward", (grad, x), {"approximate": "tanh"}))
    calls += [Call("aten::elu_backward", (grad, 0.7, 1.5, 2.0, is_result, x)) for is_result in (False, True)]
    calls.append(Call("aten::log_sigmoid_backward", (grad, x, torch.exp(-x.abs()))))
    calls.append(Call("aten::_prelu_kernel_backward", (grad, x, torch.tensor([0.3]).to(dtype))))
    calls.append(Call("aten::glu_backward", (grad[:5], x[:10], 0)))
    # Near a gradient's zero bfloat16 keeps few correct bits on either side.
    failures = check_all(
        calls, atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=2e-6 if dtype == torch.float32 else 2e-2
    )
    assert not failures, "\n".join(failures)
