"""A tenth of the conformance sweep's pairs (half of them eager, half compiled), and the rule that its list of what does not pass only shrinks.

docs/support/operators.json, which the whole sweep writes, is the list: a pair that is not in it must pass, and a pair
that passes must not be in it.
"""

from __future__ import annotations

import functools
import json

import pytest
from cases import Case, all_cases, sample
from report import FOLDER, SHARES
from worker import STATES, run

ONE_IN = 20  # of each mode
# Seconds for one case: a busy machine is several times slower than the slowest case.
LIMIT = 120.0


@functools.cache
def listed() -> dict:
    return json.loads((FOLDER / "operators.json").read_text())


def expected(case: Case) -> str:
    """State of the case in the list."""
    record = listed()[case.database][case.name][case.dtype][case.mode]
    return record if isinstance(record, str) else record["state"]


@pytest.mark.parametrize("case", sample(all_cases(), ONE_IN), ids=str)
def test_pair(case):
    want = expected(case)
    # What is expected to pass is run on half the samples: the whole would take longer than all other tests.
    outcome = run(case, LIMIT, thorough=want != "passed")
    assert STATES.index(outcome.state) <= STATES.index(want), f"{outcome.state}: {outcome.reason}"
    assert outcome.state == want, f"it is {outcome.state} now, no longer {want}: run the sweep to shorten the list"


def test_the_list_is_of_every_pair():
    cases = {str(case) for case in all_cases()}
    records = {
        str(Case(database, name, dtype, mode))
        for database in ("operator", "module", "optimizer")
        for name, dtypes in listed()[database].items()
        for dtype, modes in dtypes.items()
        for mode in modes
    }
    assert records == cases


def test_the_shares_are_held():
    for mode, (passed, fallback) in SHARES.items():
        counts = listed()["summary"][mode]
        assert counts["passed"] + counts["fallback"] + counts["failed"] == counts["attempted"]
        assert counts["passed"] >= passed * counts["attempted"], f"{mode}: {counts}"
        assert counts["fallback"] <= fallback * counts["attempted"], f"{mode}: {counts}"


def test_each_of_the_rest_has_a_reason():
    for database in ("operator", "module", "optimizer"):
        for name, dtypes in listed()[database].items():
            for modes in dtypes.values():
                for record in modes.values():
                    assert record == "passed" or record["reason"].strip(), name
