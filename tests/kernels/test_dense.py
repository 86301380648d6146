"""Batched products and convolutions of images on XLA:CPU, against float64."""

import itertools

import jax
import numpy as np
import pytest
import torch

from systolic.kernels import dense, force

RANDOM = np.random.default_rng(0)


def close(got, want, depth):
    # A float32 sum of `depth` products of normal numbers: its error grows with the square root of their number.
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=2e-6 * max(depth, 1) ** 0.5)


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 5, 7, 9), (2, 12, 16, 32), (2, 13, 33, 65), (1, 130, 64, 257), (4, 49, 600, 31)])
def test_batched_matmul(shape, transposed, monkeypatch):
    monkeypatch.setattr(dense, "LEAST_WORK", 0)
    batch, rows, depth, columns = shape
    a, b = normal(batch, rows, depth), normal(batch, depth, columns)
    with force("native"):
        if transposed:
            stored = np.ascontiguousarray(b.swapaxes(1, 2))
            got = jax.jit(lambda a, s: dense.batched_matmul(a, s.swapaxes(1, 2), transposed=True))(a, stored)
        else:
            got = jax.jit(dense.batched_matmul)(a, b)
    close(got, a.astype(np.float64) @ b, depth)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0)])
def test_empty_batched_matmul(shape, monkeypatch):
    monkeypatch.setattr(dense, "LEAST_WORK", 0)
    batch, rows, depth, columns = shape
    with force("native"):
        got = dense.batched_matmul(np.ones((batch, rows, depth), np.float32), np.ones((batch, depth, columns), np.float32))
    assert got.shape == (batch, rows, columns) and not np.asarray(got).any()


CONVOLUTIONS = [
    # images, channels, outputs, (height, width), kernel, stride, padding, dilation
    (1, 1, 1, (1, 1), (1, 1), (1, 1), (0, 0), (1, 1)),
    (2, 3, 5, (7, 9), (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 3, 5, (7, 9), (3, 2), (2, 1), (2, 0), (1, 2)),
    (3, 4, 14, (5, 5), (5, 5), (1, 1), (0, 0), (1, 1)),  # one pixel an image
    (1, 8, 64, (14, 40), (3, 3), (1, 1), (1, 1), (1, 1)),  # rows longer than a panel
    (5, 6, 20, (4, 4), (3, 3), (2, 2), (1, 1), (1, 1)),  # panels of several images
    (2, 64, 16, (6, 6), (7, 7), (1, 1), (3, 3), (1, 1)),  # deep: one panel fills the cache
    (1, 2, 3, (9, 9), (2, 2), (3, 3), (1, 1), (4, 4)),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolution(case, monkeypatch):
    monkeypatch.setattr(dense, "LEAST_WORK", 0)
    images, channels, outputs, size, kernel, stride, padding, dilation = case
    x, w = normal(images, channels, *size), normal(outputs, channels, *kernel)
    with force("native"):
        got = jax.jit(lambda x, w: dense.convolution_2d(x, w, stride, padding, dilation))(x, w)
    want = torch.nn.functional.conv2d(torch.tensor(x).double(), torch.tensor(w).double(), None, stride, padding, dilation)
    close(got, want.numpy(), channels * kernel[0] * kernel[1])


def test_zeros_times_infinity_outside_the_image_stay_zero_but_nan_inside_spreads():
    x = np.zeros((1, 1, 8, 8), np.float32)
    x[0, 0, 0, 0] = np.nan
    with force("native"):
        got = np.asarray(dense.convolution_2d(x, np.ones((64, 1, 8, 8), np.float32), (1, 1), (4, 4), (1, 1)))
    assert np.isnan(got[:, :, :5, :5]).all() and not np.isnan(got[:, :, 5:, :]).any()


def test_wrong_arguments():
    with pytest.raises(ValueError, match=r"\(2, 3, 4\) and b \(2, 3, 4\)"):
        dense.batched_matmul(normal(2, 3, 4), normal(2, 3, 4))
    with pytest.raises(ValueError, match="b has dtype float64"):
        dense.batched_matmul(normal(2, 3, 4), normal(2, 4, 3).astype(np.float64))
    with pytest.raises(ValueError, match=r"weight \(4, 2, 3, 3\)"):
        dense.convolution_2d(normal(1, 3, 8, 8), normal(4, 2, 3, 3), (1, 1), (0, 0), (1, 1))


def test_scores_of_attention_read_the_keys_as_stored():
    from systolic.compile import passes

    found = []
    original = passes.keep_transposed_operands

    def attend(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("systolic.compile.backend.keep_transposed_operands", lambda g: found.append(original(g)) or found[-1])
        torch._dynamo.reset()
        q, k, v = (torch.tensor(normal(2, 4, 64, 32)) for _ in range(3))
        with torch.no_grad():
            got = torch.compile(attend, backend="tpu")(q.tpu(), k.tpu(), v.tpu())
    assert found == [1]
    torch.testing.assert_close(got.cpu(), attend(q, k, v))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3)))[:3], ids=str)
def test_other_orders_are_no_transpose(order):
    torch._dynamo.reset()
    a, b = torch.tensor(normal(48, 48, 48)), torch.tensor(normal(48, 48, 48))

    def run(a, b):
        return torch.bmm(a, b.permute(order))

    got = torch.compile(run, backend="tpu")(a.tpu(), b.tpu())
    torch.testing.assert_close(got.cpu(), run(a, b), rtol=1e-4, atol=1e-4)  # 48 products in another order
