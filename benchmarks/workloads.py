"""Two small models on real data, shared by `train.py` and tests/training.

* a character-level transformer on the Python language reference, as `pydoc` carries it;
* a convolutional classifier of the 8x8 handwritten digits that scikit-learn carries.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

# Printable ASCII and the newline; anything else is written as "?".
ALPHABET = "\n" + "".join(chr(c) for c in range(32, 127))
CONTEXT = 64


@functools.cache
def text() -> torch.Tensor:
    """The reference as character numbers, int64 of about 700 thousand elements."""
    from pydoc_data.topics import topics

    number = {c: i for i, c in enumerate(ALPHABET)}
    words = "\n".join(topics[name] for name in sorted(topics))
    return torch.tensor([number.get(c, number["?"]) for c in words])


def text_batch(step: int, batch: int, context: int = CONTEXT) -> tuple[torch.Tensor, torch.Tensor]:
    """Characters and the characters that follow them, both int64 of shape (batch, context)."""
    data = text()
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(0, len(data) - context - 1, (batch,), generator=generator)
    rows = torch.stack([data[s : s + context + 1] for s in starts.tolist()])
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class CharacterModel(nn.Module):
    """Logits of the next character: int64 (batch, length) to float (batch, length, len(ALPHABET))."""

    def __init__(self, width: int = 64, heads: int = 4, layers: int = 2, context: int = CONTEXT):
        super().__init__()
        self.characters, self.places = nn.Embedding(len(ALPHABET), width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, len(ALPHABET))

    def forward(self, numbers):
        places = torch.arange(numbers.shape[1], device=numbers.device)
        return self.head(self.norm(self.blocks(self.characters(numbers) + self.places(places))))


def text_loss(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy in nats a character."""
    logits = model(inputs)
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@functools.cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """(images, classes): float32 (1797, 1, 8, 8) in [0, 1] and int64 (1797,), in a fixed shuffled order."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = torch.tensor(data.images[order] / 16, dtype=torch.float32).unsqueeze(1)
    return images, torch.tensor(data.target[order], dtype=torch.int64)


class DigitClassifier(nn.Module):
    """Two convolutions with batch norm, then a linear layer: (batch, 1, 8, 8) to (batch, 10)."""

    def __init__(self, width: int = 16):
        super().__init__()
        self.first, self.norm1 = nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width)
        self.second, self.norm2 = nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width)
        self.head = nn.Linear(2 * width * 4, 10)

    def forward(self, images):
        x = F.max_pool2d(F.relu(self.norm1(self.first(images))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.second(x))), 2)
        return self.head(x.flatten(1))


def digit_batch(step: int, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch from the first 1500 images; the rest is for testing."""
    images, classes = digits()
    chosen = (torch.arange(batch) + step * batch) % 1500
    return images[chosen], classes[chosen]


def digit_loss(model: nn.Module, images: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy in nats."""
    return F.cross_entropy(model(images).float(), classes)
