"""TPU generations: what the compiler calls them, their limits and peaks of one device as JAX sees it.

Figures are the vendor's published ones (Cloud TPU documentation, per chip; a TPU7x chip is two devices, so half
of the chip's are given) except where a comment says otherwise. They are inputs of an estimate, not measurements.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from systolic.kernels.selection import aimed_device_kind


@dataclasses.dataclass(frozen=True)
class Generation:
    """topology: name for the compiler; kind: start of JAX's device kind; bandwidth of HBM in bytes/s.

    flops: peak of matmuls a second, by the type of the operands; mxu: rows and columns of a matrix unit; cores: that
    share the peaks; clock: of a core, in Hz; vmem, smem: bytes of one core; copy_seconds: a DMA from HBM to VMEM when nothing else runs.
    """

    name: str
    topology: str
    kind: str
    hbm_bandwidth: float
    flops: Mapping[str, float]
    mxu: int
    cores: int
    clock: float
    vmem: int
    smem: int
    copy_seconds: float

    @property
    def vector_ops(self) -> float:
        """Float32 operations a second of the vector units: 8 x 128 lanes, 4 slots an instruction."""
        return 8 * 128 * 4 * self.clock * self.cores


# Clocks and the DMA latency are assumed: they are not published for all generations.
GENERATIONS = {
    g.name: g
    for g in (
        Generation("v5e", "v5e:2x2", "TPU v5 lite", 819e9, {"bfloat16": 197e12, "int8": 394e12},
                   128, 1, 1.5e9, 128 << 20, 1 << 20, 1e-6),
        Generation("v5p", "v5p:2x2x1", "TPU v5", 2765e9, {"bfloat16": 459e12, "int8": 918e12},
                   128, 2, 1.75e9, 64 << 20, 1 << 20, 1e-6),
        Generation("v6e", "v6e:2x2", "TPU v6 lite", 1640e9, {"bfloat16": 918e12, "int8": 1836e12},
                   256, 1, 1.75e9, 128 << 20, 1 << 20, 1e-6),
        Generation("tpu7x", "tpu7x:2x2x1", "TPU7x", 3690e9, {"bfloat16": 1153e12, "float8_e4m3fn": 2307e12},
                   256, 1, 2.2e9, 64 << 20, 1 << 20, 1e-6),
    )
}  # fmt: skip


def peak(generation: Generation, dtype: str) -> float:
    """Matmul operations a second for operands of a type; what the unit has no form for runs as bfloat16.

    float32 takes six bfloat16 passes at full precision.
    """
    if dtype == "float32":
        return generation.flops["bfloat16"] / 6
    return generation.flops.get(dtype, generation.flops["bfloat16"])


def current_generation() -> Generation:
    """That of the programs traced here; v6e where there is no TPU (interpret mode, where it does not matter)."""
    kind = aimed_device_kind()
    matches = [g for g in GENERATIONS.values() if kind.startswith(g.kind)]
    return max(matches, key=lambda g: len(g.kind), default=GENERATIONS["v6e"])
