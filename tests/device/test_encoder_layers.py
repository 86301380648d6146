"""PyTorch's fused inference paths of MultiheadAttention and TransformerEncoderLayer: equal to the CPU's, and lowered."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

BATCH, LENGTH, WIDTH, HEADS = 2, 5, 16, 4

PADDED = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
PADDED[1, 3:] = True
AHEAD = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
MASKS = {"none": {}, "padding": {"src_key_padding_mask": PADDED}, "causal": {"src_mask": AHEAD},
         "both": {"src_key_padding_mask": PADDED, "src_mask": AHEAD}}  # fmt: skip


def on_device(module, call, compiled):
    """What ``call`` gives for the module on the device, and that nothing ran on the CPU instead."""
    moved = copy.deepcopy(module).to("tpu")
    before = torch.tpu.fallbacks()
    with torch.no_grad():
        got = call(torch.compile(moved, backend="tpu") if compiled else moved, "tpu")
    assert torch.tpu.fallbacks() == before
    return got


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer(masks, norm_first, compiled):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        WIDTH, HEADS, 24, activation="gelu" if norm_first else "relu", batch_first=True, norm_first=norm_first
    ).eval()
    x = torch.randn(BATCH, LENGTH, WIDTH)

    def call(module, device):
        return module(x.to(device), **{name: mask.to(device) for name, mask in MASKS[masks].items()})

    with torch.no_grad():
        want = call(layer, "cpu")
    torch.testing.assert_close(on_device(layer, call, compiled).cpu(), want)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("options", [{"need_weights": False}, {}, {"average_attn_weights": False}])
@pytest.mark.parametrize("mask", [None, "attn_mask", "key_padding_mask"])
def test_multihead_attention(options, mask, compiled):
    torch.manual_seed(0)
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
    x = torch.randn(BATCH, LENGTH, WIDTH)
    masks = {None: {}, "attn_mask": {mask: AHEAD}, "key_padding_mask": {mask: PADDED}}[mask]

    def call(module, device):
        moved = x.to(device)
        return module(moved, moved, moved, **options, **{name: m.to(device) for name, m in masks.items()})

    with torch.no_grad():
        want, want_weights = call(attention, "cpu")
    got, weights = on_device(attention, call, compiled)
    torch.testing.assert_close(got.cpu(), want)
    assert (weights is None) == (want_weights is None)
    if weights is not None:
        torch.testing.assert_close(weights.cpu(), want_weights)


def test_rows_that_attend_to_nothing_are_nan_as_on_the_cpu():
    x, pad = torch.randn(BATCH, LENGTH, WIDTH), torch.ones(BATCH, LENGTH, dtype=torch.bool)
    pad[0] = False
    weights = [torch.randn(3 * WIDTH, WIDTH), torch.randn(3 * WIDTH), torch.randn(WIDTH, WIDTH), torch.randn(WIDTH)]

    def run(device):
        moved = x.to(device)
        tensors = [w.to(device) for w in weights]
        return torch.ops.aten._native_multi_head_attention(
            moved, moved, moved, WIDTH, HEADS, *tensors, pad.to(device), True, True, 1
        )

    for got, want in zip(run("tpu"), run("cpu")):
        assert want[1].isnan().all()
        torch.testing.assert_close(got.cpu(), want, equal_nan=True, rtol=1e-4, atol=1e-4)  # products of randn weights
