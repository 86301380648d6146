"""The models of `compile.py`, each in PyTorch and in plain JAX on the same weights, float32.

* a GPT-2-like block: pre-norm causal attention and MLP;
* a BERT-like encoder: token and position embeddings, four post-norm layers;
* a ResNet-18-like network in inference mode: 7x7 stem, four stages of two basic blocks, linear head.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F
from jax_layers import attention, block, gelu, layer_norm, linear
from torch import nn
from workloads import Block

WIDTH, HEADS, LENGTH, BATCH = 256, 4, 128, 4
WORDS, LAYERS = 1000, 4


def gpt_block() -> tuple[nn.Module, torch.Tensor]:
    """(block, hidden states float32 (BATCH, LENGTH, WIDTH))."""
    return Block(WIDTH, HEADS), torch.randn(BATCH, LENGTH, WIDTH)


class Encoder(nn.Module):
    """int64 (batch, length) to float32 (batch, length, WIDTH)."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)

    def forward(self, ids):
        return self.layers(self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))))


def bert() -> tuple[nn.Module, torch.Tensor]:
    # In training mode PyTorch takes the ordinary path of the layer, not its fused inference kernel for the CPU and CUDA.
    return Encoder().train(), torch.randint(0, WORDS, (BATCH, LENGTH))


class Basic(nn.Module):
    """Two 3x3 convolutions with batch norm and a way around them."""

    def __init__(self, width_in: int, width: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.around = None if stride == 1 and width_in == width else nn.Conv2d(width_in, width, 1, stride, bias=False)

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + (x if self.around is None else self.around(x)))


class ResNet(nn.Module):
    """float32 (batch, 3, size, size) to (batch, 100)."""

    def __init__(self, widths=(64, 128, 256, 512)):
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), nn.BatchNorm2d(widths[0])
        before, blocks = widths[0], []
        for number, width in enumerate(widths):
            blocks += [Basic(before, width, 1 if number == 0 else 2), Basic(width, width, 1)]
            before = width
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(before, 100)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def resnet() -> tuple[nn.Module, torch.Tensor]:
    return ResNet().eval(), torch.randn(2, 3, 112, 112)


def gpt_block_jax(p: dict, x):
    return block(p, x, HEADS)


def bert_jax(p: dict, ids):
    x = layer_norm(p, "norm", p["words.weight"][ids] + p["places.weight"][: ids.shape[1]])
    for layer in range(LAYERS):
        at = f"layers.layers.{layer}"
        qkv = x @ p[f"{at}.self_attn.in_proj_weight"].T + p[f"{at}.self_attn.in_proj_bias"]
        x = layer_norm(p, f"{at}.norm1", x + linear(p, f"{at}.self_attn.out_proj", attention(qkv, HEADS, causal=False)))
        hidden = gelu(linear(p, f"{at}.linear1", x))
        x = layer_norm(p, f"{at}.norm2", x + linear(p, f"{at}.linear2", hidden))
    return x


def _convolution(weight, x, stride: int, padding: int):
    names = ("NCHW", "OIHW", "NCHW")
    return jax.lax.conv_general_dilated(x, weight, (stride, stride), [(padding, padding)] * 2, dimension_numbers=names)


def _batch_norm(p, name, x):
    scale = p[f"{name}.weight"] * jax.lax.rsqrt(p[f"{name}.running_var"] + 1e-5)
    shift = p[f"{name}.bias"] - p[f"{name}.running_mean"] * scale
    return x * scale[:, None, None] + shift[:, None, None]


def resnet_jax(p: dict, x):
    x = jax.nn.relu(_batch_norm(p, "norm", _convolution(p["stem.weight"], x, 2, 3)))
    padding = ((0, 0), (0, 0), (1, 1), (1, 1))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 3, 3), (1, 1, 2, 2), padding)
    for number in range(8):
        at, stride = f"blocks.{number}", 2 if number in (2, 4, 6) else 1
        y = jax.nn.relu(_batch_norm(p, f"{at}.norm1", _convolution(p[f"{at}.conv1.weight"], x, stride, 1)))
        y = _batch_norm(p, f"{at}.norm2", _convolution(p[f"{at}.conv2.weight"], y, 1, 1))
        around = p.get(f"{at}.around.weight")
        x = jax.nn.relu(y + (x if around is None else _convolution(around, x, stride, 0)))
    return linear(p, "head", x.mean((2, 3)))


# name -> (PyTorch model and input, the same in JAX, whether gradients of the parameters are taken too)
CASES = {
    "GPT-2 block": (gpt_block, gpt_block_jax, False),
    "GPT-2 block and backward": (gpt_block, gpt_block_jax, True),
    "BERT": (bert, bert_jax, False),
    "ResNet-18": (resnet, resnet_jax, False),
}
