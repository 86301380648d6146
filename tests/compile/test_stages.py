"""A deep program as a chain of launches: the layer is compiled once, results and in-place updates stay the same."""

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import nn

from systolic.compile import executables, stages
from systolic.compile.chain import Chain

LAYERS = 6


@pytest.fixture(autouse=True)
def small_layers_too(monkeypatch, tmp_path):
    monkeypatch.setenv("SYSTOLIC_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(stages, "LEAST_BYTES", 0)
    torch._dynamo.reset()


@pytest.fixture
def chains(monkeypatch):
    """The wirings of the programs that are cut, in order; None for one that stays whole."""
    found = []
    original = stages.split

    def split(closed, donated):
        cut = original(closed, donated)
        found.append(cut and cut[1])
        return cut

    monkeypatch.setattr(stages, "split", split)
    return found


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def stack(width=8, layers=LAYERS):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, width), *(Layer(width) for _ in range(layers)), nn.Linear(width, 3))


def test_layer_is_compiled_once_and_run_for_each(chains):
    model, x = stack(), torch.randn(5, 4)
    compiled = torch.compile(stack().tpu(), backend="tpu")
    with torch.no_grad():
        # float32 sums in another order: PyTorch's default tolerance
        torch.testing.assert_close(compiled(x.tpu()).cpu(), model(x))
    (wiring,) = [c for c in chains if c]
    runs = [stage for stage, _, _ in wiring.runs]
    assert max(runs.count(stage) for stage in set(runs)) >= LAYERS - 1
    assert len(set(runs)) <= 3


def test_gradients_of_a_deep_model(chains):
    host, model, x = stack(), stack().tpu(), torch.randn(5, 4)
    torch.compile(model, backend="tpu")(x.tpu()).square().sum().backward()
    host(x).square().sum().backward()
    assert sum(c is not None for c in chains) == 2, "forward and backward"
    for mine, reference in zip(model.parameters(), host.parameters()):
        torch.testing.assert_close(mine.grad.cpu(), reference.grad)


def test_caches_are_updated_in_place(chains):
    caches = [torch.zeros(16, 8).tpu() for _ in range(LAYERS)]
    weights = [torch.randn(8, 8).tpu() for _ in range(LAYERS)]
    x = torch.randn(2, 8).tpu()

    def step(x, rows):
        for cache, weight in zip(caches, weights):
            cache.index_copy_(0, rows, x)
            x = torch.tanh(x @ weight) + cache.sum(0)
        return x

    hosts = [c.cpu() for c in caches], [w.cpu() for w in weights]
    compiled = torch.compile(step, backend="tpu")
    y = x.cpu()
    for rows in ([0, 1], [5, 9]):
        places = torch.tensor(rows)
        before = [torch.tpu._C.array_of(c).unsafe_buffer_pointer() for c in caches]
        out = compiled(x, places.tpu())
        z = y
        for cache, weight in zip(*hosts):
            cache.index_copy_(0, places, z)
            z = torch.tanh(z @ weight) + cache.sum(0)
        torch.testing.assert_close(out.cpu(), z)
        for cache, host in zip(caches, hosts[0]):
            torch.testing.assert_close(cache.cpu(), host)
        after = [torch.tpu._C.array_of(c).unsafe_buffer_pointer() for c in caches]
        if rows == [5, 9]:
            assert after == before, "the storages are those of the last call"
    assert chains[-1] is not None


def test_chain_is_stored_and_loaded(chains):
    x = torch.randn(3, 4)
    model = stack(width=24).tpu()
    with torch.no_grad():
        first = torch.compile(model, backend="tpu")(x.tpu()).cpu()
        cut = len(chains)
        torch._dynamo.reset()
        before = executables.statistics.compilations
        again = torch.compile(model, backend="tpu")(x.tpu()).cpu()
    assert executables.statistics.compilations == before and len(chains) == cut
    assert torch.equal(first, again)


def layer(x, w):
    return jnp.tanh(x @ w)


def traced(function, *arguments, donated=()):
    def named(x, w):
        return layer(x, w)

    named.__name__ = stages.LAYER
    body = jax.jit(named)
    return stages.split(jax.make_jaxpr(lambda *a: function(body, *a))(*arguments), donated)


def arguments(count):
    return [jnp.ones((4, 4)) for _ in range(count + 1)]


def through(between):
    def run(body, x, *weights):
        for w in weights:
            x = between(body(x, w))
        return [x]

    return run


def test_few_layers_stay_whole():
    assert traced(through(lambda x: x), *arguments(stages.LEAST_LAYERS)) is not None
    assert traced(through(lambda x: x), *arguments(stages.LEAST_LAYERS - 1)) is None


def test_small_layers_stay_whole(monkeypatch):
    monkeypatch.setattr(stages, "LEAST_BYTES", 4 * 4 * 4 * 2 + 1)  # x and w, float32
    assert traced(through(lambda x: x), *arguments(6)) is None


def test_work_between_layers_keeps_the_program_whole():
    assert traced(through(lambda x: x * 2), *arguments(6)) is None


def test_donated_input_of_the_last_stage():
    def run(body, x, w):
        for _ in range(6):
            x = body(x, w)
        return [w + 1, x]

    parts, _ = traced(run, *arguments(1), donated=(1,))
    assert [p.donated != () for p in parts] == [False, True], "only what comes after the layers may overwrite w"


def test_donated_input_that_several_layers_update_keeps_the_program_whole():
    def run(body, x, *weights):
        for w in weights:
            x = body(x, w)
        return [x]

    assert traced(run, *arguments(6)) is not None
    assert traced(run, *arguments(6), donated=(0,)) is None


@pytest.mark.parametrize("crossed", [False, True])
def test_layers_that_pair_what_they_overwrite_differently_keep_the_program_whole(crossed):
    def run(body, x, *pairs):
        results = []
        for number, (a, b) in enumerate(zip(pairs[::2], pairs[1::2])):
            x, a, b = body(x, a, b)
            results += [b, a] if crossed and number == 2 else [a, b]
        return [*results, x.sum()]

    def both(x, a, b):
        return x + a @ b, a + 1, b * 2

    both.__name__ = stages.LAYER
    body, given = jax.jit(both), [jnp.ones((4, 4)) for _ in range(13)]
    cut = stages.split(jax.make_jaxpr(lambda *a: run(body, *a))(*given), range(1, 13))
    assert (cut is None) == crossed


@pytest.mark.parametrize("numbers", [[2.0] * 6, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
def test_layers_that_are_given_numbers(numbers):
    """A number is no variable: equal ones leave the layers equal, others keep the program whole."""

    def scaled(x, w, number):
        return jnp.tanh(x @ w) * number

    scaled.__name__ = stages.LAYER
    body = jax.jit(scaled)

    def run(x, *weights):
        for w, number in zip(weights, numbers):
            x = body(x, w, number)
        return [x.sum(), x]

    given = [jax.random.normal(jax.random.key(i), (4, 4)) for i in range(7)]
    cut = stages.split(jax.make_jaxpr(run)(*given), ())
    assert (cut is None) == (len(set(numbers)) > 1)


def test_split_computes_what_the_program_computes():
    def run(body, x, *weights):
        x = x * 2 + jnp.arange(4.0)
        seen = []
        for w in weights:
            x = body(x, w)
            seen.append(x)
        return [x.sum(), seen[2].reshape(16) + seen[4].reshape(16), *weights[:1]]

    given = [jax.random.normal(jax.random.key(i), (4, 4)) for i in range(7)]
    parts, wiring = traced(run, *given)
    chain = Chain(wiring, [jax.jit(p.function) for p in parts], 0)
    plain = run(layer, *given)
    for mine, reference in zip(chain(*given), plain, strict=True):
        # the same float32 operations, fused differently
        torch.testing.assert_close(torch.tensor(mine.tolist()), torch.tensor(reference.tolist()))


def test_same_text_with_other_writes_is_another_program():
    """Equal graphs but for what they write must not share a stored program."""

    def returns(x):
        return x + 1, x * 2

    def writes(x):
        y = x + 1
        x.copy_(x * 2)
        return y

    for function in (returns, writes, returns, writes):
        torch._dynamo.reset()
        host, x = torch.arange(3.0), torch.arange(3.0).tpu()
        want, got = function(host), torch.compile(function, backend="tpu")(x)
        torch.testing.assert_close(torch.utils._pytree.tree_map(torch.Tensor.cpu, got), want)
        torch.testing.assert_close(x.cpu(), host)


def test_waiting_for_a_chain_waits_for_its_last_stage(chains):
    """The first result of the program comes from its first layer."""
    weights = [torch.randn(500, 500).tpu() for _ in range(8)]

    def run(x):
        first = None
        for w in weights:
            x = torch.tanh(x @ w)
            first = x if first is None else first
        return first, x

    x = torch.randn(500, 500).tpu()
    compiled = torch.compile(run, backend="tpu")
    compiled(x)
    assert chains[-1] is not None
    first, last = compiled(x)
    torch.tpu.synchronize()
    assert torch.tpu._C.array_of(last).is_ready()
