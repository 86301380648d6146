"""What proves the decode step of state space duality: drawn cases, a float64 oracle, bounds, shapes to compile."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from systolic.kernels.generations import GENERATIONS
from systolic.kernels.registry import DRAWS_PER_PROGRAM, Bound, Case, Entry, Proof
from systolic.kernels.ssd_step.kernel import ssd_step_pallas
from systolic.kernels.ssd_step.reference import ssd_step_reference
from systolic.kernels.ssd_step.tuning import Tuning, candidates, key_of
from systolic.kernels.ssd_step.work import work_of

TURNS = ("ordinary", "no steps", "all forgotten", "no skip", "no state", "ordinary", "ordinary", "ordinary")
FLOATS = ("x", "dt", "a", "b", "c", "d", "dt_bias", "state")


def draw(seed: int, index: int) -> Case:
    """Sizes from the program's number, slots and values from the case's."""
    program, turn = divmod(index, DRAWS_PER_PROGRAM)
    static = np.random.default_rng((seed, program))
    tokens, name = int(static.choice([1, 2, 5, 7])), TURNS[turn]
    heads, groups, block = ((3, 1, 3), (8, 1, 8), (16, 2, 8), (8, 4, 8), (6, 2, 6))[program % 5]
    options = {"softplus": program % 3 != 2, "dt_limit": (0.0, math.inf) if program % 2 else (0.01, 0.5)}
    rng = np.random.default_rng((seed, program, turn))
    arrays = draw_values(rng, tokens, heads, groups, int(static.choice([64, 32, 128])),
                         int(static.choice([64, 128, 256])), tokens + 3,
                         (np.float32, ml_dtypes.bfloat16)[program % 2])  # fmt: skip
    arrays["dt_bias"] += {"no steps": -200.0}.get(name, 0.0)
    arrays["a"] *= {"all forgotten": 1000.0}.get(name, 1.0)
    arrays["d"] *= name != "no skip"
    arrays["state"] *= name != "no state"
    arrays["slots"] = rng.permutation(tokens + 3)[:tokens].astype(np.int32)
    shapes = f"x {arrays['x'].shape}, b {arrays['b'].shape}, {arrays['x'].dtype}"
    return Case(f"{name} {turn}; {shapes}, {options}, heads {block}", arrays, options, Tuning(block))


def draw_values(rng, tokens, heads, groups, width, states, slots, dtype) -> dict:
    """The arrays of floats of one call."""
    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    return {
        "x": normal(tokens, heads, width).astype(dtype), "dt": normal(tokens, heads).astype(dtype),
        "a": -rng.uniform(0.1, 8.0, heads).astype(np.float32), "b": normal(tokens, groups, states).astype(dtype),
        "c": normal(tokens, groups, states).astype(dtype), "d": normal(heads), "dt_bias": normal(heads) - 1.0,
        "state": normal(slots, heads, width, states),
    }  # fmt: skip


def advance(a: dict, options: dict, t: int, held):
    """(row t of the result, the state after it) in float64, for float64 arrays and the state before it."""
    step = a["dt"][t] + a["dt_bias"]
    step = np.clip(np.logaddexp(0, step) if options["softplus"] else step, *options["dt_limit"])
    b, c = (np.repeat(a[name][t], held.shape[0] // a[name].shape[1], axis=0) for name in ("b", "c"))
    x = a["x"][t]
    held = held * np.exp(step * a["a"])[:, None, None] + (x * step[:, None])[:, :, None] * b[:, None, :]
    return np.einsum("hpn,hn->hp", held, c) + a["d"][:, None] * x, held


def as_float64(arrays, magnitudes: bool = False) -> dict:
    """The floats in float64; with ``magnitudes``, the absolute values of those that are summed."""
    found = {name: arrays[name].astype(np.float64) for name in FLOATS}
    summed = ("x", "b", "c", "d", "state") if magnitudes else ()
    return found | {name: np.abs(found[name]) for name in summed}


def _results(case: Case, magnitudes: bool = False) -> tuple:
    a = as_float64(case.arrays, magnitudes)
    out = np.zeros(a["x"].shape)
    for t, slot in enumerate(case.arrays["slots"]):
        out[t], a["state"][slot] = advance(a, case.options, t, a["state"][slot])
    return out, a["state"]


def oracle(case: Case) -> tuple:
    """Token by token in float64."""
    return _results(case)


def bound(case: Case, output: int) -> Bound:
    """Bounds of (out, state), from the sum of the magnitudes of the terms."""
    terms = case.arrays["b"].shape[2] + 8 if output == 0 else 8
    relative = 2.0**-8 if output == 0 and case.arrays["x"].dtype != np.float32 else 2.0**-20
    largest = float(_results(case, magnitudes=True)[output].max())
    return Bound(terms * 2.0**-24 * largest, relative, "a rounding for each of N terms, then of the result")


def _entry(model, tokens, heads, groups, width, states) -> Entry:
    arguments = {
        "x": ((tokens, heads, width), "bfloat16"), "dt": ((tokens, heads), "bfloat16"), "a": ((heads,), "float32"),
        "b": ((tokens, groups, states), "bfloat16"), "c": ((tokens, groups, states), "bfloat16"),
        "d": ((heads,), "float32"), "dt_bias": ((heads,), "float32"),
        "state": ((tokens + 1, heads, width, states), "float32"), "slots": ((tokens,), "int32"),
    }  # fmt: skip

    def blocks(generation):
        return candidates(GENERATIONS[generation], heads, groups)

    def work(generation, tuning):
        return work_of(GENERATIONS[generation], tuning, tokens, heads, groups, width, states)

    label = f"{model}, {tokens} tokens, {heads} heads of {width} x {states}, {groups} groups"
    return Entry("ssd_step", key_of(heads, groups, width, states), label, arguments, ("state",),
                 {"softplus": True, "dt_limit": (0.0, math.inf)}, blocks, work)  # fmt: skip


ENTRIES = (
    _entry("Mamba2-2.7B", 64, 80, 1, 64, 128),
    _entry("Nemotron-H-56B, 8 devices", 64, 32, 1, 64, 256),
    _entry("Nemotron-H-8B", 64, 128, 8, 64, 128),
)

PROOF = Proof(
    name="ssd_step",
    summary="One decode step of state space duality (Mamba-2), states updated in place.",
    pallas=ssd_step_pallas, reference=ssd_step_reference, draw=draw, oracle=oracle, bound=bound, entries=ENTRIES,
    tuning=Tuning,
)  # fmt: skip
