"""torch.amp.GradScaler("tpu"): infinities found, steps skipped, scale grown and backed off."""

from __future__ import annotations

import pytest
import torch


def scaler(**settings):
    return torch.amp.GradScaler("tpu", **{"init_scale": 8.0, "growth_interval": 2, **settings})


def parameter(*values):
    return torch.nn.Parameter(torch.tensor(values, device="tpu"))


FORMS = [dict(foreach=False), dict(foreach=True), dict(fused=True)]


@pytest.mark.parametrize("form", FORMS, ids=["loop", "foreach", "fused"])
def test_finite_steps_equal_unscaled_ones(form):
    p, q = parameter(1.0, -2.0), parameter(1.0, -2.0)
    scaled, plain = torch.optim.Adam([p], lr=0.1, **form), torch.optim.Adam([q], lr=0.1)
    s = scaler()
    for _ in range(3):
        scaled.zero_grad()
        s.scale((p * p).sum()).backward()
        s.step(scaled)
        s.update()
        plain.zero_grad()
        (q * q).sum().backward()
        plain.step()
    torch.testing.assert_close(p, q)


@pytest.mark.parametrize("form", FORMS, ids=["loop", "foreach", "fused"])
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_a_bad_step_is_skipped_and_the_scale_backs_off(form, bad):
    good, other = parameter(1.0, 2.0), parameter(3.0)
    optimizer = torch.optim.AdamW([good, other], lr=0.1, **form)
    s = scaler()
    good.grad, other.grad = torch.ones_like(good), torch.full_like(other, bad)
    s.scale(torch.zeros((), device="tpu"))  # the scale exists after the first use
    s.step(optimizer)
    s.update()
    assert good.tolist() == [1.0, 2.0] and other.tolist() == [3.0]
    assert s.get_scale() == 4.0
    good.grad, other.grad = torch.full_like(good, 4.0), torch.full_like(other, 4.0)
    s.step(optimizer)
    s.update()
    assert good[0] < 1.0 and other.item() < 3.0


def test_the_scale_grows_after_good_steps_only():
    p = parameter(1.0)
    optimizer = torch.optim.SGD([p], lr=0.0)
    s = scaler(growth_interval=3)
    scales = []
    for grad in (1.0, 1.0, float("inf"), 1.0, 1.0, 1.0, 1.0):
        s.scale(p.detach())
        p.grad = torch.full_like(p, grad)
        s.step(optimizer)
        s.update()
        scales.append(s.get_scale())
    assert scales == [8.0, 8.0, 4.0, 4.0, 4.0, 8.0, 8.0]


def test_unscale_before_clipping():
    p = parameter(3.0, 4.0)
    optimizer = torch.optim.SGD([p], lr=1.0)
    s = scaler()
    s.scale((p * p).sum() / 2).backward()
    assert p.grad.tolist() == [24.0, 32.0]
    s.unscale_(optimizer)
    assert p.grad.tolist() == [3.0, 4.0]
    assert torch.nn.utils.clip_grad_norm_([p], 1.0).item() == pytest.approx(5.0)
    s.step(optimizer)
    s.update()
    assert p.tolist() == pytest.approx([3 - 0.6, 4 - 0.8], rel=1e-5)  # clipping divides by norm + 1e-6
    with pytest.raises(RuntimeError, match="unscale_"):
        s.unscale_(optimizer)
        s.unscale_(optimizer)


@pytest.mark.parametrize("scale", [1.0, 2.0**16])
def test_float16_training_with_autocast(scale):
    """Gradients of 2.5e-8 vanish in float16, whose least number is 6e-8, unless the loss is scaled."""
    layer = torch.nn.Linear(8, 1, bias=False).to("tpu")
    torch.nn.init.zeros_(layer.weight)
    x = torch.ones(4, 8, device="tpu")
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    s = torch.amp.GradScaler("tpu", init_scale=scale)
    with torch.autocast("tpu", torch.float16):
        loss = layer(x).float().mean() * 1e-7
    s.scale(loss).backward()
    s.step(optimizer)
    s.update()
    expected = 0.0 if scale == 1 else -1e-7
    # float16 keeps 11 bits of each gradient.
    torch.testing.assert_close(layer.weight.detach().cpu(), torch.full((1, 8), expected), rtol=1e-3, atol=0)


def test_operators_directly():
    grads = [torch.tensor([2.0, 4.0], device="tpu"), torch.tensor([[8.0]], device="tpu").half()]
    found = torch.zeros(1, device="tpu")
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.tensor(0.5, device="tpu"))
    assert [g.tolist() for g in grads] == [[1.0, 2.0], [[4.0]]] and found.item() == 0
    grads[1].fill_(float("nan"))
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found, torch.tensor(0.5, device="tpu"))
    assert found.item() == 1
    scale, tracker = torch.tensor(8.0, device="tpu"), torch.tensor(1, dtype=torch.int32, device="tpu")
    out = torch._amp_update_scale_(scale, tracker, torch.zeros(1, device="tpu"), 2.0, 0.5, 2)
    assert out is scale and scale.item() == 16 and tracker.item() == 0
    torch._amp_update_scale_(scale, tracker, torch.ones(1, device="tpu"), 2.0, 0.5, 2)
    assert scale.item() == 8 and tracker.item() == 0
    scale.fill_(3e38)
    tracker.fill_(1)
    torch._amp_update_scale_(scale, tracker, torch.zeros(1, device="tpu"), 2.0, 0.5, 2)
    assert scale.item() == pytest.approx(3e38)  # growing to infinity is not done
