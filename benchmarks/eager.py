"""Microseconds of a small eager operator on `tpu`, against one jitted JAX call and torch on the CPU.

The three sides run in one process, in blocks that alternate, on the same values; each block ends with a
wait for its last result.  Every figure is the median over blocks of a block's time over its calls.

    python benchmarks/eager.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

import jax
import jax.numpy as jnp
import numpy as np
import report
import torch
import torch.nn.functional as F

SIDES = ("tpu", "jit", "cpu")


@dataclass(frozen=True)
class Case:
    """One operator, once for torch and once for JAX; `inputs` gives the NumPy arguments of a size."""

    name: str
    torch_call: Callable[..., Any]
    jax_call: Callable[..., Any]
    inputs: Callable[[int], tuple[np.ndarray, ...]]


def _vector(size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


def _one(size: int) -> tuple[np.ndarray, ...]:
    return (_vector(size),)


def _two(size: int) -> tuple[np.ndarray, ...]:
    return _vector(size), _vector(size, 1)


def _masked(size: int) -> tuple[np.ndarray, ...]:
    return _vector(size, 2) > 0, _vector(size), _vector(size, 1)


def _matrices(size: int) -> tuple[np.ndarray, ...]:
    """Matrices of about `size` values in all, so that matmul is as small as the others."""
    side = max(2, int(size**0.5))
    return _vector(side * side).reshape(side, side), _vector(side * side, 1).reshape(side, side)


def _rows(size: int) -> tuple[np.ndarray, ...]:
    return _vector(size).reshape(2, -1), np.arange(2, dtype=np.int64)


def _jax_layer_norm(x):
    mean = jnp.mean(x)
    return (x - mean) * jax.lax.rsqrt(jnp.mean((x - mean) ** 2) + 1e-5)


CASES = (
    Case("add", torch.add, jnp.add, _two),
    Case("mul", torch.mul, jnp.multiply, _two),
    Case("sub scalar", lambda x: x - 1.5, lambda x: x - 1.5, _one),
    Case("div", torch.div, jnp.divide, _two),
    Case("neg", torch.neg, jnp.negative, _one),
    Case("exp", torch.exp, jnp.exp, _one),
    Case("tanh", torch.tanh, jnp.tanh, _one),
    Case("relu", torch.relu, jax.nn.relu, _one),
    Case("silu", F.silu, jax.nn.silu, _one),
    Case("sigmoid", torch.sigmoid, jax.nn.sigmoid, _one),
    Case("gt", torch.gt, jnp.greater, _two),
    Case("where", torch.where, jnp.where, _masked),
    Case("maximum", torch.maximum, jnp.maximum, _two),
    Case("sum", torch.sum, jnp.sum, _one),
    Case("mean", torch.mean, jnp.mean, _one),
    Case("argmax", torch.argmax, jnp.argmax, _one),
    Case("softmax", lambda x: torch.softmax(x, 0), jax.nn.softmax, _one),
    Case("layer_norm", lambda x: F.layer_norm(x, x.shape), _jax_layer_norm, _one),
    Case("cat", lambda x, y: torch.cat((x, y)), lambda x, y: jnp.concatenate((x, y)), _two),
    Case("to float16", lambda x: x.to(torch.float16), lambda x: x.astype(jnp.float16), _one),
    Case("index_select", lambda x, i: torch.index_select(x, 0, i), lambda x, i: jnp.take(x, i, axis=0),
         _rows),
    Case("matmul", torch.matmul, jnp.matmul, _matrices),
    Case("transpose, contiguous", lambda x, _: x.t().contiguous(), lambda x, _: x.T, _matrices),
)


def _sides(case: Case, size: int, device: str) -> dict[str, tuple[Callable, tuple, Callable]]:
    """For each side: the call, its arguments, and the wait for a result."""
    values = case.inputs(size)
    jitted = jax.jit(case.jax_call)
    # `torch.cpu` has the same function: `--device cpu` tries the benchmark itself.
    synchronize = getattr(torch, device.split(":")[0]).synchronize
    return {
        "tpu": (case.torch_call, tuple(torch.from_numpy(v).to(device) for v in values),
                lambda _: synchronize()),
        "jit": (jitted, tuple(jax.device_put(v) for v in values), lambda result: result.block_until_ready()),
        "cpu": (case.torch_call, tuple(torch.from_numpy(v) for v in values), lambda _: None),
    }


def check(case: Case, sides: dict) -> float:
    """Largest difference of the `tpu` and the jitted result; raises AssertionError past 1e-3.

    1e-3 covers float16 results and sums of a thousand values in another order: it finds a wrong
    operator, not a rounding.
    """
    results = {name: call(*arguments) for name, (call, arguments, _) in sides.items()}
    ours = results["tpu"].cpu().numpy().astype(np.float64)
    theirs = np.asarray(results["jit"]).astype(np.float64)
    if ours.shape != theirs.shape:
        raise AssertionError(f"{case.name}: shape {ours.shape} on tpu, {theirs.shape} from the jitted call")
    difference = float(np.max(np.abs(ours - theirs)))
    # Written so that a NaN fails too.
    if not difference <= 1e-3:
        raise AssertionError(f"{case.name}: tpu and the jitted call differ by {difference}, limit 1e-3")
    return difference


def block(call: Callable, arguments: tuple, wait: Callable, calls: int) -> float:
    """Microseconds a call over one block of `calls` calls, the wait for the last one included."""
    started = time.perf_counter()
    for _ in range(calls):
        result = call(*arguments)
    wait(result)
    return (time.perf_counter() - started) / calls * 1e6


def measure(case: Case, size: int, device: str, blocks: int, calls: int) -> dict:
    """Median microseconds a call for each side, and the ratio of `tpu` to the jitted call."""
    sides = _sides(case, size, device)
    check(case, sides)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        block(*side, max(10, calls // 10))
    for _ in range(blocks):
        for name, side in sides.items():
            times[name].append(block(*side, calls))
    result = {f"{name}_us": statistics.median(values) for name, values in times.items()}
    # Blocks of one round ran next to each other: their ratio is steadier than the ratio of medians.
    result["ratio_to_jit"] = statistics.median(a / b for a, b in zip(times["tpu"], times["jit"]))
    return {"op": case.name, "size": size, **result}


def show(result: dict) -> str:
    rows = [[f"{r['op']} [{r['size']}]", r["tpu_us"], r["jit_us"], r["cpu_us"], r["ratio_to_jit"]]
            for r in result["operators"]]
    summary = result["summary"]
    return (report.table(["operator", "tpu us", "jit us", "torch CPU us", "tpu / jit"], rows)
            + f"\n\nmedian: {summary['median_tpu_us']:.1f} us, {summary['median_ratio_to_jit']:.2f} times "
            f"the jitted call; the worst: {summary['worst'][0]} {summary['worst'][1]:.2f} times")


def run(options: argparse.Namespace) -> dict:
    operators, failed = [], {}
    for case in CASES:
        for size in options.sizes:
            try:
                operators.append(measure(case, size, options.device, options.blocks, options.calls))
            except (RuntimeError, NotImplementedError, AssertionError) as error:
                failed[f"{case.name} [{size}]"] = f"{type(error).__name__}: {str(error)[:200]}"
    if not operators:
        raise RuntimeError(f"no operator could be measured on {options.device}: {failed}")
    ratios = {f"{r['op']} [{r['size']}]": r["ratio_to_jit"] for r in operators}
    worst = max(ratios.items(), key=lambda item: item[1])
    summary = {"median_tpu_us": statistics.median(r["tpu_us"] for r in operators),
               "median_ratio_to_jit": statistics.median(ratios.values()), "worst": list(worst)}
    return report.record("eager", device=options.device, blocks=options.blocks, calls=options.calls,
                         versions={"torch": torch.__version__, "jax": jax.__version__},
                         operators=operators, failed=failed, summary=summary)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=lambda text: [int(s) for s in text.split(",")], default=[8, 1024])
    parser.add_argument("--blocks", type=int, default=7)
    parser.add_argument("--calls", type=int, default=300, help="calls in a block")
    parser.add_argument("--device", default="tpu")
    parser.add_argument("--output", type=Path, default=report.RESULTS / "eager.json")
    options = parser.parse_args()
    result = run(options)
    print(show(result))
    for name, error in result["failed"].items():
        print(f"not measured: {name}: {error}", file=sys.stderr)
    report.write(result, options.output)
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
