"""The run record and the printed tables of the benchmarks."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results"


def machine() -> dict:
    """What the figures were measured on: CPU model, cores, vector extensions, memory, system."""
    model, flags = platform.processor(), set()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                model = value.strip()
            elif key.strip() == "flags":
                flags = set(value.split())
    except OSError:
        pass
    wanted = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_tile")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": model, "cores": os.cpu_count(), "vector_extensions": [f for f in wanted if f in flags],
            "memory_gib": round(memory / 2**30, 1), "system": f"{platform.system()} {platform.release()}",
            "python": platform.python_version(), "load_average": round(os.getloadavg()[0], 2)}


def commit() -> str:
    """The checked-out commit, with ``+`` when files differ from it; '' outside a repository."""
    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "HEAD")
    return head + ("+" if head and git("status", "--porcelain", "--untracked-files=no") else "")


def record(kind: str, **content) -> dict:
    """A run record: kind, time (UTC), commit and machine, followed by `content`."""
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return {"benchmark": kind, "date": now, "commit": commit(), "machine": machine(), **content}


def write(result: dict, path: Path) -> None:
    """Write `result` as JSON to `path` and say where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nwritten: {os.path.relpath(path)}")


def table(header: list[str], rows: list[list]) -> str:
    """Plain text columns: the first is flush left, the others flush right; None is shown as ``-``."""
    def text(cell) -> str:
        if cell is None:
            return "-"
        if isinstance(cell, float):
            return f"{cell:.2f}" if abs(cell) < 10 else f"{cell:.1f}"
        return str(cell)

    lines = [[text(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    out = []
    for number, line in enumerate(lines):
        cells = [cell.ljust(w) if column == 0 else cell.rjust(w)
                 for column, (cell, w) in enumerate(zip(line, widths))]
        out.append("  ".join(cells).rstrip())
        if number == 0:
            out.append("  ".join("-" * w for w in widths))
    return "\n".join(out)
