"""The parts of a training loop: clipping, schedules, checkpointing, data loading."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torch.utils.data import DataLoader, Dataset, TensorDataset


def gradients(device: str):
    params = [torch.nn.Parameter(torch.zeros(s, device=device)) for s in ((2, 3), (4,), ())]
    for i, p in enumerate(params):
        p.grad = (torch.arange(p.numel(), dtype=torch.float32).view(p.shape) - 1.5 + i).to(device)
    return params


@pytest.mark.parametrize("foreach", [None, False, True])
@pytest.mark.parametrize("kind", [1.0, 2.0, float("inf")])
def test_clip_grad_norm(kind, foreach):
    found, expected = gradients("tpu"), gradients("cpu")
    a = torch.nn.utils.clip_grad_norm_(found, 1.0, norm_type=kind, foreach=foreach)
    b = torch.nn.utils.clip_grad_norm_(expected, 1.0, norm_type=kind, foreach=False)
    assert a.device.type == "tpu"
    torch.testing.assert_close(a.cpu(), b)
    for p, q in zip(found, expected):
        torch.testing.assert_close(p.grad.cpu(), q.grad)


def test_clip_grad_norm_finds_bad_gradients():
    params = gradients("tpu")
    params[1].grad[0] = float("nan")
    with pytest.raises(RuntimeError, match="non-finite"):
        torch.nn.utils.clip_grad_norm_(params, 1.0, error_if_nonfinite=True)


@pytest.mark.parametrize("foreach", [None, False, True])
def test_clip_grad_value(foreach):
    params = gradients("tpu")
    torch.nn.utils.clip_grad_value_(params, 1.0, foreach=foreach)
    assert params[0].grad.tolist() == [[-1.0, -0.5, 0.5], [1.0, 1.0, 1.0]]
    assert params[2].grad.item() == 0.5


def test_schedules():
    """Schedules that compute a rate, one that reads the loss, and one with a rate on the device."""
    schedules = torch.optim.lr_scheduler
    p = torch.nn.Parameter(torch.zeros(2, device="tpu"))
    q = torch.nn.Parameter(torch.zeros(2))
    make = {
        "one cycle": lambda o: schedules.OneCycleLR(o, max_lr=0.5, total_steps=6),
        "cosine": lambda o: schedules.CosineAnnealingLR(o, T_max=4),
        "chained": lambda o: schedules.SequentialLR(
            o, [schedules.LinearLR(o, total_iters=2), schedules.ExponentialLR(o, 0.5)], milestones=[2]
        ),
    }
    for name, build in make.items():
        rates = []
        for parameter in (p, q):
            optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
            schedule = build(optimizer)
            with torch.no_grad():
                parameter.zero_()
            for _ in range(5):
                parameter.grad = torch.ones_like(parameter)
                optimizer.step()
                schedule.step()
            rates.append(schedule.get_last_lr())
        assert rates[0] == rates[1], name
        torch.testing.assert_close(p.detach().cpu(), q.detach(), msg=name)
    optimizer = torch.optim.SGD([p], lr=0.1)
    plateau = schedules.ReduceLROnPlateau(optimizer, patience=0)
    for loss in (1.0, 1.0, 1.0):
        plateau.step(torch.tensor(loss, device="tpu"))
    assert optimizer.param_groups[0]["lr"] < 0.1
    optimizer = torch.optim.Adam([p], lr=torch.tensor(0.1, device="tpu"), capturable=True)
    schedule = schedules.ExponentialLR(optimizer, 0.5)
    p.grad = torch.ones_like(p)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["lr"].item() == pytest.approx(0.05)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_repeats_dropout(reentrant):
    torch.manual_seed(1)
    block = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8)).to("tpu")
    x = torch.randn(4, 8, device="tpu")
    grads = []
    for through in (block, lambda v: checkpoint(block, v, use_reentrant=reentrant)):
        block.zero_grad()
        given = x.clone().requires_grad_()
        torch.tpu.manual_seed(5)
        out = through(given)
        torch.rand(3, device="tpu")  # moves the generator between forward and backward
        out.square().sum().backward()
        grads.append([given.grad, *(p.grad.clone() for p in block.parameters())])
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b)


def test_checkpoint_under_autocast_and_in_parts():
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4))).to("tpu")
    x = torch.randn(2, 8, device="tpu", requires_grad=True)
    with torch.autocast("tpu", torch.bfloat16):
        plain = layers(x)
        parts = checkpoint_sequential(layers, 2, x, use_reentrant=False)
    assert plain.dtype == parts.dtype == torch.bfloat16
    a = torch.autograd.grad(plain.float().sum(), x)[0]
    b = torch.autograd.grad(parts.float().sum(), x)[0]
    assert torch.equal(a, b)


def test_checkpoint_saves_memory():
    layers = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(8)))
    layers.to("tpu")
    x = torch.randn(2048, 64, device="tpu", requires_grad=True)
    peaks = []
    for run in (layers, lambda v: checkpoint_sequential(layers, 4, v, use_reentrant=False)):
        torch.tpu.reset_peak_memory_stats()
        base = torch.tpu.memory_allocated()
        run(x).sum().backward()
        peaks.append(torch.tpu.max_memory_allocated() - base)
        x.grad = None
        layers.zero_grad()
    assert peaks[1] < 0.8 * peaks[0]


@pytest.mark.parametrize("pinned", [False, True])
def test_data_loader_with_workers(pinned):
    """Workers are forked from a process that uses the device; they hand out CPU tensors."""
    torch.ones(2, device="tpu").add_(1)
    data = TensorDataset(torch.arange(12.0).view(6, 2), torch.arange(6))
    seen = []
    for rows, numbers in DataLoader(data, batch_size=2, num_workers=2, pin_memory=pinned):
        assert rows.device.type == "cpu"
        moved = rows.to("tpu", non_blocking=True)
        seen += (moved.sum(1) * 0 + numbers.to("tpu")).tolist()
    assert seen == [0, 1, 2, 3, 4, 5]


class OnTheDevice(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return torch.ones(2, device="tpu") * index


def test_a_forked_worker_that_uses_the_device_is_refused():
    """XLA's threads do not survive a fork: an error instead of a hang."""
    torch.ones(2, device="tpu").add_(1)
    with pytest.raises(RuntimeError, match="forked.*spawn"):
        list(DataLoader(OnTheDevice(), num_workers=1))


def test_a_tpu_default_device_reaches_the_loader():
    with torch.device("tpu"):
        data = TensorDataset(torch.arange(6.0))
        loader = DataLoader(data, batch_size=3, shuffle=True, generator=torch.Generator(device="tpu"))
        assert sorted(torch.cat([b for (b,) in loader]).tolist()) == [0, 1, 2, 3, 4, 5]
