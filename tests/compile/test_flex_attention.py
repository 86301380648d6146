"""torch.nn.attention.flex_attention on the device, compiled and eager, against attention written out."""

import math

import pytest
import torch
from graph_checks import graphs, to_tpu
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

from systolic.compile import flex_attention as lowering

# float32 softmax and products in another order
TOLERANCE = dict(rtol=1e-4, atol=1e-5)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def inputs(batch=2, heads=4, length=12, keys=None, key_heads=None, size=8, requires_grad=True):
    shape = (batch, key_heads or heads, keys or length, size)
    q, k, v = torch.randn(batch, heads, length, size), torch.randn(shape), torch.randn(shape)
    return [t.requires_grad_(requires_grad) for t in (q, k, v)]


def attention(q, k, v, change=lambda s, b, h, i, j: s, mask=lambda b, h, i, j: i == i, scale=None):
    """The definition: (output, natural logarithm of the sum of exponentials, largest score)."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.mT * (scale or 1 / math.sqrt(q.shape[-1]))
    b, h, i, j = torch.meshgrid(*map(torch.arange, scores.shape), indexing="ij")
    scores = change(scores, b, h, i, j).masked_fill(~mask(b, h, i, j), -math.inf)
    weights = torch.where(scores.amax(-1, True) == -math.inf, 0, torch.softmax(scores, -1))
    return weights @ v, scores.logsumexp(-1), scores.amax(-1)


def compare(function, reference, tensors, compiled=None):
    """Values and gradients of ``function`` compiled on the device, beside those of ``reference`` on the CPU."""
    devices = to_tpu(tensors)
    got = (compiled or torch.compile(function, backend="tpu", fullgraph=True))(*devices)
    want = reference(*tensors)
    torch.testing.assert_close(got.detach().cpu(), want.detach(), **TOLERANCE)
    if want.requires_grad:
        got.square().sum().backward()
        want.square().sum().backward()
        for d, h in zip(devices, tensors):
            if h.requires_grad:
                torch.testing.assert_close(d.grad.cpu(), h.grad, **TOLERANCE)


def relative(score, b, h, i, j):
    return score + (j - i) * 0.1 * (h + 1)


def causal(b, h, i, j):
    return i >= j


@pytest.mark.parametrize("scores", [1 << 26, 300], ids=["one block", "blocks of queries"])
def test_score_function_grouped_heads_and_scale(monkeypatch, scores):
    monkeypatch.setattr(lowering, "_SCORES", scores)  # the second makes blocks of 4 queries of 11, the last with 3
    compare(
        lambda q, k, v: flex_attention(q, k, v, score_mod=relative, scale=0.3, enable_gqa=True),
        lambda q, k, v: attention(q, k, v, relative, scale=0.3)[0],
        inputs(length=11, keys=9, key_heads=2),
    )


@pytest.mark.parametrize("scores", [1 << 26, 300], ids=["one block", "blocks of queries"])
def test_gradients_of_captured_tensors(monkeypatch, scores):
    monkeypatch.setattr(lowering, "_SCORES", scores)
    bias, slope = torch.randn(10, 10, requires_grad=True), torch.rand(4, requires_grad=True)
    compare(
        lambda q, k, v, bias, slope: flex_attention(
            q, k, v, score_mod=lambda s, b, h, i, j: s * slope[h] + bias[i, j]
        ),
        lambda q, k, v, bias, slope: attention(q, k, v, lambda s, b, h, i, j: s * slope[h] + bias[i, j])[0],
        [*inputs(length=10), bias, slope],
    )


def test_block_masks_and_rows_without_any_key():
    def masked(lengths):
        return lambda b, h, i, j: (i >= j) & (j < lengths[b]) & (i != 3)

    def f(q, k, v, lengths):
        mask = create_block_mask(masked(lengths), q.shape[0], None, q.shape[2], k.shape[2], device=q.device)
        return flex_attention(q, k, v, block_mask=mask)

    compare(
        f, lambda q, k, v, lengths: attention(q, k, v, mask=masked(lengths))[0],
        [*inputs(length=40), torch.tensor([5, 40])],
    )  # fmt: skip


@pytest.mark.long
def test_a_block_mask_from_outside_with_dynamic_sizes():
    compiled = torch.compile(
        lambda q, k, v, mask: flex_attention(q, k, v, block_mask=mask), backend="tpu", fullgraph=True, dynamic=True
    )
    before = graphs()
    for length in (130, 200, 260):
        mask = create_block_mask(causal, None, None, length, length, device="tpu")
        tensors = inputs(1, 2, length, requires_grad=False)
        compare(None, lambda q, k, v: attention(q, k, v, mask=causal)[0], tensors, lambda *t: compiled(*t, mask))
    assert graphs() <= before + 2  # the number of blocks goes from 2 to 3


def test_auxiliary_results_and_their_gradients():
    def f(q, k, v):
        out, aux = flex_attention(q, k, v, score_mod=relative, return_aux=AuxRequest(lse=True, max_scores=True))
        return torch.cat([out.flatten(), aux.lse.flatten(), aux.max_scores.detach().flatten()])

    def reference(q, k, v):
        out, lse, largest = attention(q, k, v, relative)
        return torch.cat([out.flatten(), lse.flatten(), largest.detach().flatten()])

    compare(f, reference, inputs())


def test_without_torch_compile_and_in_half_precision():
    q, k, v = inputs(requires_grad=False)
    got = flex_attention(q.tpu(), k.tpu(), v.tpu(), score_mod=relative)
    torch.testing.assert_close(got.cpu(), attention(q, k, v, relative)[0], **TOLERANCE)
    halves = [t.bfloat16() for t in (q, k, v)]
    got = torch.compile(flex_attention, backend="tpu")(*(t.tpu() for t in halves))
    assert got.dtype == torch.bfloat16
    # bfloat16 has 8 bits; weights are rounded to it before the second product
    torch.testing.assert_close(got.cpu().float(), attention(*(t.float() for t in halves))[0], rtol=2e-2, atol=2e-2)


def test_autocast_casts_what_is_multiplied():
    q, k, v = inputs(requires_grad=False)
    with torch.autocast("tpu", dtype=torch.bfloat16):
        got = torch.compile(flex_attention, backend="tpu", fullgraph=True)(q.tpu(), k.tpu(), v.tpu())
    assert got.dtype == torch.bfloat16
    halves = [t.bfloat16().float() for t in (q, k, v)]
    torch.testing.assert_close(got.cpu().float(), attention(*halves)[0], rtol=2e-2, atol=2e-2)  # bfloat16: 8 bits
