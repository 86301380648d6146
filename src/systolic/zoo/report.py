"""The report of a sweep: architectures.json and architectures.md, both written from the records alone."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from . import criterion
from .catalog import architectures
from .checks import (
    ATTEMPTED,
    CHECKS,
    NEW_TOKENS,
    NOT_GENERATIVE,
    NOT_INSTANTIATED,
    REFERENCE_FAILS,
    Record,
)

CRITERION = (
    "Same structure, shapes and dtypes as CPU PyTorch in float32, finite in the same places, and every difference "
    f"within rtol {criterion.RTOL:g} / atol {criterion.ATOL:g} for all floating-point results, eager and compiled; "
    f"integer results equal. Greedy generation of {NEW_TOKENS} tokens with the class's own cache: the same tokens, or, "
    f"where one differs, the reference's two best logits closer than {criterion.TOP2_GAP:g} (the gap is then given). "
    f"One backward step: each gradient within {criterion.GRADIENT_RTOL:g} of its largest element. Where the float32 "
    "gradients of CPU and device are farther apart, the device's must be that near to the CPU's in float64. Where Dynamo "
    "alone, with no compiler, changes a model's results on the CPU, the compiled model must give these. Both are listed."
)

# What was found out about failures: model type -> one line beside the measured cause.
FOUND = {
    "clap": "CPU PyTorch is wrong there: for the strides of this batch norm's input, its gradients of weight and bias are "
    "not the sums over places that define them; the device's are",
    "mask2former": "rounding decides: with LLVM's optimizations no gradient differs by more than 4.6e-6",
}


def summary(records: list[Record]) -> dict:
    """Counts: all architectures, those attempted, ran, matched, by check as well."""
    attempted = [r for r in records if r.state == ATTEMPTED]
    counts = {
        "architectures": len(records),
        "attempted": len(attempted),
        "ran": sum(r.ran for r in attempted),
        "matched": sum(r.matched for r in attempted),
        "compiled_whole": sum(
            r.compiled.get("breaks") == 0 and r.compiled.get("graphs") == 1 for r in attempted
        ),
        "with_cpu_fallbacks": sum(bool(r.fallbacks) for r in attempted),
        "not_instantiated": sum(r.state == NOT_INSTANTIATED for r in records),
        "reference_fails": sum(r.state == REFERENCE_FAILS for r in records),
        "seconds": round(sum(r.seconds for r in records)),
        "cpu_seconds": round(sum(r.cpu_seconds for r in records)),
    }
    for check in CHECKS:
        entries = [e for r in attempted if "not_applicable" not in (e := getattr(r, check))]
        counts[check] = {
            "attempted": len(entries),
            "ran": sum(e.get("ran", False) for e in entries),
            "matched": sum(e.get("matched", False) for e in entries),
        }
    return counts


def write(records: list[Record], folder: Path) -> tuple[Path, Path]:
    """Write both files into ``folder`` and return their paths."""
    import torch
    import transformers

    folder.mkdir(parents=True, exist_ok=True)
    records = sorted(records, key=lambda r: r.model_type)
    known = {r.model_type for r in records}
    not_run = [a.model_type for a in architectures() if a.model_type not in known]
    counts = summary(records) | {"not_run": len(not_run)}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    document = {
        "summary": counts,
        "criterion": CRITERION,
        "versions": versions,
        "not_run": not_run,
        "architectures": [asdict(r) | {"ran": r.ran, "matched": r.matched} for r in records],
    }
    paths = folder / "architectures.json", folder / "architectures.md"
    paths[0].write_text(json.dumps(document, indent=1) + "\n")
    paths[1].write_text(_markdown(counts, versions, records, not_run))
    return paths


def table(counts: dict) -> str:
    """The summary as a Markdown table."""
    lines = ["| | attempted | ran | matched |", "| --- | --- | --- | --- |"]
    for name, c in [("architectures", counts), *((n, counts[n]) for n in CHECKS)]:
        share = [f"{c[s]} ({100 * c[s] / max(1, c['attempted']):.1f}%)" for s in ("ran", "matched")]
        lines.append(f"| {name} | {c['attempted']} | {' | '.join(share)} |")
    return "\n".join(lines)


def _markdown(counts: dict, versions: dict, records: list[Record], not_run: list[str]) -> str:
    attempted = [r for r in records if r.state == ATTEMPTED]
    lines = [
        "# Architectures",
        "",
        f"Written by `systolic zoo`: the architectures of transformers {versions['transformers']}, shrunken and with",
        f"random weights, on the `tpu` device (here XLA on the CPU) against CPU PyTorch {versions['torch']} in float32.",
        "XLA compiles without LLVM's optimizations here, which would take most of the time.",
        "An architecture is a model type with its most telling head. It ran when all its checks ended without an",
        "error, and matched when all gave the reference's results.",
        "",
        CRITERION,
        "",
        table(counts),
        "",
        f"{counts['compiled_whole']} of {counts['attempted']} compile whole, as one graph;",
        f"{counts['with_cpu_fallbacks']} need an operator that runs on the CPU.",
        f"The checks took {counts['cpu_seconds'] / 60:.0f} minutes of one core.",
        "",
        "## Failures",
        "",
        "| model type | class | cause |",
        "| --- | --- | --- |",
    ]
    for r in attempted:
        if not r.matched:
            found = f" ({FOUND[r.model_type]})" if r.model_type in FOUND else ""
            lines.append(f"| {r.model_type} | {r.class_name} | {_cell(r.cause + found)} |")
    lines += ["", "## Compared with another reference", "", "| model type | check | what settled it |", "| --- | --- | --- |"]
    for r in attempted:
        if names := r.backward.get("settled_in_float64"):
            lines.append(f"| {r.model_type} | backward | gradients in float64: {len(names)}, {_cell(names[0])} first |")
        if reference := r.compiled.get("reference"):
            lines.append(f"| {r.model_type} | compiled | {_cell(reference)} |")
    lines += ["", "## Attempted", "", "Breaks are graph breaks; the difference is the largest of eager and compiled.", "",
              "| model type | class | task | eager | compiled | breaks | generate | backward | difference | CPU fallbacks |",
              "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    lines += [_row(r) for r in attempted]
    lines += ["", "## Checks that do not apply", "", "| model type | check | reason |", "| --- | --- | --- |"]
    for r in attempted:
        left_out = [(n, reason) for n in CHECKS if (reason := getattr(r, n).get("not_applicable"))]
        lines += [
            f"| {r.model_type} | {n} | {_cell(reason)} |"
            for n, reason in left_out
            if reason != NOT_GENERATIVE
        ]
    for state in (NOT_INSTANTIATED, REFERENCE_FAILS):
        lines += [
            "",
            f"## {state.capitalize()}",
            "",
            "| model type | class | reason |",
            "| --- | --- | --- |",
        ]
        lines += [
            f"| {r.model_type} | {r.class_name} | {_cell(r.cause)} |" for r in records if r.state == state
        ]
    if not_run:
        lines += ["", "## Not run for this report", "", ", ".join(not_run)]
    return "\n".join(lines) + "\n"


def _row(r: Record) -> str:
    marks = [_mark(getattr(r, n)) for n in CHECKS]
    differences = [e["difference"] for e in (r.eager, r.compiled) if "difference" in e]
    largest = f"{max(differences):.1e}" if differences else ""
    eager, backward, generate, compiled = marks
    cells = (r.model_type, r.class_name, r.task, eager, compiled, str(r.compiled.get("breaks", "")), generate, backward,
             largest, ", ".join(f"{n} ({c})" for n, c in r.fallbacks.items()))  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _mark(entry: dict) -> str:
    if "top2_gap" in entry:
        return f"✓ (gap {entry['top2_gap']:.1e})"
    if not entry or "not_applicable" in entry:
        return "—"
    return "✓" if entry["matched"] else "≠" if entry["ran"] else "✗"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
