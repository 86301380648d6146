"""The time of one kernel call by a roofline model: an estimate from stated peaks, never a measurement.

time = max(HBM, core) + latency.  core = schedule where that is known, else MXU + VPU + DMA issue: one stream of
instructions feeds all three, and within a block they depend on each other.

- HBM: bytes that the blocks move / bandwidth;
- MXU: matmul operations, with every operand padded to its tile, / peak of the operands' type; a few rows take as long
  as the unit has rows, since it must be loaded;
- VPU: elementwise float32 operations / (lanes * slots * clock);
- DMA issue: descriptors * ISSUE_BUNDLES / clock, since one scalar core starts them;
- schedule: instructions (bundles) inside the grid's loop as the compiler scheduled them, spills included, times grid
  steps / clock; only for kernels whose one loop is the grid, and only where the shape was compiled. A first or last
  step's instructions are counted in every step;
- latency: one DMA before the first block.
Left out: stalls, for kernels with loops of their own also the schedule, refresh and bank conflicts of HBM, launch
overhead, and the XLA operations around the kernel.
"""

from __future__ import annotations

import dataclasses

from systolic.kernels.generations import Generation, peak
from systolic.kernels.registry import Work

# To start a page's copy and to wait for it: read off the compiler's schedule of paged attention for v6e.
ISSUE_BUNDLES = 24
LEFT_OUT = "stalls, the schedule of kernels with loops of their own, launch, and XLA operations around the kernel"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Seconds of a call, the part that bounds it, seconds of each part, and bound by HBM or MXU alone / time."""

    seconds: float
    bound: str
    parts: dict[str, float]
    roofline: float


def estimate(work: Work, generation: Generation, compiled: dict | None = None) -> Estimate:
    """The model in the module's docstring; ``compiled``: the compiler's figures, if any."""
    parts = {
        "HBM": work.hbm_bytes / generation.hbm_bandwidth,
        "MXU": sum(flops / peak(generation, dtype) for dtype, flops in work.matmul_flops.items()),
        "VPU": work.vector_ops / generation.vector_ops,
        "DMA issue": work.copies * ISSUE_BUNDLES / generation.clock / generation.cores,
    }
    core = parts["MXU"] + parts["VPU"] + parts["DMA issue"]
    if work.grid_steps and compiled and compiled.get("loop_bundles"):
        core = parts["schedule"] = compiled["loop_bundles"] * work.grid_steps / generation.clock / generation.cores
    # Of the core's parts the largest is named; with a schedule, which has them all, the unit that has most to do.
    bound = "HBM" if parts["HBM"] >= core else max(("MXU", "VPU", "DMA issue"), key=parts.get)
    seconds = max(parts["HBM"], core) + generation.copy_seconds
    # What no implementation can be faster than: the bytes and operations that the result needs.
    least = max(work.least_bytes / generation.hbm_bandwidth,
                sum(flops / peak(generation, dtype) for dtype, flops in work.least_flops.items()))  # fmt: skip
    return Estimate(seconds, bound, parts, least / seconds)
