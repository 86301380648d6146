"""The report of a sweep: docs/support/operators.json and operators.md, both written from the outcomes alone."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from cases import DATABASES, MODES
from reasons import reason
from worker import STATES, Outcome

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "support"
# mode -> least share that passes, largest share of CPU fallbacks
SHARES = {"eager": (0.98, 0.03), "compiled": (0.97, 0.03)}
MARKS = {"passed": "✓", "fallback": "cpu", "failed": "✗"}


def summary(results: list[Outcome]) -> dict:
    """Counts by mode: attempted, passed, fallback, failed."""
    return {
        mode: {"attempted": sum(r.case.mode == mode for r in results)}
        | {state: sum(r.case.mode == mode and r.state == state for r in results) for state in STATES}
        for mode in MODES
    }


def table(counts: dict) -> str:
    """The summary as a Markdown table."""
    lines = ["| mode | attempted | passed | CPU fallback | failed |", "| --- | --- | --- | --- | --- |"]
    for mode, c in counts.items():
        share = [f"{c[s]:,} ({100 * c[s] / max(1, c['attempted']):.1f}%)" for s in STATES]
        lines.append(f"| {mode} | {c['attempted']:,} | {' | '.join(share)} |")
    return "\n".join(lines)


def write(results: list[Outcome], folder: Path = FOLDER) -> None:
    """Write both files."""
    folder.mkdir(parents=True, exist_ok=True)
    counts = summary(results)
    records: dict = {database: {} for database in DATABASES}
    for r in sorted(results, key=lambda r: r.case):
        entry = records[r.case.database].setdefault(r.case.name, {}).setdefault(r.case.dtype, {})
        entry[r.case.mode] = r.state if r.state == "passed" else {"state": r.state, "reason": reason(r)}
    document = {"summary": counts, "versions": {"torch": torch.__version__}, **records}
    (folder / "operators.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    (folder / "operators.md").write_text(_markdown(counts, records, sum(r.seconds for r in results)))


def _markdown(counts: dict, records: dict, seconds: float) -> str:
    lines = [
        "# Operators, modules and optimizers", "",
        "Written by `python tests/conformance/sweep.py`: PyTorch's own databases of tests on the `tpu` device (here",
        "XLA on the CPU) against CPU PyTorch. A pair is an entry with one dtype; it passes when all its checks do,",
        "and counts as a fallback when a check needed an operator that is not lowered and ran on the CPU.",
        "`tests/conformance/compare.py` says when results are equal.", "", table(counts), "",
        f"The cases took {seconds / 60:.0f} minutes one after the other; the sweep runs one process a core.",
        "Those that did not pass were run again after each repair.", "",
    ]  # fmt: skip
    for database, entries in records.items():
        bad = {n: d for n, d in entries.items() if any(r != "passed" for m in d.values() for r in m.values())}
        lines += [f"## {database.capitalize()}s", "",
                  f"{len(entries) - len(bad)} of {len(entries)} pass with every dtype and in both modes. The others:", "",
                  "| name | dtype | mode | state | reason |", "| --- | --- | --- | --- | --- |"]  # fmt: skip
        for name, dtypes in bad.items():
            for (state, why, mode), group in _grouped(dtypes).items():
                lines.append(f"| {name} | {', '.join(group)} | {mode} | {MARKS[state]} | {why} |")
        lines.append("")
    return "\n".join(lines)


def _grouped(dtypes: dict) -> dict:
    """(state, reason, mode) to dtypes, so that one cause is one line."""
    groups: dict = {}
    for dtype, modes in dtypes.items():
        for mode, record in modes.items():
            if record != "passed":
                why = record["reason"].replace("|", "\\|")
                groups.setdefault((record["state"], why, mode), []).append(dtype)
    return groups
