"""Reads what the TPU compiler writes about a kernel's memory and schedule.

The compiler is told to dump (:data:`systolic.kernels.aot.DUMP_FLAGS`); our kernels are found by their names, which
start with ``systolic_``.  Bundles are VLIW instruction words: their number is static code length, a loop's body
counts once.
"""

from __future__ import annotations

import re
from pathlib import Path

_ALLOCATION = re.compile(r"space=(vmem|smem), size = (0x[0-9a-f]+)")
_BUNDLE = re.compile(r"^\s*(?:0x[0-9a-f]+|0)\s+(?:[A-Z]{2})?\s*:\s?(>*)")


def read_schedule(folder: Path) -> dict:
    """Figures of all kernels in a dump: vmem_bytes, smem_bytes, bundles, loop_bundles, spills, loop_spills, slots.

    loop_bundles: inside a loop; spills: vector registers stored to or filled from VMEM for want of registers;
    loop_spills: those inside a loop; slots: uses of each unit inside loops, by name.
    """
    figures = {"vmem_bytes": 0, "smem_bytes": 0, "bundles": 0, "loop_bundles": 0, "spills": 0, "loop_spills": 0}
    for path in sorted(folder.glob("*systolic_*-original.txt")):
        for space, size in _ALLOCATION.findall(path.read_text(errors="replace")):
            figures[f"{space}_bytes"] += int(size, 16)
    slots: dict[str, int] = {}
    for path in sorted(folder.glob("*systolic_*-final_bundles.txt")):
        if "schedule-analysis" in path.name:
            continue
        lines = path.read_text(errors="replace").splitlines()
        depths = [len(found[1]) for line in lines if (found := _BUNDLE.match(line))]
        stem = path.name.rsplit("-", 2)[0]
        uses = _utilization(next(folder.glob(f"{stem}-*-final_hlo-static-per-bundle-utilization.txt"), None))
        figures["bundles"] += len(depths)
        figures["loop_bundles"] += sum(depth > 0 for depth in depths)
        for depth, row in zip(depths, uses):
            spilled = row.get("VLOAD:FILL", 0) + row.get("VSTORE:SPILL", 0)
            figures["spills"] += spilled
            if depth:
                figures["loop_spills"] += spilled
                for unit, count in row.items():
                    slots[unit] = slots.get(unit, 0) + count
    return figures | {"slots": slots}


def _utilization(path: Path | None) -> list[dict[str, int]]:
    """A row for each bundle: how many instructions each unit gets."""
    if path is None:
        return []
    units, rows = [], []
    for line in path.read_text().splitlines():
        if line.startswith("MXU"):
            units = [word.strip() for word in line.split(",")]
        elif line and line[0].isdigit() and units:
            rows.append(dict(zip(units, map(int, line.split()))))
    return rows
