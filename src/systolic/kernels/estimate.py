"""The time of one kernel call by a roofline model: an estimate from stated peaks, never a measurement.

time = max(HBM, MXU, VPU, DMA issue) + latency, where
- HBM: bytes that the blocks move / bandwidth;
- MXU: matmul operations, with every operand padded to its tile, / peak of the operands' type;
- VPU: elementwise float32 operations / (lanes * slots * clock);
- DMA issue: descriptors * ISSUE_SECONDS, since one scalar core starts them;
- latency: one DMA before the first block.
Left out: scheduling stalls, register spills, the share of matmul time that loads weights into the unit, refresh and
bank conflicts of HBM, launch overhead, and the XLA operations around the kernel.
"""

from __future__ import annotations

import dataclasses

from systolic.kernels.generations import Generation, peak
from systolic.kernels.registry import Work

# Some 20 scalar instructions a descriptor at about 1.5 GHz: read off the compiler's bundles of our kernels.
ISSUE_SECONDS = 13e-9
LEFT_OUT = "stalls, spills, loading of weights into the MXU, launch, and XLA operations around the kernel"


@dataclasses.dataclass(frozen=True)
class Estimate:
    """Seconds of a call, the part that bounds it, seconds of each part, and bound by HBM or MXU alone / time."""

    seconds: float
    bound: str
    parts: dict[str, float]
    roofline: float


def estimate(work: Work, generation: Generation) -> Estimate:
    """The model in the module's docstring."""
    parts = {
        "HBM": work.hbm_bytes / generation.hbm_bandwidth,
        "MXU": sum(flops / peak(generation, dtype) for dtype, flops in work.matmul_flops.items()),
        "VPU": work.vector_ops / generation.vector_ops,
        "DMA": work.copies * ISSUE_SECONDS,
    }
    bound = max(parts, key=parts.get)
    seconds = parts[bound] + generation.copy_seconds
    # What no implementation can be faster than: the bytes and operations that the result needs.
    least = max(work.least_bytes / generation.hbm_bandwidth,
                sum(flops / peak(generation, dtype) for dtype, flops in work.least_flops.items()))  # fmt: skip
    return Estimate(seconds, bound, parts, least / seconds)
