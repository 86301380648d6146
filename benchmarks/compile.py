"""Compiling and running four models: `torch.compile` on `tpu`, Inductor on the CPU, and `jax.jit` of the same in JAX.

Time to the first result is that of the first call in a new process with empty caches, imports and weights apart.
Steady times are medians of calls in one process, in turns, on the same weights; the sides' results are compared.

    python benchmarks/compile.py
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Callable

import report

SIDES = ("tpu", "inductor", "jax.jit")


def side(case: str, name: str) -> Callable[[], list]:
    """A function that makes one call and waits for its results: the output, then gradients by parameter name."""
    import compile_models
    import torch

    make, in_jax, backward = compile_models.CASES[case]
    torch.manual_seed(0)
    model, example = make()
    if name == "jax.jit":
        return _jax_side(model, example, in_jax, backward)
    device = "tpu" if name == "tpu" else "cpu"
    model, example = model.to(device), example.to(device)
    called = torch.compile(model, backend="tpu" if name == "tpu" else "inductor")

    def run() -> list:
        if backward:
            model.zero_grad()
            output = called(example)
            output.square().mean().backward()
            results = [output.detach(), *(p.grad for _, p in sorted(model.named_parameters()))]
        else:
            with torch.no_grad():
                results = [called(example)]
        if name == "tpu":
            torch.tpu.synchronize()
        return results

    return run


def _jax_side(model, example, in_jax, backward: bool) -> Callable[[], list]:
    import jax
    import jax.numpy as jnp

    weights = {name: jnp.asarray(p.detach().numpy()) for name, p in model.named_parameters()}
    weights |= {name: jnp.asarray(b.numpy()) for name, b in model.named_buffers()}
    given = jnp.asarray(example.numpy())

    def loss(p, x):
        output = in_jax(p, x)
        return (output**2).mean(), output

    def step(p, x):
        (_, output), gradients = jax.value_and_grad(loss, has_aux=True)(p, x)
        return [output, *(gradients[name] for name in sorted(p))]

    call = jax.jit(step) if backward else jax.jit(lambda p, x: [in_jax(p, x)])
    return lambda: jax.block_until_ready(call(weights, given))


def host(results: list) -> list:
    import numpy as np

    return [r.cpu().numpy() if hasattr(r, "cpu") else np.asarray(r) for r in results]


def agree(case: str, sides: dict[str, Callable]) -> None:
    """Raise SystemExit if two sides do not compute the same."""
    import numpy as np

    results = {name: host(run()) for name, run in sides.items()}
    for name in SIDES[1:]:
        for mine, other in zip(results["tpu"], results[name], strict=True):
            # float32 sums in another order, through up to twenty layers
            if not np.allclose(mine, other, rtol=1e-3, atol=1e-4):
                worst = abs(mine - other).max()
                raise SystemExit(f"{case}: tpu and {name} do not compute the same, they differ by {worst}")


def first_result(case: str, name: str) -> float:
    """Seconds of the first call in a new process with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "SYSTOLIC_CACHE_DIR": folder, "TORCHINDUCTOR_CACHE_DIR": folder}
        command = [sys.executable, __file__, "--first", case, name]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise SystemExit(f"{case}: {name} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def print_first(case: str, name: str) -> None:
    run = side(case, name)
    started = time.perf_counter()
    run()
    print(json.dumps(time.perf_counter() - started))


def measure(case: str, calls: int, rounds: int) -> dict:
    # The device's CPU kernels are compiled once an installation, not once a program.
    first = {name: [] for name in SIDES}
    for _ in range(rounds):
        for name in SIDES:
            first[name].append(first_result(case, name))
    sides = {name: side(case, name) for name in SIDES}
    agree(case, sides)
    times: dict[str, list[float]] = {name: [] for name in SIDES}
    for number in range(calls):
        for name in SIDES if number % 2 else reversed(SIDES):
            started = time.perf_counter()
            sides[name]()
            times[name].append((time.perf_counter() - started) * 1e3)
    figures = {name: {"first_s": statistics.median(first[name]), "call_ms": statistics.median(times[name])} for name in SIDES}
    ratios = {name: statistics.median(a / b for a, b in zip(times["tpu"], times[name])) for name in SIDES[1:]}
    return {**figures, "tpu_over": ratios}


def show(result: dict) -> str:
    rows = []
    for case, figures in result["cases"].items():
        for name in SIDES:
            ratio = figures["tpu_over"].get(name)
            rows.append([case if name == SIDES[0] else "", name, figures[name]["first_s"], figures[name]["call_ms"], ratio])
    return report.table(["model", "side", "first result s", "call ms", "tpu / this"], rows)


def main() -> int:
    if sys.argv[1:2] == ["--first"]:
        print_first(*sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3, help="new processes for the time to the first result")
    parser.add_argument("--output", type=Path, default=report.RESULTS / "compile.json")
    options = parser.parse_args()
    import compile_models
    import jax
    import torch

    torch.ones(1, device="tpu") + 1  # the device's own kernels are built once an installation: not in any figure
    cases = {}
    for case in compile_models.CASES:
        print(f"{case} ...", file=sys.stderr)
        cases[case] = measure(case, options.calls, options.rounds)
    versions = {"torch": torch.__version__, "jax": jax.__version__}
    settings = {"calls": options.calls, "rounds": options.rounds, "torch_threads": torch.get_num_threads()}
    result = report.record("compile", versions=versions, settings=settings, cases=cases)
    print(show(result))
    report.write(result, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
