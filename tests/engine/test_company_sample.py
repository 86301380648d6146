"""The default tier's part of `test_company`: chunk size, cache, company, preemption and async scheduling on one model."""

from __future__ import annotations

import parity
import pytest
import switches
from test_company import CLEAR_JOB, PREEMPTED, _check, _engine, _jobs, plain  # noqa: F401  `plain` is a fixture

CACHED = {**switches.PLAIN, "caching": True, "scheduling": "async", "chunk": 200}
COMBINATIONS = {"cached": CACHED, "preempted": PREEMPTED}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return parity.save_models(["llama"], tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def results(models):
    engines = {
        "llama": _engine(switches.PLAIN, models, [CLEAR_JOB]),
        **{name: _engine(combination, models, _jobs()) for name, combination in COMBINATIONS.items()},
    }
    return dict(zip(engines, parity.engine(list(engines.values()))))


@pytest.mark.parametrize("name", COMBINATIONS)
def test_company_cache_chunks_and_preemption_do_not_change_answers(name, plain, results):  # noqa: F811
    _check(COMBINATIONS[name], plain, results[name])
