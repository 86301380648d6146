"""All architectures in worker processes, with a journal that an interrupted run goes on from."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Iterable, TextIO

from systolic.progress import duration
from systolic.workers import outcomes

from .catalog import Architecture
from .checks import Record, lost, run

# A worker keeps the programs and the modules of all its architectures in memory.
ARCHITECTURES_PER_WORKER = 30
# The flag of XLA for LLVM's level of optimization.
OPTIMIZATION = "xla_backend_optimization_level"


def read(journal: Path) -> dict[str, Record]:
    """Records of a journal by model type, the last of each; empty when there is none.

    Raises:
        ValueError: for a file that is no journal.
    """
    found = {}
    for number, line in enumerate(journal.read_text().splitlines() if journal.exists() else (), 1):
        try:
            record = Record(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{journal}, line {number}, is no record of the zoo ({error}); remove the file"
            ) from None
        found[record.model_type] = record
    return found


def compile_quickly() -> None:
    """Have XLA leave out LLVM's optimizations in this process and its workers; before JAX starts.

    Thousands of tiny programs run a few times each: optimizing takes longer than it saves.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if OPTIMIZATION not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --{OPTIMIZATION}=0".strip()


def prepare() -> None:
    """Import what every worker needs, before they are forked, and nothing that starts JAX."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # some configs look for a checkpoint on the network
    import logging

    import torch
    import torch._dynamo  # noqa: F401
    import transformers
    import transformers.modeling_utils  # noqa: F401

    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    transformers.logging.disable_progress_bar()
    logging.getLogger("torch").setLevel(
        logging.CRITICAL
    )  # an error is in its record; PyTorch logs it in pages as well
    torch.set_num_threads(1)  # each worker has a core of its own


def sweep(
    chosen: Iterable[Architecture],
    known: dict[str, Record],
    journal: Path,
    jobs: int,
    limit: float,
    shown: TextIO = sys.stderr,
) -> list[Record]:
    """Run what is not ``known`` and return the records of all ``chosen``; each is in the journal at once."""
    chosen = list(chosen)
    # Families mixed, so that the time of those that ran says something of those that are left.
    left = sorted((a for a in chosen if a.model_type not in known), key=lambda a: a.seed)
    records = [known[a.model_type] for a in chosen if a.model_type in known]
    journal.parent.mkdir(parents=True, exist_ok=True)
    journal.write_text("".join(json.dumps(asdict(r)) + "\n" for r in known.values()))
    started = time.monotonic()
    with journal.open("a") as lines:
        for number, record in enumerate(outcomes(left, run, lost, jobs, limit, ARCHITECTURES_PER_WORKER), 1):
            records.append(record)
            lines.write(json.dumps(asdict(record)) + "\n")
            lines.flush()
            elapsed = time.monotonic() - started
            rest = elapsed / number * (len(left) - number)
            _show(shown, record, f"[{number}/{len(left)}]", f"about {duration(rest)} left")
    return records


def _show(shown: TextIO, record: Record, count: str, rest: str) -> None:
    """One line for each record; on a terminal only those that did not match stay."""
    good = record.matched
    state = (
        "matches"
        if good
        else record.state
        if record.state != "attempted"
        else "does not match"
        if record.ran
        else "fails"
    )
    line = f"{count} {record.model_type}: {state}" + (f": {record.cause[:300]}" if record.cause else "")
    if shown.isatty():
        shown.write("\r\x1b[K" + (line if good else line + "\n") + f" ... {rest}")
    else:
        shown.write(f"{line} ({record.seconds:.0f} s; {rest})\n")
    shown.flush()
