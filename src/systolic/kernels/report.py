"""The table of what was proven: ``kernels.json`` and ``kernels.md``, written from runs alone.

Every result carries a digest of the sources it was made from; a result of other sources does not count.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import importlib.metadata
import json
import os
from pathlib import Path

from systolic.kernels import aot, registry
from systolic.kernels.estimate import LEFT_OUT, estimate
from systolic.kernels.generations import GENERATIONS
from systolic.kernels.names import NAMES

_SHARED = ("pallas.py", "narrow.py", "worklist.py", "sequences.py", "products.py", "drawn.py")
# Of a kernel: how it is called, what it costs, and its choice of block sizes, which is recorded with each result.
_WITHOUT_INFLUENCE = ("torch_op.py", "__init__.py", "work.py", "tuning.py")


@functools.cache
def sources(kernel: str) -> str:
    """Digest of what a kernel's results depend on: its code and the shared code, without comments and layout."""
    digest = hashlib.sha256(repr([(g.topology, g.vmem) for g in GENERATIONS.values()]).encode())
    for path in files(kernel):
        digest.update(f"{path.name} {ast.dump(ast.parse(path.read_text()))}".encode())
    return digest.hexdigest()[:16]


def files(kernel: str) -> list[Path]:
    """The shared files, and those of the kernel's folder and of the kernels' folders that these import from."""
    root = Path(__file__).parent
    found, folders = [root / name for name in _SHARED], [kernel]
    for folder in folders:  # it grows on the way
        for path in sorted((root / folder).glob("*.py")):
            if path.name in _WITHOUT_INFLUENCE:
                continue
            found.append(path)
            nodes = ast.walk(ast.parse(path.read_text()))
            modules = (node.module or "" for node in nodes if isinstance(node, ast.ImportFrom))
            used = (m.split(".")[2] for m in modules if m.startswith("systolic.kernels."))
            folders += [u for u in dict.fromkeys(used) if (root / u).is_dir() and u not in folders]
    return found


@contextlib.contextmanager
def _update(folder: Path):
    """The stored document, to be changed; then both files are written. One process at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        document = _read(folder)
        yield document
        _write(folder, document)
    finally:
        os.close(handle)


def _replace(path: Path, text: str) -> None:
    """Write a file that readers see either as it was or whole."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text)
    new.replace(path)


def _read(folder: Path) -> dict:
    file = folder / "kernels.json"
    return json.loads(file.read_text()) if file.exists() else {"checks": {}, "compiles": {}}


def record_check(folder: Path, kernel: str, seed: int, outcomes: list) -> None:
    """Store the outcomes of `check` and write both files."""
    with _update(folder) as document:
        document["checks"][kernel] = {
            "sources": sources(kernel), "seed": seed, "cases": len(outcomes),
            "failed": {o.label: o.problem for o in outcomes if o.problem},
            "worst": round(max(o.worst for o in outcomes), 4),
        }  # fmt: skip


def known_compile(folder: Path, proof, entry, generation: str, tuning) -> dict | None:
    """The stored answer for the same sources and block sizes, unless it is an error."""
    found = _read(folder)["compiles"].get(proof.name, {}).get(entry.label, {}).get(generation)
    same = found and found["sources"] == sources(proof.name) and found["tuning"] == dataclasses.asdict(tuning)
    return found["answer"] if same and "error" not in found["answer"] else None


def record_compile(folder: Path, proof, entry, generation: str, tuning, answer: dict, library: Path) -> None:
    """Store one answer of the compiler and write both files."""
    with _update(folder) as document:
        rows = document["compiles"].setdefault(proof.name, {}).setdefault(entry.label, {})
        rows[generation] = {
            "sources": sources(proof.name), "tuning": dataclasses.asdict(tuning), "answer": answer,
            "libtpu": aot.version_of(library), "jax": importlib.metadata.version("jax"),
        }  # fmt: skip


def compiled_figures(folder: Path, proof, entry, generation: str) -> dict | None:
    """The stored answer for the block sizes in use, if the shape compiled."""
    return known_compile(folder, proof, entry, generation, entry.chosen(generation))


def summary(document: dict) -> dict:
    """entries: shape x generation; compiled, failed: of them; checked: cases that passed in the interpreter."""
    entries = compiled = failed = checked = 0
    for name in NAMES:
        proof = registry.proof(name)
        for entry in proof.entries:
            for generation in GENERATIONS:
                entries += 1
                row = _row(document, proof, entry, generation)
                compiled += row is not None and "error" not in row["answer"]
                failed += row is not None and "error" in row["answer"]
        check = _check(document, name)
        checked += check["cases"] - len(check["failed"]) if check else 0
        failed += len(check["failed"]) if check else 0
    return {"entries": entries, "checked": checked, "compiled": compiled, "failed": failed}


def _row(document: dict, proof, entry, generation: str) -> dict | None:
    row = document["compiles"].get(proof.name, {}).get(entry.label, {}).get(generation)
    return row if row and row["sources"] == sources(proof.name) else None


def _check(document: dict, name: str) -> dict | None:
    check = document["checks"].get(name)
    return check if check and check["sources"] == sources(name) else None


def _write(folder: Path, document: dict) -> None:
    counts = summary(document)
    ordered = {"summary": counts, "checks": document["checks"], "compiles": document["compiles"]}
    _replace(folder / "kernels.json", json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
    _replace(folder / "kernels.md", _markdown(counts, document))


def _markdown(counts: dict, document: dict) -> str:
    lines = [
        "# Kernels for TPU", "",
        "Written by `systolic kernels check` and `systolic kernels compile`, on a machine without a TPU: numerics",
        "against float64 in Pallas's interpreter with race detection, and the real TPU compiler. No kernel has run on a",
        "TPU.",
        f"Times are estimates by a roofline model (`systolic kernels estimate`); left out: {LEFT_OUT}.", "",
        "| shapes x generations | compiled | cases passed in the interpreter | failed, of both |",
        "| --- | --- | --- | --- |",
        f"| {counts['entries']} | {counts['compiled']} | {counts['checked']:,} | {counts['failed']} |", "",
    ]  # fmt: skip
    for name in NAMES:
        proof = registry.proof(name)
        check = _check(document, name)
        lines += [f"## {name}", "", proof.summary, ""]
        if check:
            passed = check["cases"] - len(check["failed"])
            lines += [f"{passed} of {check['cases']} drawn cases passed (seed {check['seed']}); the largest error is "
                      f"{check['worst']:.2f} of its bound.", ""]  # fmt: skip
            lines += [f"- failed: {label}: {problem}" for label, problem in check["failed"].items()]
        else:
            lines += ["Not checked since its sources changed.", ""]
        lines += ["| shape | generation | compiled | VMEM, MiB | SMEM, KiB | spills in loops | estimate, us | bound | "
                  "of roofline |",
                  "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
        for entry in proof.entries:
            for generation in GENERATIONS:
                lines.append(_line(entry, generation, _row(document, proof, entry, generation)))
        lines.append("")
    return "\n".join(lines)


def _line(entry, generation: str, row: dict | None) -> str:
    if row is None:
        return f"| {entry.label} | {generation} | not tried | | | | | | |"
    answer = row["answer"]
    if "error" in answer:
        reason = " ".join(answer["error"].split())[:160].replace("|", "\\|")
        return f"| {entry.label} | {generation} | ✗ {reason}; {answer.get('advice', '')} | | | | | | |"
    result = estimate(entry.work(generation, entry.chosen(generation)), GENERATIONS[generation], answer)
    return (
        f"| {entry.label} | {generation} | ✓ | {answer.get('vmem_bytes', 0) / 2**20:.1f} | "
        f"{answer.get('smem_bytes', 0) / 2**10:.1f} | {answer.get('loop_spills', '')} | {result.seconds * 1e6:.1f} | "
        f"{result.bound} | {100 * result.roofline:.0f}% |"
    )
