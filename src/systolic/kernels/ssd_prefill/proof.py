"""What proves state space duality over ragged sequences: drawn cases, a float64 oracle, bounds, shapes to compile."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from systolic.kernels.drawn import draw_sequences
from systolic.kernels.generations import GENERATIONS
from systolic.kernels.registry import DRAWS_PER_PROGRAM, Bound, Case, Entry, Proof
from systolic.kernels.ssd_prefill.kernel import ssd_prefill_pallas
from systolic.kernels.ssd_prefill.reference import ssd_prefill_reference
from systolic.kernels.ssd_prefill.tuning import Tuning, candidates
from systolic.kernels.ssd_prefill.work import work_of
from systolic.kernels.ssd_step.proof import advance, as_float64, draw_values
from systolic.kernels.ssd_step.tuning import key_of

# Heads, groups, heads of a block.
HEADS = ((2, 1, 2), (4, 2, 2), (4, 1, 4), (4, 2, 4), (1, 1, 1))
VALUES = {4: "hardly any decay", 5: "all forgotten", 7: "no skip"}


def draw(seed: int, index: int) -> Case:
    """Shapes from the program's number, lengths and values from the case's."""
    program, turn = divmod(index, DRAWS_PER_PROGRAM)
    static = np.random.default_rng((seed, program))
    tokens, count = int(static.choice([1, 30, 70, 130])), int(static.choice([1, 3, 6]))
    heads, groups, block = HEADS[program % len(HEADS)]
    width, states = int(static.choice([64, 32, 128])), int(static.choice([64, 128, 256]))
    tuning = Tuning(int(static.choice([16, 32, 64])), block)
    options = {"softplus": program % 3 != 2, "dt_limit": (0.0, math.inf) if program % 2 else (0.01, 0.5)}
    rng = np.random.default_rng((seed, program, turn))
    name, arrays = draw_sequences(rng, turn, tokens, count, tuning.chunk)
    dtype = (np.float32, ml_dtypes.bfloat16)[program % 2]
    arrays |= draw_values(rng, tokens, heads, groups, width, states, count + 2, dtype)
    special = VALUES.get(turn, "ordinary")
    arrays["a"] *= {"hardly any decay": 1e-3, "all forgotten": 1000.0}.get(special, 1.0)
    arrays["d"] *= special != "no skip"
    lengths = np.diff(arrays["starts"]).tolist()
    label = (f"{name}; {special}, {lengths} of {tokens} tokens, {heads} heads of {width} x {states}, {groups} groups, "
             f"{arrays['x'].dtype}, {options}, {tuning}")  # fmt: skip
    return Case(label, arrays, options, tuning)


def _results(case: Case, magnitudes: bool = False) -> tuple:
    a = as_float64(case.arrays, magnitudes)
    slots, starts, resumed = (case.arrays[name] for name in ("slots", "starts", "resumed"))
    out = np.zeros(a["x"].shape)
    for s, slot in enumerate(slots):
        if starts[s] < starts[s + 1] and not resumed[s]:
            a["state"][slot] = 0.0
        for t in range(starts[s], starts[s + 1]):
            out[t], a["state"][slot] = advance(a, case.options, t, a["state"][slot])
    return out, a["state"]


def oracle(case: Case) -> tuple:
    """Token by token in float64."""
    return _results(case)


def bound(case: Case, output: int) -> Bound:
    """Bounds of (out, state), from the sum of the magnitudes of the terms."""
    tokens, _, states = case.arrays["b"].shape
    terms = tokens + 16 + (states if output == 0 else 0)
    relative = 2.0**-8 if output == 0 and case.arrays["x"].dtype != np.float32 else 2.0**-20
    largest = float(_results(case, magnitudes=True)[output].max())
    return Bound(terms * 2.0**-24 * largest, relative, "a rounding for each token and state, then of the result")


def _entry(model, sequences, tokens, heads, groups, width, states) -> Entry:
    """``sequences`` of ``tokens`` each."""
    total = sequences * tokens
    arguments = {
        "x": ((total, heads, width), "bfloat16"), "dt": ((total, heads), "bfloat16"), "a": ((heads,), "float32"),
        "b": ((total, groups, states), "bfloat16"), "c": ((total, groups, states), "bfloat16"),
        "d": ((heads,), "float32"), "dt_bias": ((heads,), "float32"),
        "state": ((sequences + 1, heads, width, states), "float32"), "slots": ((sequences,), "int32"),
        "starts": ((sequences + 1,), "int32"), "resumed": ((sequences,), "bool"),
    }  # fmt: skip

    def blocks(generation):
        return candidates(GENERATIONS[generation], heads, groups, width, states)

    def work(generation, tuning):
        return work_of(GENERATIONS[generation], tuning, total, sequences, heads, groups, width, states)

    label = f"{model}, {sequences} x {tokens} tokens, {heads} heads of {width} x {states}, {groups} groups"
    return Entry("ssd_prefill", key_of(heads, groups, width, states), label, arguments, ("state",),
                 {"softplus": True, "dt_limit": (0.0, math.inf)}, blocks, work)  # fmt: skip


ENTRIES = (
    _entry("Mamba2-2.7B", 16, 512, 80, 1, 64, 128),
    _entry("Nemotron-H-56B, 8 devices", 1, 8192, 32, 1, 64, 256),
    _entry("Nemotron-H-8B", 16, 512, 128, 8, 64, 128),
)

PROOF = Proof(
    name="ssd_prefill",
    summary="State space duality (Mamba-2) over ragged sequences in chunks, states updated in place.",
    pallas=ssd_prefill_pallas, reference=ssd_prefill_reference, draw=draw, oracle=oracle, bound=bound,
    entries=ENTRIES, tuning=Tuning,
)  # fmt: skip
