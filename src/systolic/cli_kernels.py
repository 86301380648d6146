"""`systolic kernels`: proves the Pallas kernels without a TPU, and writes the table of what was proven."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from systolic.cli_errors import fail
from systolic.kernels.names import GENERATION_NAMES, NAMES

REPORT_FOLDER = Path("docs/support")


def add_parser(commands) -> None:
    """Add the command to the parser of `systolic`."""
    kernels = commands.add_parser("kernels", help="check, compile, estimate or tune the TPU kernels, without a TPU")
    actions = kernels.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="compare with float64 over drawn cases, in Pallas's interpreter")
    check.add_argument("--cases", type=int, default=200, metavar="N", help="cases of each kernel (default: 200)")
    check.add_argument("--seed", type=int, default=0, help="seed of the cases (default: 0)")
    compile_ = actions.add_parser("compile", help="compile every shape for every generation with the TPU compiler")
    estimate = actions.add_parser("estimate", help="show the time of every shape by a roofline model")
    tune = actions.add_parser("tune", help="choose block sizes: the best by the estimate among those that compile")
    for command in (compile_, tune):
        command.add_argument("--libtpu", type=Path, metavar="PATH", help="libtpu.so, or the folder of its install")
        command.add_argument("--timeout", type=float, default=600.0, metavar="SECONDS",
                             help="for one program (default: 600)")  # fmt: skip
    compile_.add_argument("--again", action="store_true", help="also what the table has from the same sources")
    for command in (compile_, estimate, tune):
        command.add_argument("--generation", action="append", choices=GENERATION_NAMES, help="default: all")
        command.add_argument("--entry", metavar="TEXT", default="", help="only shapes whose name has this in it")
    for command in (check, compile_, estimate, tune):
        command.add_argument("--kernel", action="append", choices=NAMES, help="default: all")
    for command in (check, compile_, estimate):
        command.add_argument("--report", type=Path, default=REPORT_FOLDER, metavar="FOLDER",
                             help="where kernels.json and kernels.md are kept (default: docs/support)")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    """Run the action; the exit code is 1 when a case or a shape failed."""
    from systolic.kernels.aot import LibtpuMissing

    kernels = options.kernel or list(NAMES)
    try:
        action = {"check": _check, "compile": _compile, "estimate": _estimate, "tune": _tune}[options.action]
        return action(kernels, options)
    except LibtpuMissing as error:
        return fail("kernels", error, 1)


def _check(kernels: list[str], options) -> int:
    from systolic.kernels import checking, registry, report

    if options.cases < 1:
        return fail("kernels", f"--cases is {options.cases}; it must be at least 1", 2)
    failures = 0
    for name in kernels:
        checker = checking.Checker(registry.proof(name))
        outcomes = []
        for index in range(options.cases):
            outcome = checker.check(index, options.seed)
            outcomes.append(outcome)
            if outcome.problem:
                print(f"{name} {outcome.label}: {outcome.problem}", flush=True)
        report.record_check(options.report, name, options.seed, outcomes)
        failed = sum(bool(o.problem) for o in outcomes)
        failures += failed
        worst = max(o.worst for o in outcomes)
        print(f"{name}: {len(outcomes) - failed} of {len(outcomes)} cases passed; "
              f"the largest error is {worst:.2f} of its bound", flush=True)  # fmt: skip
    return 1 if failures else 0


def _chosen(kernels: list[str], options):
    """(proof, number of the entry, entry, generation) of everything asked for."""
    from systolic.kernels import registry

    for name in kernels:
        proof = registry.proof(name)
        for number, entry in enumerate(proof.entries):
            if options.entry in entry.label:
                for generation in options.generation or GENERATION_NAMES:
                    yield proof, number, entry, generation


def _compiler(options):
    from systolic.kernels import aot
    from systolic.settings import current

    return aot.Compiler(aot.find_libtpu(options.libtpu or current().libtpu), options.timeout)


def _compile(kernels: list[str], options) -> int:
    from systolic.kernels import report

    failures = 0
    with _compiler(options) as compiler:
        for proof, number, entry, generation in _chosen(kernels, options):
            tuning = entry.chosen(generation)
            known = None if options.again else report.known_compile(options.report, proof, entry, generation, tuning)
            answer = known or compiler.compile(proof.name, number, generation, dataclasses.asdict(tuning))
            report.record_compile(options.report, proof, entry, generation, tuning, answer, compiler.library)
            failures += "error" in answer
            state = f"failed: {answer['error'][:300]} ({answer['advice']})" if "error" in answer else "compiled"
            when = "known" if known else f"{answer['seconds']:.0f} s"
            print(f"{proof.name}, {entry.label}, {generation}: {state}, {when}", flush=True)
    return 1 if failures else 0


def _estimate(kernels: list[str], options) -> int:
    from systolic.kernels import report
    from systolic.kernels.estimate import LEFT_OUT, estimate
    from systolic.kernels.generations import GENERATIONS

    print(f"Estimates by a roofline model, not measurements. Left out: {LEFT_OUT}.")
    for proof, _, entry, generation in _chosen(kernels, options):
        tuning = entry.chosen(generation)
        figures = report.compiled_figures(options.report, proof, entry, generation)
        result = estimate(entry.work(generation, tuning), GENERATIONS[generation], figures)
        print(f"{proof.name}, {entry.label}, {generation}: {result.seconds * 1e6:.1f} us, bound by {result.bound}, "
              f"{100 * result.roofline:.0f}% of the roofline")  # fmt: skip
    return 0


def _tune(kernels: list[str], options) -> int:
    from systolic.kernels import tables
    from systolic.kernels.estimate import estimate
    from systolic.kernels.generations import GENERATIONS

    failures = 0
    with _compiler(options) as compiler:
        for proof, number, entry, generation in _chosen(kernels, options):
            times = {}
            for tuning in entry.candidates(generation):
                answer = compiler.compile(proof.name, number, generation, dataclasses.asdict(tuning))
                if "error" not in answer:
                    work = entry.work(generation, tuning)
                    times[tuning] = estimate(work, GENERATIONS[generation], answer).seconds
            if not times:
                failures += 1
                print(f"{proof.name}, {entry.label}, {generation}: no block sizes compile", flush=True)
                continue
            best = min(times, key=times.get)  # the default, which comes first, among equals
            tables.store(proof.name, generation, entry.key, dataclasses.asdict(best))
            print(f"{proof.name}, {entry.label}, {generation}: {best}, {times[best] * 1e6:.1f} us by the estimate",
                  flush=True)  # fmt: skip
    return 1 if failures else 0
