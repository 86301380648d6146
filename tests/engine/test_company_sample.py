"""The default tier's part of `test_company`: chunk size, cache, company, preemption and async scheduling on one model."""

from __future__ import annotations

import parity
import pytest
import switches
from test_company import AHEAD, CLEAR_JOB, PREEMPTED, check_eager_start
from test_company import _check, _engine, _jobs, plain  # noqa: F401  `plain` is a fixture

CACHED = {**switches.PLAIN, "caching": True, "scheduling": "async", "chunk": 200}
COMBINATIONS = {"cached": CACHED, "preempted": PREEMPTED}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return parity.save_models(["llama"], tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def results(models):
    engines = {
        # First in its process: an operator that an earlier engine compiled would not be compiled again.
        "eager": _engine({**switches.PLAIN, "execution": "eager"}, models, [CLEAR_JOB]),
        "llama": _engine(switches.PLAIN, models, [CLEAR_JOB]),
        **{name: _engine(combination, models, _jobs()) for name, combination in COMBINATIONS.items()},
    }
    return dict(zip(engines, parity.engine(list(engines.values()))))


@pytest.mark.parametrize("name", COMBINATIONS)
def test_company_cache_chunks_and_preemption_do_not_change_answers(name, plain, results):  # noqa: F811
    _check(COMBINATIONS[name], plain, results[name])


def test_eager_compiles_nothing_ahead_and_answers_the_same(plain, results):  # noqa: F811
    check_eager_start(results["eager"])
    assert AHEAD <= set(results["llama"].warm_up), "what the check above looks for is not there without --enforce-eager"
    parity.check(plain["llama"], results["eager"].tokens[0])
