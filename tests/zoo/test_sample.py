"""A sample of `systolic zoo`, and what its committed report has to hold.

docs/support/architectures.json is the list: an architecture that matches there must match here.
"""

from __future__ import annotations

import json

import pytest
from sample import REPORT, listed, sample

from systolic.zoo import checks, sweep
from systolic.zoo.checks import CHECKS

# Seconds for one; a busy machine is many times slower than the slowest.
LIMIT = 240.0
# Least number that is attempted (the committed report is not of the whole catalog), and shares that run and match.
LEAST, RAN, MATCHED = 476, 0.98, 0.97


@pytest.fixture(scope="module", autouse=True)
def prepared():
    sweep.prepare()


@pytest.mark.parametrize(("architecture", "second"), sample(), ids=lambda value: str(value))
def test_architecture(architecture, second):
    record = checks.run(architecture, LIMIT, ("eager", second))
    wanted = listed().get(architecture.model_type)
    if wanted is None:
        assert record.state != checks.ATTEMPTED or record.matched, record.cause
        return
    for name in ("eager", second):
        entry = getattr(record, name)
        assert entry, record.cause
        if wanted[name].get("matched"):
            assert entry.get("matched"), record.cause
        assert ("not_applicable" in entry) == ("not_applicable" in wanted[name]), entry
    assert not record.fallbacks.keys() - wanted["fallbacks"].keys()


def test_the_shares_are_held():
    assert REPORT.exists(), "the report is missing: run `systolic zoo`"
    counts = json.loads(REPORT.read_text())["summary"]
    assert counts["attempted"] >= LEAST
    assert counts["ran"] >= RAN * counts["attempted"]
    assert counts["matched"] >= MATCHED * counts["attempted"]


def test_each_failure_and_each_one_left_out_has_a_cause():
    for record in listed().values():
        if record["state"] != "attempted" or not record["matched"]:
            assert record["cause"].strip() and "\n" not in record["cause"], record["model_type"]
        else:
            assert all(record[name] for name in CHECKS), record["model_type"]
