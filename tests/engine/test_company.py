"""A request's greedy tokens are the same alone and in company, whatever the engine's switches are."""

from __future__ import annotations

import string

import parity
import pytest
import switches
import tiny_models

# Twelve engines, one after the other: minutes.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

COUNT = 40
# One token, block boundaries, and lengths at which two requests outgrow a tight pool together.
PROBES = tiny_models.token_prompts(5, [1, 17, 64, 60, 140], seed=11)
COMPANIONS = tiny_models.token_prompts(6, [3, 90, 33, 120, 70, 16], seed=12)
SAMPLING = {"max_tokens": COUNT, "ignore_eos": True}
# Rounding differs with the size of a step. Equality can be demanded where no choice is closer than this.
CLEAR = 5e-4
CLEAR_JOB = parity.Job(PROBES, {**SAMPLING, "logprobs": 2}, together=False)

PREEMPTED = {**switches.PLAIN, "pool": "tight", "scheduling": "async", "chunk": 64}
STOPPED = {**switches.PLAIN, "caching": True, "scheduling": "async"}
QUESTIONS = parity.Job(["Question: how many?\nQ:", "Once upon a time there was a\nQ:"], SAMPLING)
LETTERS = list(string.ascii_letters)
STOPPED_QUESTIONS = parity.Job(QUESTIONS.prompts, {**SAMPLING, "stop": ["\nQ:", *LETTERS]})

# Programs of the model and of the sampler.
AHEAD = {"model", "logits", "aten.argmax.default", "aten.topk.default", "aten._softmax.default", "aten.index.Tensor"}


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
def results(models):
    """Every engine of this module, by the name it is looked up with; one process runs them one after the other."""
    engines = {
        # First in its process: an operator that an earlier engine compiled would not be compiled again.
        "eager start": _engine({**switches.PLAIN, "execution": "eager"}, models, []),
        **{name: _engine({**switches.PLAIN, "model": name}, models, [CLEAR_JOB]) for name in models},
        **{switches.label(c): _engine(c, models, _jobs()) for c in switches.pairwise()},
        "preempted": _engine(PREEMPTED, models, _jobs()),
        "cold": _engine(STOPPED, models, [QUESTIONS]),
        "stopped": _engine(STOPPED, models, [STOPPED_QUESTIONS, QUESTIONS, STOPPED_QUESTIONS]),
    }
    return dict(zip(engines, parity.engine(list(engines.values()))))


def _engine(combination: dict, models, jobs) -> parity.Engine:
    return parity.Engine(switches.options(combination, models[combination["model"]]), jobs)


@pytest.fixture(scope="module")
def plain(models, results):
    """Model name to what its plain engine says to each probe alone."""
    for name in models:
        closest = min(gap for gaps in results[name].gaps[0] for gap in gaps)
        assert closest > CLEAR, f"{name} has a choice as close as {closest:.2g}: choose another seed"
    return {name: results[name].tokens[0] for name in models}


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
def test_switches_do_not_change_answers(combination, plain, results):
    _check(combination, plain, results[switches.label(combination)])


def check_eager_start(result: parity.EngineResult) -> None:
    """With --enforce-eager the start makes no program of the model or the sampler, only those that loading needs."""
    made = result.warm_up
    assert not AHEAD & set(made), f"--enforce-eager compiled {sorted(AHEAD & set(made))} ahead"
    assert len(made) < 40, f"too many programs for loading alone: {sorted(made)}"


def test_eager_compiles_nothing_ahead(results):
    check_eager_start(results["eager start"])
    for combination in switches.pairwise():
        if combination["execution"] == "eager":  # their answers are compared above
            late = results[switches.label(combination)].late
            assert not {"model", "logits"} & set(late), "the model was meant to run operator by operator"
            assert "paged_attention" in late, "attention ran somewhere else"


def test_compiled_compiles_ahead(results):
    """The counterpart: what the test above looks for is there without --enforce-eager."""
    made = set(results["llama"].warm_up)
    assert AHEAD <= made, f"not found: {sorted(AHEAD - made)}"


def test_a_stop_string_leaves_nothing_behind(results):
    """After a batch that ended on stop strings, greedy output is the same as in a cold engine (bug E3)."""
    cold = results["cold"].tokens[0]
    ended, after, ended_again = results["stopped"].tokens
    assert all(len(tokens) < COUNT for tokens in ended), "a stop string was meant to end both"
    for full, short in zip(cold, ended):
        assert full[: len(short)] == short, f"{short} is no beginning of {full}"
    parity.check(cold, after)
    parity.check(ended, ended_again)


def test_async_scheduling_with_preemption(plain, results):
    """A pool of one and a half requests under async scheduling and small chunks: same answers (bug E11)."""
    _check(PREEMPTED, plain, results["preempted"])


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("model", switches.SWITCHES["model"])
def test_whole_product(model, models, plain):
    combinations = [c for c in switches.product() if c["model"] == model]
    for start in range(0, len(combinations), 12):  # a new process now and then keeps memory small
        part = combinations[start : start + 12]
        for combination, result in zip(part, parity.engine([_engine(c, models, _jobs()) for c in part], 3000)):
            _check(combination, plain, result)
