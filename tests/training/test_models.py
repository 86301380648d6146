"""Two small models on real data learn on the device, with the loss curve of the CPU."""

from __future__ import annotations

import pytest
import torch
import workloads

# Both sides compute in float32 and differ in the order of sums: about 1e-7 of a loss at the first step.
# Training amplifies it; over the compared steps a factor of a thousand is allowed.
CURVE = dict(rtol=2e-4, atol=2e-5)
COMPARED = 12


def train(device: str, make, batch_of, loss_of, steps: int, batch: int, compiled=False, rate=3e-3, **optimizer):
    """(losses as CPU floats, model) after ``steps`` steps of AdamW."""
    torch.manual_seed(0)
    model = make().to(device)
    step_model = torch.compile(model) if compiled else model
    stepper = torch.optim.AdamW(model.parameters(), lr=rate, **optimizer)
    losses = []
    for step in range(steps):
        inputs, targets = (t.to(device) for t in batch_of(step, batch))
        stepper.zero_grad()
        loss = loss_of(step_model, inputs, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step()
        losses.append(loss.detach())
    return torch.stack(losses).cpu(), model


TEXT = (workloads.CharacterModel, workloads.text_batch, workloads.text_loss)
DIGITS = (workloads.DigitClassifier, workloads.digit_batch, workloads.digit_loss)


@pytest.fixture(scope="module")
def text_on_cpu():
    return train("cpu", *TEXT, steps=COMPARED, batch=8)[0]


@pytest.fixture(scope="module")
def digits_on_cpu():
    return train("cpu", *DIGITS, steps=COMPARED, batch=50)[0]


def test_character_model_learns(text_on_cpu):
    before = torch.tpu.fallbacks()
    losses, model = train("tpu", *TEXT, steps=100, batch=8, fused=True)
    torch.testing.assert_close(losses[:COMPARED], text_on_cpu, **CURVE)
    # An untrained model is near log(96) = 4.56; the frequencies of single letters alone give about 3.2.
    assert losses[0] > 4.3
    assert losses[-10:].mean() < 2.95
    assert torch.tpu.fallbacks() == before
    # It works on in other modes: evaluation without gradients.
    with torch.no_grad():
        assert workloads.text_loss(model.eval(), *(t.to("tpu") for t in workloads.text_batch(999, 8))) < 3.2


def test_character_model_compiled(text_on_cpu):
    losses, _ = train("tpu", *TEXT, steps=COMPARED, batch=8, compiled=True)
    torch.testing.assert_close(losses, text_on_cpu, **CURVE)


def test_digit_classifier_learns(digits_on_cpu):
    before = torch.tpu.fallbacks()
    losses, model = train("tpu", *DIGITS, steps=60, batch=50)
    torch.testing.assert_close(losses[:COMPARED], digits_on_cpu, **CURVE)
    assert losses[0] > 2.0  # log(10) is 2.30
    assert losses[-10:].mean() < 0.25
    images, classes = workloads.digits()
    with torch.no_grad():
        found = model.eval()(images[1500:].to("tpu")).argmax(1).cpu()
    assert (found == classes[1500:]).float().mean() > 0.9
    assert torch.tpu.fallbacks() == before


def test_digit_classifier_compiled(digits_on_cpu):
    losses, _ = train("tpu", *DIGITS, steps=COMPARED, batch=50, compiled=True)
    torch.testing.assert_close(losses, digits_on_cpu, **CURVE)


def test_bfloat16_autocast_learns():
    """Mixed precision follows the float32 curve within bfloat16's 2^-8, and learns as far."""
    torch.manual_seed(0)
    model = workloads.DigitClassifier().to("tpu")
    stepper = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for step in range(40):
        images, classes = (t.to("tpu") for t in workloads.digit_batch(step, 50))
        with torch.autocast("tpu", torch.bfloat16):
            loss = workloads.digit_loss(model, images, classes)
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())
    assert losses[0] > 2.0 and sum(losses[-5:]) / 5 < 0.5
