"""Milliseconds of a transformer block and of an optimizer step in fused mode, against strict mode and torch on the CPU.

The sides run in one process, in turns, on the same values; every call ends with a wait for its results. Figures are
medians over calls.

    python benchmarks/fused.py
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from pathlib import Path
from typing import Callable

import report
import torch

SIDES = ("strict", "fused", "cpu")
WARM_UP = 5


def block(device: str, hidden: int, backward: bool) -> Callable[[], list[torch.Tensor]]:
    """A pre-norm transformer block over 1 x 16 tokens; returns its output, and its gradients if asked for."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(hidden, 4, 2 * hidden, dropout=0.0, batch_first=True, norm_first=True)
    layer.to(device)
    x = torch.randn(1, 16, hidden).to(device)

    def run() -> list[torch.Tensor]:
        if not backward:
            with torch.no_grad():
                return [layer(x)]
        layer.zero_grad()
        output = layer(x)
        output.square().mean().backward()
        return [output.detach(), *(p.grad for p in layer.parameters())]

    return run


def optimizer_step(device: str, foreach: bool) -> Callable[[], list[torch.Tensor]]:
    """An AdamW step over 20 matrices of 64 x 64."""
    torch.manual_seed(0)
    parameters = [torch.randn(64, 64).to(device).requires_grad_() for _ in range(20)]
    for parameter in parameters:
        parameter.grad = torch.randn(64, 64).to(device)
    optimizer = torch.optim.AdamW(parameters, foreach=foreach)

    def run() -> list[torch.Tensor]:
        optimizer.step()
        return [p.detach() for p in parameters]

    return run


CASES: dict[str, Callable[[str], Callable]] = {
    "block, hidden 64": lambda device: block(device, 64, False),
    "block, hidden 256": lambda device: block(device, 256, False),
    "block and backward, hidden 64": lambda device: block(device, 64, True),
    "AdamW step, one by one": lambda device: optimizer_step(device, False),
    "AdamW step, foreach": lambda device: optimizer_step(device, True),
}


def _sides(make: Callable[[str], Callable]) -> dict[str, Callable]:
    strict, recorded, host = make("tpu"), make("tpu"), make("cpu")

    def timed(call, mode):
        def run():
            with mode():
                results = call()
            torch.tpu.synchronize()
            return results

        return run

    nothing = contextlib.nullcontext
    return {"strict": timed(strict, nothing), "fused": timed(recorded, torch.tpu.fused), "cpu": timed(host, nothing)}


def measure(make: Callable[[str], Callable], calls: int) -> dict:
    """Median milliseconds of each side. Raises AssertionError when the sides' results differ."""
    sides = _sides(make)
    for _ in range(WARM_UP):
        results = {name: [t.cpu() for t in call()] for name, call in sides.items()}
    for name in ("strict", "fused"):
        # Other orders of float32 sums, over a few optimizer steps.
        torch.testing.assert_close(results[name], results["cpu"], rtol=1e-3, atol=1e-3)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(calls):
        for name, call in sides.items():
            started = time.perf_counter()
            call()
            times[name].append((time.perf_counter() - started) * 1e3)
    figures = {f"{name}_ms": statistics.median(values) for name, values in times.items()}
    figures["strict_over_fused"] = statistics.median(a / b for a, b in zip(times["strict"], times["fused"]))
    return figures


def show(result: dict) -> str:
    rows = [[name, *(r[f"{side}_ms"] for side in SIDES), r["strict_over_fused"]] for name, r in result["cases"].items()]
    return report.table(["case", "strict ms", "fused ms", "torch CPU ms", "strict / fused"], rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--output", type=Path, default=report.RESULTS / "fused.json")
    options = parser.parse_args()
    cases = {name: measure(make, options.calls) for name, make in CASES.items()}
    result = report.record("fused", calls=options.calls, versions={"torch": torch.__version__}, cases=cases)
    print(show(result))
    report.write(result, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
