"""Every optimizer of torch.optim, for-loop, foreach and fused, takes the steps that it takes on the CPU."""

from __future__ import annotations

import inspect

import pytest
import torch

# float32 sums in another order differ in the last bits; a few steps of division and square root keep that
# below 1e-5 of a parameter of order 1.
CLOSE = dict(rtol=2e-5, atol=2e-6)
STEPS = 3

SETTINGS = {
    "ASGD": [dict(lr=0.05, weight_decay=0.01)],
    "Adadelta": [dict(lr=0.5, weight_decay=0.01)],
    "Adafactor": [dict(lr=0.05)],
    "Adagrad": [dict(lr=0.05, lr_decay=0.01, weight_decay=0.01)],
    "Adam": [dict(lr=0.02), dict(lr=0.02, amsgrad=True, weight_decay=0.01, maximize=True)],
    "AdamW": [dict(lr=0.02, amsgrad=True)],
    "Adamax": [dict(lr=0.02, weight_decay=0.01)],
    "LBFGS": [dict(lr=0.1, max_iter=3, line_search_fn="strong_wolfe")],
    "Muon": [dict(lr=0.02)],
    "NAdam": [dict(lr=0.02, decoupled_weight_decay=True, weight_decay=0.01)],
    "RAdam": [dict(lr=0.02, weight_decay=0.01)],
    "RMSprop": [dict(lr=0.01, centered=True, momentum=0.9)],
    "Rprop": [dict(lr=0.01)],
    "SGD": [dict(lr=0.05), dict(lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01)],
}
# Muon's Newton-Schulz iterations run in bfloat16, whose last bit is 2^-8.
LOOSE = {"Muon": dict(rtol=2e-2, atol=2e-3)}


def optimizer_names() -> set[str]:
    return {
        n for n, c in vars(torch.optim).items()
        if inspect.isclass(c) and issubclass(c, torch.optim.Optimizer) and c is not torch.optim.Optimizer
    }  # fmt: skip


def forms(name: str) -> list[dict]:
    accepted = inspect.signature(getattr(torch.optim, name)).parameters
    out = [dict(foreach=False)] if "foreach" in accepted else [{}]
    out += [dict(foreach=True)] if "foreach" in accepted else []
    return out + ([dict(fused=True)] if "fused" in accepted else [])


CASES = [(n, i, f) for n, settings in SETTINGS.items() for i in range(len(settings)) for f in forms(n)]


def parameters(device: str, matrices_only: bool = False) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(6, 4), (4, 5)] if matrices_only else [(6, 4), (5,), (2, 3, 2), ()]
    return [torch.nn.Parameter(torch.randn(s, generator=generator).to(device)) for s in shapes]


def loss(params) -> torch.Tensor:
    return sum(((p - 0.5) * (i + 1)).pow(2).sum() + p.sin().sum() for i, p in enumerate(params))


def run(device: str, name: str, settings: dict, steps: int = STEPS):
    params = parameters(device, matrices_only=name == "Muon")
    optimizer = getattr(torch.optim, name)(params, **settings)

    def closure():
        optimizer.zero_grad()
        value = loss(params)
        value.backward()
        return value

    for _ in range(steps):
        optimizer.step(closure)
    return [p.detach().cpu() for p in params], optimizer


def test_the_table_names_every_optimizer():
    # SparseAdam takes sparse gradients only, and the device is dense (tests/device/test_errors.py).
    assert set(SETTINGS) == optimizer_names() - {"SparseAdam"}


@pytest.mark.parametrize("name,index,form", CASES, ids=lambda v: "".join(v) if isinstance(v, dict) else str(v))
def test_same_steps_as_on_the_cpu(name, index, form):
    settings = SETTINGS[name][index]
    plain = {"foreach": False} if "foreach" in form or "fused" in form else {}
    expected, _ = run("cpu", name, {**settings, **plain})
    before = torch.tpu.fallbacks()
    actual, _ = run("tpu", name, {**settings, **form})
    for a, e in zip(actual, expected):
        torch.testing.assert_close(a, e, **LOOSE.get(name, CLOSE))
    assert torch.tpu.fallbacks() == before


def test_foreach_is_the_default_and_one_program_an_operator():
    """A step of SGD over many tensors is a handful of launches, not a handful for each tensor."""
    params = [torch.nn.Parameter(torch.ones(7, device="tpu")) for _ in range(40)]
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    optimizer.step()
    before = torch.tpu._C.launches()
    optimizer.step()
    assert torch.tpu._C.launches() - before <= 4
    torch.testing.assert_close(params[39].detach().cpu(), torch.full((7,), 1 - 0.1 - 0.19))


@pytest.mark.parametrize("form", [dict(foreach=True), dict(fused=True)], ids=["foreach", "fused"])
def test_a_new_learning_rate_compiles_nothing(form):
    params = parameters("tpu")
    optimizer = torch.optim.AdamW(params, lr=0.1, **form)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step():
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
        schedule.step()

    step(), step()
    before = torch.tpu.compilations()
    step(), step(), step()
    assert torch.tpu.compilations() == before


def test_fused_learning_rate_as_a_tensor():
    rate = torch.tensor(0.02, device="tpu")
    for name in ("Adam", "SGD", "Adagrad"):
        expected, _ = run("cpu", name, dict(lr=0.02, foreach=False))
        actual, _ = run("tpu", name, dict(lr=rate, fused=True))
        for a, e in zip(actual, expected):
            torch.testing.assert_close(a, e, **CLOSE)


def test_fused_updates_keep_their_buffers():
    params = parameters("tpu")
    for p in params:
        p.grad = torch.ones_like(p)
    optimizer = torch.optim.Adam(params, lr=0.1, fused=True)
    optimizer.step()

    def places():
        return [torch.tpu._C.array_of(t).unsafe_buffer_pointer()
                for p in params for t in (p, optimizer.state[p]["exp_avg"])]  # fmt: skip

    before = places()
    optimizer.step()
    assert places() == before


@pytest.mark.parametrize("name", ["Adam", "RMSprop"])
def test_capturable(name):
    """Step counts on the device: no value of a step reaches the host."""
    expected, _ = run("cpu", name, dict(lr=0.02, foreach=False))
    for foreach in (False, True):
        actual, optimizer = run("tpu", name, dict(lr=0.02, foreach=foreach, capturable=True))
        assert all(s["step"].device.type == "tpu" for s in optimizer.state.values())
        for a, e in zip(actual, expected):
            torch.testing.assert_close(a, e, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fused_16_bit_parameters(dtype):
    """Arithmetic is in float32: one step of the fused form rounds once, as on the CPU."""
    results = {}
    for device in ("cpu", "tpu"):
        params = [torch.nn.Parameter(p.detach().to(dtype)) for p in parameters(device)]
        for p in params:
            p.grad = (p.detach() * 0.5 + 0.25).to(dtype)
        torch.optim.AdamW(params, lr=0.01, fused=True).step()
        results[device] = [p.detach().cpu().float() for p in params]
    for a, e in zip(results["tpu"], results["cpu"]):
        torch.testing.assert_close(a, e, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)


def test_state_dict_round_trip_between_devices():
    _, on_cpu = run("cpu", "Adam", dict(lr=0.02))
    params = parameters("tpu")
    optimizer = torch.optim.Adam(params, lr=0.02)
    optimizer.load_state_dict(on_cpu.state_dict())
    state = next(iter(optimizer.state.values()))
    assert state["exp_avg"].device.type == "tpu" and state["step"].item() == STEPS


def test_compiled_step():
    """The step in one compiled graph, as torch.compile(optimizer.step) is used."""
    expected, _ = run("cpu", "SGD", dict(lr=0.05, momentum=0.9), steps=2)
    params = parameters("tpu")
    optimizer = torch.optim.SGD(params, lr=0.05, momentum=0.9)
    compiled = torch.compile(optimizer.step)
    for _ in range(2):
        optimizer.zero_grad()
        loss(params).backward()
        compiled()
    for a, e in zip(params, expected):
        torch.testing.assert_close(a.detach().cpu(), e, **CLOSE)
