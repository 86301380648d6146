"""Memory stays flat over a million allocations and ten thousand training steps (`pytest -m long`)."""

import gc

import psutil
import pytest
import torch
from torch import nn

# What may remain: allocator arenas and the caches of numbers, far below one leaked object per step.
MARGIN = 24 << 20


def resident() -> int:
    gc.collect()
    return psutil.Process().memory_info().rss


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_million_allocations():
    sizes = [16, 1024, 4096, 100]

    def burst(count):
        keep = []
        for i in range(count):
            t = torch.empty(sizes[i % 4], device="tpu")
            if i % 16 == 0:
                t.add_(1)
                keep = [t[1:], t.view(2, -1)]
        del keep

    burst(20_000)
    before, held = resident(), torch.tpu.memory_allocated()
    for _ in range(10):
        burst(100_000)
        assert torch.tpu.memory_allocated() == held
    grown = resident() - before
    print(f"grown by {grown / 2**20:.1f} MiB")
    assert grown < MARGIN


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["eager", "compiled"])
def test_ten_thousand_training_steps(mode):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)).tpu()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    forward = torch.compile(model, backend="tpu") if mode == "compiled" else model
    data, labels = torch.randn(64, 16), torch.randint(4, (64,))

    def train(steps):
        for _ in range(steps):
            loss = nn.functional.cross_entropy(forward(data.tpu()), labels.tpu())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return loss.item()

    first = train(1)
    train(500)
    before, held = resident(), torch.tpu.memory_allocated()
    last = train(10_000)
    assert last < first
    grown = resident() - before
    print(f"loss {first:.3f} to {last:.3f}, grown by {grown / 2**20:.1f} MiB")
    assert torch.tpu.memory_allocated() == held
    assert grown < MARGIN
