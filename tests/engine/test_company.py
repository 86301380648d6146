"""A request's greedy tokens are the same alone and in company, whatever the engine's switches are."""

from __future__ import annotations

import parity
import pytest
import switches
import tiny_models

pytestmark = [pytest.mark.xdist_group("parity"), pytest.mark.timeout(900)]

COUNT = 40
# One token, block boundaries, and lengths at which two requests outgrow a tight pool together.
PROBES = tiny_models.token_prompts(5, [1, 17, 64, 60, 140], seed=11)
COMPANIONS = tiny_models.token_prompts(6, [3, 90, 33, 120, 70, 16], seed=12)
SAMPLING = {"max_tokens": COUNT, "ignore_eos": True}
# Rounding differs with the size of a step. Equality can be demanded where no choice is closer than this.
CLEAR = 5e-4


def _jobs() -> list[parity.Job]:
    """The probes alone, in company, and alone again (from the cache where there is one)."""
    company = [prompt for pair in zip(COMPANIONS, PROBES) for prompt in pair] + COMPANIONS[len(PROBES) :]
    return [
        parity.Job(PROBES, SAMPLING, together=False),
        parity.Job(company, SAMPLING),
        parity.Job(PROBES, SAMPLING, together=False),
    ]


def _probes_of(company: list) -> list:
    return company[1 : 2 * len(PROBES) : 2]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return parity.save_models(list(switches.SWITCHES["model"]), tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def plain(models):
    """Model name to what its plain engine says to each probe alone."""
    job = parity.Job(PROBES, {**SAMPLING, "logprobs": 2}, together=False)
    engines = [
        parity.Engine(switches.options({**switches.PLAIN, "model": name}, folder), [job])
        for name, folder in models.items()
    ]
    results = dict(zip(models, parity.engine(engines)))
    for name, result in results.items():
        closest = min(gap for gaps in result.gaps[0] for gap in gaps)
        assert closest > CLEAR, f"{name} has a choice as close as {closest:.2g}: choose another seed"
    return {name: result.tokens[0] for name, result in results.items()}


def _results(models, combinations) -> dict[str, parity.EngineResult]:
    engines = [parity.Engine(switches.options(c, models[c["model"]]), _jobs()) for c in combinations]
    return dict(zip(map(switches.label, combinations), parity.engine(engines)))


@pytest.fixture(scope="module")
def pairwise(models):
    return _results(models, switches.pairwise())


def _check(combination: dict, plain, result: parity.EngineResult) -> None:
    expected = plain[combination["model"]]
    alone, company, again = result.tokens
    for way, got in (("alone", alone), ("in company", _probes_of(company)), ("again", again)):
        parity.check(expected, got, names=[f"{way}, {len(p)} tokens, {combination}" for p in PROBES])
    assert max(result.step_tokens) <= combination["chunk"]
    if combination["pool"] == "tight":
        assert result.preemptions > 0, "the pool was meant to be too small for the company"
    else:
        assert result.preemptions == 0
    full_blocks = [(len(prompt) - 1) // switches.BLOCK * switches.BLOCK for prompt in PROBES]
    if not combination["caching"]:
        assert not any(result.cached[2])
    elif combination["pool"] == "ample" and combination["model"] != "gemma3":
        # A sliding window may need fewer blocks than all; there only the tokens are compared.
        assert result.cached[2] == full_blocks, "the second time each prompt was meant to come from the cache"
    assert not result.fallbacks
    if combination["execution"] == "compiled":
        assert not result.late, "these programs were made after warm-up"


@pytest.mark.parametrize("combination", switches.pairwise(), ids=switches.label)
def test_switches_do_not_change_answers(combination, plain, pairwise):
    _check(combination, plain, pairwise[switches.label(combination)])


def test_eager_compiles_nothing_ahead(pairwise):
    """With --enforce-eager the start makes no program of the model, of its logits or of the sampler."""
    eager = [c for c in switches.pairwise() if c["execution"] == "eager"]
    assert eager
    for combination in eager:
        result = pairwise[switches.label(combination)]
        ahead = {name for name in result.warm_up if not name.startswith(STARTUP_OPERATORS)}
        assert not ahead, f"{switches.label(combination)} compiled {sorted(ahead)} ahead"
        assert "model" not in result.late and "logits" not in result.late


# Loading weights and clearing the cache run ordinary operators.
STARTUP_OPERATORS = ("aten.zero", "aten.fill", "aten.copy", "aten._copy", "aten.empty", "aten._to_copy", "aten.slice")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", switches.SWITCHES["model"])
def test_whole_product(model, models, plain):
    combinations = [c for c in switches.product() if c["model"] == model]
    for start in range(0, len(combinations), 12):  # a new process now and then keeps memory small
        part = combinations[start : start + 12]
        for combination, result in zip(part, _results(models, part).values()):
            _check(combination, plain, result)


def test_a_stop_string_leaves_nothing_behind(models):
    """After a batch that ended on stop strings, greedy output is the same as in a cold engine (bug E3)."""
    prompts = ["Question: how many?\nQ:", "Once upon a time there was a\nQ:"]
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    cold = parity.Job(prompts, SAMPLING)
    stopped = parity.Job(prompts, {**SAMPLING, "stop": ["\nQ:", *letters]})
    combination = {**switches.PLAIN, "caching": True, "scheduling": "async"}
    folder = models["llama"]
    first, second = parity.engine([
        parity.Engine(switches.options(combination, folder), [cold]),
        parity.Engine(switches.options(combination, folder), [stopped, cold, stopped]),
    ])  # fmt: skip
    ended, after, ended_again = second.tokens
    assert all(len(tokens) < COUNT for tokens in ended), "a stop string was meant to end both"
    for full, short in zip(first.tokens[0], ended):
        assert full[: len(short)] == short, f"{short} is no beginning of {full}"
    parity.check(first.tokens[0], after)
    parity.check(ended, ended_again)


def test_async_scheduling_with_preemption(models, plain):
    """A pool of one and a half requests under async scheduling and small chunks: same answers (bug E11)."""
    combination = {**switches.PLAIN, "pool": "tight", "scheduling": "async", "chunk": 64}
    (result,) = _results(models, [combination]).values()
    _check(combination, plain, result)
