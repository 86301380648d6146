"""Thirty architectures of the zoo, the same ones every time: each task in proportion, at least one of each large one."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from systolic.zoo.catalog import Architecture, architectures
from systolic.zoo.checks import ATTEMPTED

REPORT = Path(__file__).resolve().parents[2] / "docs" / "support" / "architectures.json"
SIZE = 30
# Each of the sample runs eagerly and has one of these checks beside it, in turn.
SECOND = ("generate", "backward", "compiled")


@functools.cache
def listed() -> dict[str, dict]:
    """Records of the committed report by model type; none before the first run of `systolic zoo`."""
    if not REPORT.exists():
        return {}
    return {r["model_type"]: r for r in json.loads(REPORT.read_text())["architectures"]}


def _seconds(a: Architecture) -> float:
    return listed().get(a.model_type, {}).get("cpu_seconds", 0.0)


def sample() -> list[tuple[Architecture, str]]:
    """(architecture, second check) of those that the report has as attempted; of all without a report."""
    tasks: dict[str, list[Architecture]] = {}
    for a in architectures():
        if not listed() or listed().get(a.model_type, {}).get("state") == ATTEMPTED:
            tasks.setdefault(a.task, []).append(a)
    total = sum(map(len, tasks.values()))
    # Every architecture has a place on a line, tasks side by side; of each thirtieth of it the sample takes one that
    # takes little time, so that thirty fit into the default tests.
    line = [a for task in sorted(tasks) for a in sorted(tasks[task], key=lambda a: a.seed)]
    parts = [line[i * total // SIZE : (i + 1) * total // SIZE] for i in range(SIZE)]
    chosen = [min(part, key=_seconds) for part in parts]
    return [(a, SECOND[i % len(SECOND)]) for i, a in enumerate(chosen)]
