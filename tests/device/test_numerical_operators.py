"""Operators whose formulas are this project's own: against known values, and without a fallback to the CPU."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def no_fallback():
    before = torch.tpu.fallbacks()
    yield
    assert torch.tpu.fallbacks() == before


# Abramowitz and Stegun, tables 9.1, 9.8 and 10.11.
KNOWN = [
    ("bessel_j0", 5.4, -0.0412101012), ("bessel_j1", 1.0, 0.4400505857), ("bessel_y0", 1.0, 0.0882569642),
    ("bessel_y1", 2.0, -0.1070324315), ("modified_bessel_k0", 1.0, 0.4210244382),
    ("modified_bessel_k1", 2.0, 0.1398658818), ("scaled_modified_bessel_k0", 2.0, 0.8415682151),
    ("airy_ai", 1.0, 0.1352924163), ("airy_ai", -2.0, 0.2274074283), ("airy_ai", -5.0, 0.3507610090),
    ("erfcx", 2.0, 0.2553956763),
]  # fmt: skip


@pytest.mark.parametrize("name, x, value", KNOWN)
def test_special_functions(name, x, value):
    got = getattr(torch.special, name)(torch.tensor([x], dtype=torch.float64, device="tpu")).item()
    assert abs(got - value) < 1e-9  # the tables have ten digits


def test_forward_gradient_of_one_operand():
    import torch.autograd.forward_ad as forward

    with forward.dual_level():
        x = forward.make_dual(torch.ones(3, device="tpu"), torch.full((3,), 2.0, device="tpu"))
        result = forward.unpack_dual(torch.cat([x * 3, torch.ones(1, device="tpu")]))
    assert result.tangent.tolist() == [6.0, 6.0, 6.0, 0.0]


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
def test_fourier_round_trip(norm):
    x = torch.randn(3, 5, 6, dtype=torch.float64)
    spectrum = torch.fft.rfftn(x.to("tpu"), norm=norm)
    torch.testing.assert_close(spectrum.cpu(), torch.fft.rfftn(x, norm=norm))
    torch.testing.assert_close(torch.fft.irfftn(spectrum, s=x.shape, norm=norm).cpu(), x)


def test_ldl_with_blocks_of_two_rows():
    a = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, 3.0], [2.0, 3.0, 0.0]], dtype=torch.float64)
    b = torch.tensor([[1.0], [2.0], [3.0]], dtype=torch.float64)
    factors, pivots = torch.linalg.ldl_factor(a.to("tpu"))
    want, want_pivots = torch.linalg.ldl_factor(a)
    assert pivots.tolist() == want_pivots.tolist() and min(pivots.tolist()) < 0
    torch.testing.assert_close(factors.cpu(), want)
    torch.testing.assert_close(a @ torch.linalg.ldl_solve(factors, pivots, b.to("tpu")).cpu(), b)


def test_least_squares_of_deficient_rank():
    a = torch.tensor([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]], dtype=torch.float64)
    b = torch.tensor([[1.0], [0.0], [2.0]], dtype=torch.float64)
    got, want = torch.linalg.lstsq(a.to("tpu"), b.to("tpu")), torch.linalg.lstsq(a, b)
    torch.testing.assert_close(got.solution.cpu(), want.solution)
    assert got.rank.item() == 1 and got.residuals.numel() == 0


def test_ctc_loss_of_an_impossible_target():
    log_probs = torch.randn(2, 2, 3).log_softmax(-1)
    targets, inputs, lengths = torch.tensor([[1, 1], [1, 2]]), torch.tensor([2, 2]), torch.tensor([2, 2])
    for zero in (False, True):
        got = torch.nn.functional.ctc_loss(
            log_probs.to("tpu"), targets.to("tpu"), inputs, lengths, reduction="none", zero_infinity=zero
        )
        want = torch.nn.functional.ctc_loss(log_probs, targets, inputs, lengths, reduction="none", zero_infinity=zero)
        torch.testing.assert_close(got.cpu(), want)


def test_out_form_of_an_operator_without_a_meta_kernel():
    x = torch.tensor([0.1, 0.4, 0.6, 1.0])
    counts, edges = torch.empty(0, device="tpu"), torch.empty(0, device="tpu")
    torch.histogram(x.to("tpu"), 2, range=(0.0, 1.0), out=(counts, edges))
    assert counts.tolist() == [2.0, 2.0] and edges.tolist() == [0.0, 0.5, 1.0]
