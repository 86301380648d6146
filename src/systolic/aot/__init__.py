"""Programs ahead of time: a `torch.export` program as StableHLO, callable on ``tpu`` tensors, kept in a file.

    >>> program = systolic.aot.export(torch.export.export(model, (x,)))
    >>> program(x); program.stablehlo(); program.save("model.systolic")
    >>> systolic.aot.load("model.systolic")(x)
"""

from __future__ import annotations

from .program import FORMAT, Program, export, load

__all__ = ["FORMAT", "Program", "export", "load"]
