"""PyTorch's operator, module and optimizer tests on the `tpu` device against the CPU, all of them.

    python tests/conformance/sweep.py                       the whole; writes docs/support/operators.{md,json}
    python tests/conformance/sweep.py --only 'linalg' --dtypes float32 --modes eager     a look at a part

A part is printed, not written.  A run that is interrupted goes on with --resume; --retry also runs again what did not
pass, after a repair.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from dataclasses import asdict
from pathlib import Path

import report
from cases import DATABASES, MODES, Case, all_cases, entries, sample
from worker import Outcome, lost
from worker import run as run_case

from systolic.workers import outcomes

JOURNAL = Path("build") / "conformance.jsonl"


def choose(options: argparse.Namespace) -> list[Case]:
    """The cases that the options ask for."""
    chosen = [
        case
        for case in all_cases(options.modes)
        if case.database in options.databases
        and (not options.dtypes or case.dtype in options.dtypes)
        and re.search(options.only, case.name)
    ]
    return sample(chosen, options.one_in) if options.one_in > 1 else chosen


def remembered(path: Path) -> dict[Case, Outcome]:
    """Outcomes of an interrupted run, by case."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        record = json.loads(line)
        case = Case(**record.pop("case"))
        found[case] = Outcome(case, **record)
    return found


def run(options: argparse.Namespace) -> list[Outcome]:
    """Run the cases, showing progress; every outcome is kept in the journal at once."""
    cases = choose(options)
    resume = options.resume or options.retry
    known = remembered(options.journal) if resume else {}
    if options.retry:
        known = {case: outcome for case, outcome in known.items() if outcome.state == "passed"}
    results = [known[case] for case in cases if case in known]
    left = [case for case in cases if case not in known]
    for database in {case.database for case in left}:
        entries(database)  # imported before the workers fork
    options.journal.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with options.journal.open("a" if resume else "w") as journal:
        for number, outcome in enumerate(outcomes(left, run_case, lost, options.jobs, options.limit), 1):
            results.append(outcome)
            journal.write(json.dumps(asdict(outcome)) + "\n")
            journal.flush()
            if outcome.state == "failed" or (outcome.state == "fallback" and options.verbose):
                print(f"\r\033[K{outcome.state} {outcome.case}: {outcome.reason}")
            rest = (time.monotonic() - started) / number * (len(left) - number)
            print(f"\r\033[K{number} of {len(left)}, {rest / 60:.0f} min left", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return results


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="REGEX", help="names to run")
    parser.add_argument("--dtypes", nargs="*", default=[], help="such as float32 (default: all)")
    parser.add_argument("--modes", nargs="*", default=MODES, choices=MODES)
    parser.add_argument("--databases", nargs="*", default=DATABASES, choices=DATABASES)
    parser.add_argument("--one-in", type=int, default=1, help="run a fixed sample of this share")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one case")
    parser.add_argument("--resume", action="store_true", help="keep what the journal has")
    parser.add_argument("--retry", action="store_true", help="keep what passed, run the rest again")
    parser.add_argument("--journal", type=Path, default=JOURNAL)
    parser.add_argument("--verbose", action="store_true", help="also print what fell back to the CPU")
    options = parser.parse_args(arguments)
    results = run(options)
    whole = set(all_cases()) <= {r.case for r in results}
    print(report.table(report.summary(results)))
    if whole:
        report.write(results)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
