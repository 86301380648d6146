"""Reductions, scans, orderings and softmax agree with PyTorch's CPU kernels."""

import importlib

import pytest
import torch
from lowering_harness import Call, capture, check, check_all, opinfos_for, run

MODULES = {f"systolic.ops.{name}" for name in ("reductions", "scans", "ordering", "softmax")}
for module in MODULES:
    importlib.import_module(module)

DTYPES = (torch.float32, torch.int64, torch.bool, torch.bfloat16)
NAN, INF = float("nan"), float("inf")


def ours(call: Call) -> bool:
    record = call.record()
    return record is not None and record.fn.__module__ in MODULES


# Relative tolerance where the default of torch.testing for the dtype is too narrow, and why.
LOOSE = {
    # PyTorch's CPU kernel rounds the shifted input to bfloat16 before it subtracts the logarithm.
    ("log_softmax", torch.bfloat16): 4e-2,
    ("masked.log_softmax", torch.bfloat16): 4e-2,
    # PyTorch's CPU kernels keep the running value of a scan in bfloat16.
    ("cumsum", torch.bfloat16): 4e-2,
    ("cumprod", torch.bfloat16): 8e-2,
}


def sampled(opinfo) -> dict[torch.dtype, list[Call]]:
    """A few distinct calls for each dtype; float32 also with its gradient operators."""
    calls = {}
    for dtype in DTYPES:
        if dtype in opinfo.dtypes:
            full = dtype == torch.float32
            found = capture(opinfo, dtype, samples=6, backward=full and opinfo.supports_autograd, keep=ours)
            calls[dtype] = found[: 6 if full else 3]
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
        failures += check_all(calls[dtype], rtol=rtol, atol=1e-2)
    assert not failures, "\n".join(failures)


def check_each(calls: list[tuple]) -> None:
    """Check ``(op, *args)`` or ``(op, *args, {keywords})`` tuples in one program."""
    made = []
    for op, *rest in calls:
        kwargs = rest.pop() if rest and isinstance(rest[-1], dict) else {}
        made.append(Call(f"aten::{op}", tuple(rest), kwargs))
    failures = check_all(made)
    assert not failures, "\n".join(failures)


WITH_NAN = torch.tensor([[1.0, NAN, 3.0, NAN, 2.0], [5.0, 1.0, 5.0, 1.0, 2.0], [-INF, INF, -0.0, 0.0, -1.0]])


def test_dims_keepdim_and_result_types():
    x = torch.arange(24).reshape(2, 3, 4)
    narrow = torch.full((2, 3), 100, dtype=torch.int8)
    calls = [
        (op, x, dim, keep)
        for op in ("sum.dim_IntList", "amax", "any.dims")
        for dim in ([-1], [0, -2], [])
        for keep in (False, True)
    ]
    calls += [("sum", narrow), ("sum", narrow > 0), ("prod", narrow), ("prod.dim_int", narrow, -1, True)]
    calls += [("sum", narrow, {"dtype": torch.int8}), ("mean", narrow, {"dtype": torch.float64})]
    calls += [
        ("sum", torch.tensor([1.7, 1.7]), {"dtype": torch.int64}),
        ("cumsum", narrow > 0, 0),
        ("cumprod", narrow, 1),
    ]
    calls += [
        ("any", narrow.to(torch.uint8)),
        ("all.dim", narrow.to(torch.uint8), 1),
        ("sum.dim_IntList", x, None, True),
    ]
    calls += [
        ("count_nonzero.dim_IntList", x, [0, 2]),
        ("count_nonzero", x),
        ("argmax", x, None, True),
        ("argmin", x, -1),
    ]
    calls += [("max.other", x, torch.tensor(7)), ("min.other", x.float(), torch.tensor(7.5).double())]
    calls += [
        ("_is_all_true", narrow > 0),
        ("_is_any_true", narrow < 0),
        ("_aminmax", x),
        ("aminmax", x, {"dim": 1}),
    ]
    check_each(calls)


def test_sixteen_bit_sums_accumulate_in_float32():
    """10000 times 1 in bfloat16 stops at 256 when the running sum is bfloat16."""
    ones = torch.ones(10000, dtype=torch.bfloat16)
    check("aten::sum", ones, rtol=0, atol=0)
    check("aten::mean", ones, rtol=0, atol=0)
    check("aten::linalg_vector_norm", ones, rtol=0, atol=0)


def test_nan_and_ties():
    calls = [
        (op, WITH_NAN)
        for op in ("max", "min", "amax", "amin", "argmax", "argmin", "aminmax", "median", "nanmedian")
    ]
    calls += [
        (op, WITH_NAN) for op in ("sum", "nansum", "prod", "any", "all", "count_nonzero", "var.correction")
    ]
    calls += [
        (op, WITH_NAN, 1)
        for op in ("max.dim", "min.dim", "argmax", "argmin", "median.dim", "nanmedian.dim", "sort")
    ]
    calls += [(op, WITH_NAN, 1) for op in ("cummax", "cummin", "cumsum", "cumprod", "logcumsumexp", "mode")]
    calls += [("sort.stable", WITH_NAN, {"stable": True, "dim": 1, "descending": d}) for d in (False, True)]
    calls += [("topk", WITH_NAN, 4, 1, largest) for largest in (False, True)]
    calls += [("kthvalue", WITH_NAN, k, 1) for k in (1, 3, 5)]
    calls += [("logsumexp", torch.tensor([[-INF, -INF], [INF, 1.0], [1.0, NAN]]), [1])]
    calls += [("max.dim", torch.tensor([[False, True, True], [False, False, False]]), 1)]
    check_each(calls)


def test_negative_nan_ranks_with_nan():
    """x86 gives 0/0 a set sign bit; the order of NaN must not depend on it."""
    x = torch.tensor([1.0, 2.0, 3.0])
    x = torch.stack([x, -torch.full((3,), NAN), x + 1]).t().contiguous()
    check_each(
        [
            ("topk", x, 2, 1, True),
            ("topk", x, 2, 1, False),
            ("sort", x, 1),
            ("sort", x, 1, True),
            ("max.dim", x, 1),
        ]
    )


def test_sort_of_each_type():
    """Types of at most 32 bits and wider ones take different ways; zeros of both signs are equal."""
    x = torch.tensor([3.0, -0.0, 0.0, -2.5, 1e-40, -1e-40, INF, 3.0, -INF, NAN, -0.0])
    calls = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        calls += [("sort.stable", x.to(dtype), {"stable": True, "descending": d}) for d in (False, True)]
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool):
        limits = [0, 1] if dtype == torch.bool else [torch.iinfo(dtype).min, torch.iinfo(dtype).max]
        calls.append(("sort.stable", torch.tensor([*limits, 1, 0, *limits]).to(dtype), {"stable": True}))
    check_each(calls)
    big = torch.tensor([2**32 - 1, 0, 2**31, 5], dtype=torch.uint32)
    assert run(Call("aten::sort", (big,)))[1].tolist() == [1, 3, 2, 0]


def test_equal_values_keep_the_order_of_their_indices():
    x = torch.tensor([2, 7, 7, 2, 7, 0])
    check_each([("sort.stable", x, {"stable": True, "descending": d}) for d in (False, True)])
    assert run(Call("aten::topk", (x, 4)))[1].tolist() == [1, 2, 4, 0]
    assert run(Call("aten::topk", (x, 3, 0, False)))[1].tolist() == [5, 0, 3]
    assert run(Call("aten::topk", (torch.tensor([True, False, True]), 2)))[1].tolist() == [0, 2]
    assert run(Call("aten::topk", (torch.tensor([-128, 127, -128], dtype=torch.int8), 2, 0, False)))[
        1
    ].tolist() == [0, 2]
    assert run(Call("aten::median.dim", (torch.tensor([1, 1, 1, 0, 2]), 0)))[1].tolist() == 1


def test_zero_dim_and_empty():
    scalar, empty = torch.tensor(3.0), torch.ones(0, 3)
    calls = [
        (op, scalar, 0)
        for op in ("max.dim", "argmax", "cumsum", "cummax", "logcumsumexp", "sort", "median.dim", "mode")
    ]
    calls += [(op, scalar, -1, True) for op in ("prod.dim_int", "any.dim", "argmin", "mode", "min.dim")]
    calls += [
        ("topk", scalar, 1),
        ("kthvalue", scalar, 1),
        ("_softmax", scalar, 0, False),
        ("_log_softmax", scalar, 0, False),
    ]
    calls += [("logsumexp", scalar, [0]), ("var.correction", scalar), ("linalg_vector_norm", scalar, 3)]
    calls += [
        (op, empty)
        for op in ("sum", "mean", "prod", "any", "all", "var.correction", "median", "count_nonzero", "nansum")
    ]
    calls += [(op, empty, 0) for op in ("cumsum", "cumprod", "cummax", "sort", "any.dim", "logcumsumexp")]
    calls += [
        ("amax", empty, [1]),
        ("max.dim", empty, 1),
        ("logsumexp", empty, [0]),
        ("_softmax", empty, 1, False),
    ]
    calls += [("linalg_vector_norm", empty, ord) for ord in (0, 1, 2, INF)]
    calls += [
        ("median", torch.ones(0, dtype=torch.int64)),
        ("topk", torch.ones(2, 3), 0),
        ("kthvalue", torch.ones(0, 3), 1, 1),
    ]
    calls += [("_softmax_backward_data", scalar, scalar, 0, torch.float32)]
    check_each(calls)


def test_moments():
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)) + 1000  # cancels in a one-pass formula
    calls = [
        (f"{op}.correction", x, [1], {"correction": c, "keepdim": True})
        for op in ("var", "std", "var_mean", "std_mean")
        for c in (0, 1.5)
    ]
    calls += [("var.correction", x[:, :2], [1], {"correction": 5}), ("var.correction", x[:, :1], [1])]
    calls += [("var_mean.correction", torch.complex(x, -x), [0])]
    failures = check_all(
        [Call(f"aten::{op}", args[:2], args[2] if len(args) > 2 else {}) for op, *args in calls],
        rtol=1e-4,
        atol=1e-5,
    )
    assert not failures, "\n".join(failures)


def test_norms():
    x = torch.tensor([[0.0, -3.0, 4.0], [1.0, 2.0, -2.0]])
    calls = [
        (op, x, ord, [1], True) for op in ("linalg_vector_norm", "linalg__powsum") for ord in (1, 2, 3, 0.5)
    ]
    calls += [("linalg_vector_norm", x, ord, [0]) for ord in (0, INF, -INF, -1)]
    calls += [
        ("linalg_vector_norm", torch.complex(x, x), 2),
        ("linalg_vector_norm", x, 2, None, {"dtype": torch.float64}),
    ]
    calls += [
        ("norm.Scalar", x, 2),
        ("norm.ScalarOpt_dim", x, None, [1]),
        ("norm.ScalarOpt_dtype", x, 1, {"dtype": torch.float64}),
    ]
    check_each(calls)


def test_softmax_rows():
    x = torch.tensor([[1.0, 2.0, -INF], [-INF, -INF, -INF], [1e4, 0.0, 1e4]])
    mask = torch.tensor([[True, False, False], [True, True, True], [False, False, False]])
    calls = [(op, x, dim, False) for op in ("_softmax", "_log_softmax") for dim in (0, -1)]
    calls += [("_safe_softmax", x, 1), ("_safe_softmax", x[:1], 1, torch.float64)]
    calls += [("_masked_softmax", torch.randn(3, 3), mask, 1, 2)]
    grad, probabilities = torch.randn(3, 3), torch.softmax(torch.randn(3, 3), 1)
    calls += [("_softmax_backward_data", grad, probabilities, 1, torch.float32)]
    calls += [("_log_softmax_backward_data", grad, probabilities.log(), 0, torch.float32)]
    calls += [("_masked_softmax_backward", grad, probabilities, mask, 1)]
    calls += [("_logcumsumexp", x, 1)]
    check_each(calls)


def test_masked_softmax_masks_of_attention():
    scores = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    causal = torch.ones(4, 4).triu(1).bool()
    padding = torch.tensor([[False, False, False, True], [False, True, True, True]])
    check_each([("_masked_softmax", scores, causal, -1, 0), ("_masked_softmax", scores, padding, -1, 1)])
    check_each([("_masked_softmax", scores, causal.expand(2, 3, 4, 4).contiguous(), -1, 2)])


def test_scans_name_the_last_of_equal_values():
    x = torch.tensor([[1, 3, 3, 2], [2, 1, 1, 1]])
    check_each([(op, x, dim) for op in ("cummax", "cummin", "cumsum", "cumprod") for dim in (0, -1)])
