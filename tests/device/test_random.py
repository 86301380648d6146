"""Generators: reproducible, saved and restored, and statistically right."""

import math

import pytest
import torch

DRAWS = {
    "rand": lambda **k: torch.rand(8, device="tpu", **k),
    "randn": lambda **k: torch.randn(8, device="tpu", **k),
    "randint": lambda **k: torch.randint(0, 2**40, (8,), device="tpu", **k),
    "randperm": lambda **k: torch.randperm(16, device="tpu", **k),
    "uniform_": lambda **k: torch.empty(8, device="tpu").uniform_(2, 3, **k),
    "normal_": lambda **k: torch.empty(8, device="tpu").normal_(1, 2, **k),
    "exponential_": lambda **k: torch.empty(8, device="tpu").exponential_(**k),
    "bernoulli_": lambda **k: torch.empty(64, device="tpu").bernoulli_(0.5, **k),
    "bernoulli": lambda **k: torch.bernoulli(torch.full((64,), 0.5, device="tpu"), **k),
    "random_": lambda **k: torch.empty(8, device="tpu", dtype=torch.int64).random_(**k),
    "geometric_": lambda **k: torch.empty(32, device="tpu").geometric_(0.2, **k),
    "cauchy_": lambda **k: torch.empty(8, device="tpu").cauchy_(**k),
    "log_normal_": lambda **k: torch.empty(8, device="tpu").log_normal_(**k),
    "multinomial": lambda **k: torch.multinomial(torch.ones(64, device="tpu"), 8, **k),
    "normal of means": lambda **k: torch.normal(torch.zeros(8, device="tpu"), 1.0, **k),
    "poisson": lambda **k: torch.poisson(torch.full((16,), 30.0, device="tpu"), **k),
}


@pytest.mark.parametrize("name", DRAWS)
def test_seed_reproduces_and_calls_differ(name):
    draw = DRAWS[name]
    torch.manual_seed(7)
    first, second = draw(), draw()
    torch.manual_seed(7)
    assert torch.equal(draw(), first) and torch.equal(draw(), second)
    assert not torch.equal(first, second)
    torch.manual_seed(8)
    assert not torch.equal(draw(), first)


@pytest.mark.parametrize("name", DRAWS)
def test_own_generator(name):
    draw = DRAWS[name]
    before = torch.tpu.get_rng_state()
    one, two = (torch.Generator(device="tpu").manual_seed(3) for _ in range(2))
    assert torch.equal(draw(generator=one), draw(generator=two))
    assert torch.equal(torch.tpu.get_rng_state(), before)


def test_generator_interface():
    g = torch.Generator(device="tpu")
    assert g.device.type == "tpu"
    g.manual_seed(2**40 + 1)
    assert g.initial_seed() == 2**40 + 1
    state = g.get_state()
    first = torch.rand(4, device="tpu", generator=g)
    clone = g.clone_state()
    g.set_state(state)
    assert torch.equal(torch.rand(4, device="tpu", generator=g), first)
    assert torch.equal(torch.rand(4, device="tpu", generator=g), torch.rand(4, device="tpu", generator=clone))
    assert g.seed() == g.initial_seed()


def test_generator_of_another_device_is_refused():
    with pytest.raises(RuntimeError, match="(?i)generator"):
        torch.rand(2, device="tpu", generator=torch.Generator())


def test_wrong_state_is_refused():
    with pytest.raises(RuntimeError, match="16 bytes"):
        torch.tpu.set_rng_state(torch.zeros(3, dtype=torch.uint8))


def test_rng_state_and_fork():
    torch.manual_seed(1)
    state = torch.tpu.get_rng_state()
    first = torch.rand(4, device="tpu")
    torch.tpu.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="tpu"), first)
    torch.tpu.set_rng_state(state)
    with torch.random.fork_rng(devices=[0], device_type="tpu"):
        torch.rand(100, device="tpu")
        torch.manual_seed(99)
    assert torch.equal(torch.rand(4, device="tpu"), first)


def test_seeds_of_the_module():
    torch.tpu.manual_seed(5)
    assert torch.tpu.initial_seed() == 5
    first = torch.rand(2, device="tpu")
    torch.tpu.manual_seed_all(5)
    assert torch.equal(torch.rand(2, device="tpu"), first)
    torch.tpu.seed()
    assert torch.tpu.initial_seed() != 5


def test_shapes_and_views_do_not_repeat_numbers():
    torch.manual_seed(0)
    t = torch.empty(4, 256, device="tpu")
    for row in t:
        row.uniform_()
    assert t.unique().numel() > 1000


def test_distributions_have_the_right_moments():
    torch.manual_seed(0)
    n = 20000
    bound = 5 / math.sqrt(n)  # five standard errors of a mean with unit variance
    z = torch.randn(n, device="tpu")
    assert abs(z.mean().item()) < bound and abs(z.var().item() - 1) < 2 * bound
    u = torch.rand(n, device="tpu")
    assert 0 <= u.min().item() and u.max().item() < 1 and abs(u.mean().item() - 0.5) < bound
    e = torch.empty(n, device="tpu").exponential_(2.0)
    assert e.min().item() > 0 and abs(e.mean().item() - 0.5) < bound
    b = torch.empty(n, device="tpu").bernoulli_(0.3)
    assert abs(b.mean().item() - 0.3) < bound
    i = torch.randint(-3, 5, (n,), device="tpu")
    assert set(i.unique().tolist()) == set(range(-3, 5))
    assert sorted(torch.randperm(100, device="tpu").tolist()) == list(range(100))
    counts = torch.multinomial(torch.tensor([1.0, 0.0, 3.0], device="tpu"), n, replacement=True).bincount(
        minlength=3
    )
    assert counts[1].item() == 0 and abs(counts[2].item() / n - 0.75) < bound


def test_dropout():
    torch.manual_seed(0)
    x = torch.ones(1000, device="tpu")
    y = torch.nn.functional.dropout(x, 0.25)
    kept = (y != 0).float().mean().item()
    assert abs(kept - 0.75) < 5 * math.sqrt(0.25 * 0.75 / 1000)  # five standard errors
    assert y.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert not torch.equal(y, torch.nn.functional.dropout(x, 0.25))
    assert torch.nn.functional.dropout(x, 0.25, training=False) is x


def test_no_new_program_for_another_seed():
    torch.manual_seed(0)
    torch.rand(5, device="tpu").normal_()
    before = torch.tpu.compilations()
    for seed in range(3):
        torch.manual_seed(seed)
        torch.rand(5, device="tpu").normal_()
    assert torch.tpu.compilations() == before
