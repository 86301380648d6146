"""What proves the gated delta net's decode step: drawn cases, a float64 oracle, bounds, and the shapes to compile."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from systolic.kernels.delta_step.kernel import delta_step_pallas
from systolic.kernels.delta_step.reference import delta_step_reference
from systolic.kernels.delta_step.tuning import Tuning, candidates, key_of
from systolic.kernels.delta_step.work import work_of
from systolic.kernels.generations import GENERATIONS
from systolic.kernels.registry import DRAWS_PER_PROGRAM, Bound, Case, Entry, Proof

TURNS = ("ordinary", "no decay", "all forgotten", "nothing written", "no state", "ordinary", "ordinary", "ordinary")


def draw(seed: int, index: int) -> Case:
    """Sizes from the program's number, slots and values from the case's."""
    program, turn = divmod(index, DRAWS_PER_PROGRAM)
    static = np.random.default_rng((seed, program))
    tokens, heads = int(static.choice([1, 2, 5, 7])), int(static.choice([1, 3, 8, 16]))
    width, values = int(static.choice([64, 128, 96])), int(static.choice([64, 128, 256]))
    dtype = np.dtype((np.float32, ml_dtypes.bfloat16)[program % 2])
    tuning = Tuning(8 if heads == 16 else heads)
    rng = np.random.default_rng((seed, program, turn))
    name = TURNS[turn]

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    def unit(*shape):  # keys and queries are normalised in such models
        x = normal(*shape)
        return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(dtype)

    by_channel = program // 2 % 2 == 1
    decay = -rng.exponential(1.0, (tokens, heads, width) if by_channel else (tokens, heads)).astype(np.float32)
    beta = rng.random((tokens, heads)).astype(np.float32)
    decay *= {"no decay": 0.0, "all forgotten": 200.0}.get(name, 1.0)
    beta *= 0.0 if name == "nothing written" else 1.0
    state = normal(tokens + 3, heads, width, values) * (name != "no state")
    arrays = {
        "q": unit(tokens, heads, width), "k": unit(tokens, heads, width),
        "v": normal(tokens, heads, values).astype(dtype), "decay": decay, "beta": beta,
        "state": state.astype(np.float32), "slots": rng.permutation(tokens + 3)[:tokens].astype(np.int32),
    }  # fmt: skip
    label = (f"{name} {turn}; {tokens} tokens, {heads} heads of {width} x {values}, {dtype}, decay {decay.shape}, "
             f"{tuning}")  # fmt: skip
    return Case(label, arrays, {"scale": width**-0.5}, tuning)


def oracle(case: Case) -> tuple:
    """Token by token and head by head in float64."""
    a = {name: array.astype(np.float64) for name, array in case.arrays.items() if name != "slots"}
    out = np.zeros(a["v"].shape)
    for t, slot in enumerate(case.arrays["slots"]):
        for head in range(out.shape[1]):
            held = a["state"][slot, head] * np.exp(a["decay"][t, head])[..., None]
            key = a["k"][t, head]
            held = held + np.outer(key, a["beta"][t, head] * (a["v"][t, head] - key @ held))
            a["state"][slot, head] = held
            out[t, head] = a["q"][t, head] @ held * case.options["scale"]
    return out, a["state"]


def bound(case: Case, output: int) -> Bound:
    """Bounds of (out, state): sums of up to 128 float32 products of units, then the result's own rounding."""
    if output == 0 and case.arrays["q"].dtype != np.float32:
        return Bound(1e-5, 2.0**-8, "the result is rounded to bfloat16")
    return Bound(1e-5, 1e-5, "sums of up to 128 float32 products of some units")


def _entry(model, tokens, heads, width, values, by_channel=False) -> Entry:
    arguments = {
        "q": ((tokens, heads, width), "bfloat16"), "k": ((tokens, heads, width), "bfloat16"),
        "v": ((tokens, heads, values), "bfloat16"),
        "decay": ((tokens, heads, width) if by_channel else (tokens, heads), "float32"),
        "beta": ((tokens, heads), "float32"), "state": ((tokens + 1, heads, width, values), "float32"),
        "slots": ((tokens,), "int32"),
    }  # fmt: skip

    def blocks(generation):
        return candidates(GENERATIONS[generation], heads)

    def work(generation, tuning):
        return work_of(GENERATIONS[generation], tuning, tokens, heads, width, values, by_channel)

    label = f"{model}, {tokens} tokens, {heads} heads of {width} x {values}"
    return Entry("delta_step", key_of(heads, width, values, by_channel), label, arguments, ("state",),
                 {"scale": width**-0.5}, blocks, work)  # fmt: skip


ENTRIES = (
    _entry("Qwen3-Next-80B", 64, 32, 128, 128),
    _entry("Qwen3-Next-80B, 4 devices", 8, 8, 128, 128),
    _entry("Kimi-Linear-48B", 64, 32, 128, 128, by_channel=True),
)

PROOF = Proof(
    name="delta_step",
    summary="One decode step of a gated delta net, decay by head or by channel (KDA), states updated in place.",
    pallas=delta_step_pallas, reference=delta_step_reference, draw=draw, oracle=oracle, bound=bound, entries=ENTRIES,
    tuning=Tuning,
)  # fmt: skip
