"""`systolic zoo`: every architecture of the installed transformers on the device, against CPU PyTorch."""

from __future__ import annotations

import argparse
from pathlib import Path

from systolic.cli_errors import EXIT_USAGE, fail

OUT = Path("docs") / "support"
JOURNAL = Path("build") / "zoo.jsonl"
DEFAULT_JOBS = 2
# Seconds; the slowest architecture takes a third of it on two cores.
DEFAULT_TIMEOUT = 300.0


def add_parser(commands) -> None:
    """Add the command to the parser of `systolic`."""
    zoo = commands.add_parser(
        "zoo",
        help="run the architectures of transformers, shrunken, on the device and compare with CPU PyTorch",
    )
    zoo.add_argument(
        "names", nargs="*", metavar="NAME", help="model types, shell patterns or tasks (default: all)"
    )
    zoo.add_argument(
        "--jobs", type=_positive(int), default=DEFAULT_JOBS, help="worker processes (default: %(default)s)"
    )
    zoo.add_argument(
        "--timeout", type=_positive(float), default=DEFAULT_TIMEOUT, metavar="SECONDS",
        help="for one architecture (default: %(default)s)",
    )  # fmt: skip
    again = zoo.add_mutually_exclusive_group()
    again.add_argument("--resume", action="store_true", help="go on with an interrupted run")
    again.add_argument("--retry", action="store_true", help="keep what matched, run the rest again")
    zoo.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help=f"for the report of all, or of NAMEs (default of all: {OUT})",
    )
    zoo.add_argument(
        "--journal", type=Path, default=JOURNAL, help="what --resume and --retry read (default: %(default)s)"
    )
    zoo.add_argument("--list", action="store_true", help="list the architectures and run nothing")


def _positive(kind):
    def parse(text: str):
        try:
            value = kind(text)
        except ValueError:
            value = 0
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(
                f"{text!r} is no positive {'whole ' if kind is int else ''}number"
            )
        return value

    return parse


def run(options: argparse.Namespace) -> int:
    """Run the command; the exit code is 1 when an architecture that was attempted did not match."""
    try:
        import transformers  # noqa: F401
    except ImportError:
        return fail("zoo", "transformers is not installed; pip install transformers", 1)
    from systolic.zoo import catalog, report, sweep

    for option, path in (("--out", options.out), ("--journal", options.journal.parent)):
        if path is not None and path.exists() and not path.is_dir():
            return fail("zoo", f"{option}: {path} is a file; give a folder", EXIT_USAGE)
    sweep.compile_quickly()
    sweep.prepare()
    try:
        chosen = catalog.named(options.names)
        journal = sweep.read(options.journal)
    except ValueError as error:
        return fail("zoo", error, EXIT_USAGE)
    if options.list:
        for a in chosen:
            print(f"{a.model_type}  {a.class_name}  {a.task}")
        return 0
    if not (options.resume or options.retry):
        known = {}
    else:
        known = {name: r for name, r in journal.items() if options.resume or r.matched}
    if options.names:  # only these run again; the journal keeps the others
        asked = {a.model_type for a in chosen}
        known = {n: r for n, r in journal.items() if n not in asked} | {
            n: r for n, r in known.items() if n in asked
        }
    records = sweep.sweep(chosen, known, options.journal, options.jobs, options.timeout)
    print("\n" + report.table(report.summary(records)))
    out = options.out or (None if options.names else OUT)
    if out is not None:
        print("wrote " + " and ".join(map(str, report.write(records, out))))
    return 0 if all(r.matched for r in records if r.state == "attempted") else 1
