"""Training steps a second of two small models on `tpu`, against torch on the CPU and one `jax.jit`.

Models and data are those of `workloads.py`; the step is forward, backward, and fused AdamW on a batch that
is already on the device.  All sides start from the same weights, and their losses are compared before
anything is timed.  The sides run in one process, in blocks that alternate; a block ends with the value of
its last loss.  Every figure is the median over blocks of steps over a block's time.

    python benchmarks/train.py
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import jax
import jax.numpy as jnp
import numpy as np
import report
import torch
import train_jax
import workloads

SIDES = ("tpu eager", "tpu fused mode", "tpu compiled", "cpu eager", "cpu compiled", "jax.jit")
RATE = 3e-3
# All sides compute in float32; the order of sums differs, and three steps of AdamW amplify that.
AGREEMENT = 1e-3


@dataclass(frozen=True)
class Workload:
    """A model, its batches, and the same loss for torch and for JAX."""

    name: str
    make: Callable[[], torch.nn.Module]
    batch: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    loss: Callable[..., torch.Tensor]
    jax_loss: Callable


def workload(name: str, size: int) -> Workload:
    """`characters` or `digits` with batches of `size`."""
    if name == "characters":
        return Workload(name, lambda: workloads.CharacterModel(width=128, layers=4),
                        lambda step: workloads.text_batch(step, size), workloads.text_loss,
                        lambda p, x, y: train_jax.character_loss(p, x, y, heads=4))  # fmt: skip
    return Workload(name, workloads.DigitClassifier, lambda step: workloads.digit_batch(step, size),
                    workloads.digit_loss, train_jax.digit_loss)  # fmt: skip


def torch_side(case: Workload, device: str, compiled: bool, fused_mode: bool = False) -> Callable[[int], float]:
    """A function that takes a number of steps and returns the last loss."""
    torch.manual_seed(0)
    model = case.make().to(device)
    called = torch.compile(model) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01, fused=True)
    inputs, targets = (t.to(device) for t in case.batch(0))

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = case.loss(called, inputs, targets)
        loss.backward()
        optimizer.step()
        return loss

    def run(steps: int) -> float:
        for _ in range(steps):
            with torch.tpu.fused() if fused_mode else contextlib.nullcontext():  # a step is one program
                loss = step()
        return loss.item()

    return run


def jax_side(case: Workload) -> Callable[[int], float]:
    """The same for plain JAX."""
    torch.manual_seed(0)
    step, start = train_jax.stepper(case.jax_loss, RATE)
    state = start(train_jax.from_torch(case.make()))
    first, second = case.batch(0)
    inputs = jnp.asarray(first.numpy() if first.is_floating_point() else first.numpy().astype(np.int32))
    targets = jnp.asarray(second.numpy().astype(np.int32))

    def run(steps: int) -> float:
        nonlocal state
        for _ in range(steps):
            state, loss = step(state, inputs, targets)
        return float(loss)

    return run


def sides_of(case: Workload, wanted: list[str]) -> dict[str, Callable[[int], float]]:
    """The sides that this machine can run; torch.compile on the CPU needs a C++ compiler."""
    make = {
        "tpu eager": lambda: torch_side(case, "tpu", False),
        "tpu fused mode": lambda: torch_side(case, "tpu", False, fused_mode=True),
        "tpu compiled": lambda: torch_side(case, "tpu", True),
        "cpu eager": lambda: torch_side(case, "cpu", False),
        "cpu compiled": lambda: torch_side(case, "cpu", True),
        "jax.jit": lambda: jax_side(case),
    }
    out = {}
    for name in wanted:
        if name == "cpu compiled" and not shutil.which("g++"):
            print(f"{case.name}: {name} left out, there is no g++")
            continue
        out[name] = make[name]()
    return out


def agree(name: str, runs: dict[str, Callable[[int], float]]) -> float:
    """The loss after three steps, which is also the warm-up; SystemExit if two sides differ."""
    losses = {side: run(3) for side, run in runs.items()}
    low, high = min(losses.values()), max(losses.values())
    if high - low > AGREEMENT * high:
        raise SystemExit(f"{name}: the sides do not compute the same: losses {losses}")
    return high


def measure(runs: dict[str, Callable[[int], float]], blocks: int, seconds: float) -> dict[str, dict]:
    """Steps a second of each side: median, least and most over `blocks` blocks of about `seconds`."""
    steps = {}
    for side, run in runs.items():
        started = time.perf_counter()
        run(3)
        steps[side] = max(1, round(3 * seconds / (time.perf_counter() - started)))
    rates: dict[str, list[float]] = {side: [] for side in runs}
    for block in range(blocks):
        order = list(runs) if block % 2 == 0 else list(runs)[::-1]
        for side in order:
            started = time.perf_counter()
            runs[side](steps[side])
            rates[side].append(steps[side] / (time.perf_counter() - started))
    return {side: {"median": statistics.median(r), "least": min(r), "most": max(r), "steps": steps[side]}
            for side, r in rates.items()}  # fmt: skip


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workloads", nargs="+", default=["characters", "digits"], choices=["characters", "digits"])
    parser.add_argument("--sides", nargs="+", default=list(SIDES), choices=SIDES)
    parser.add_argument("--batch", type=int, default=32, help="sequences or images of a step (default 32)")
    parser.add_argument("--blocks", type=int, default=7, help="blocks of each side (default 7)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a block (default 2)")
    parser.add_argument("--output", type=Path, default=report.RESULTS / "train.json")
    options = parser.parse_args(arguments)
    results, rows = {}, []
    for name in options.workloads:
        case = workload(name, options.batch)
        runs = sides_of(case, options.sides)
        loss = agree(name, runs)
        fallbacks, compilations = sum(torch.tpu.fallbacks().values()), torch.tpu.compilations()
        results[name] = {"loss_after_three_steps": loss, "steps_per_second": measure(runs, options.blocks, options.seconds),
                         "cpu_fallbacks": sum(torch.tpu.fallbacks().values()) - fallbacks,
                         "late_compilations": torch.tpu.compilations() - compilations}  # fmt: skip
        found = results[name]["steps_per_second"]
        rows.append([name, *(found[s]["median"] if s in found else None for s in SIDES)])
    print(f"\nsteps a second, batch {options.batch}, median of {options.blocks} blocks")
    print(report.table(["model", *SIDES], rows))
    versions = {"torch": torch.__version__, "jax": jax.__version__, "device": torch.tpu.get_device_name()}
    settings = {"batch": options.batch, "blocks": options.blocks, "seconds": options.seconds,
                "torch_threads": torch.get_num_threads(), "dtype": "float32"}
    report.write(report.record("train", versions=versions, settings=settings, results=results), options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
