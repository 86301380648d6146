"""What proves the chunked gated delta net: drawn cases, a float64 oracle, bounds, and the shapes to compile."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from systolic.kernels.delta_prefill.kernel import delta_prefill_pallas
from systolic.kernels.delta_prefill.reference import delta_prefill_reference
from systolic.kernels.delta_prefill.tuning import Tuning, candidates
from systolic.kernels.delta_prefill.work import work_of
from systolic.kernels.delta_step.tuning import key_of
from systolic.kernels.drawn import draw_sequences
from systolic.kernels.generations import GENERATIONS
from systolic.kernels.registry import DRAWS_PER_PROGRAM, Bound, Case, Entry, Proof

# Of turns 3 to 7: what the values are like.
VALUES = {3: "one key", 4: "no decay", 5: "all forgotten now and then", 7: "nothing written"}


def draw(seed: int, index: int) -> Case:
    """Shapes from the program's number, lengths and values from the case's."""
    program, turn = divmod(index, DRAWS_PER_PROGRAM)
    static = np.random.default_rng((seed, program))
    dtype = np.dtype((np.float32, ml_dtypes.bfloat16)[program % 2])
    by_channel = program // 2 % 2 == 1
    tokens, count = int(static.choice([1, 30, 70, 130])), int(static.choice([1, 3, 6]))
    heads, width = int(static.choice([1, 2, 4])), int(static.choice([64, 128, 96]))
    values = int(static.choice([64, 128, 256]))
    tuning = Tuning(int(static.choice([16, 32, 64])), int(static.choice([n for n in (1, 2) if heads % n == 0])))
    rng = np.random.default_rng((seed, program, turn))
    name, arrays = draw_sequences(rng, turn, tokens, count, tuning.chunk)
    special = VALUES.get(turn, "ordinary")

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    def unit(*shape):  # keys and queries are normalised in such models
        x = normal(*shape)
        x = np.broadcast_to(x[:1], shape) if special == "one key" else x
        return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(dtype)

    decay = -rng.exponential(0.3, (tokens, heads, width) if by_channel else (tokens, heads)).astype(np.float32)
    beta = rng.random((tokens, heads)).astype(np.float32)
    if special == "one key":  # what was written is taken back at once: sums of many terms that cancel
        decay, beta = decay * 1e-3, np.ones_like(beta)
    decay = decay * (special != "no decay")
    if special.startswith("all forgotten"):
        decay = np.where(rng.random(decay.shape) < 0.1, np.float32(-np.inf), decay)
    arrays |= {
        "q": unit(tokens, heads, width), "k": unit(tokens, heads, width),
        "v": normal(tokens, heads, values).astype(dtype), "decay": decay.astype(np.float32),
        "beta": beta * (special != "nothing written"), "state": normal(count + 2, heads, width, values),
    }  # fmt: skip
    lengths = np.diff(arrays["starts"]).tolist()
    label = (f"{name}; {special}, {lengths} of {tokens} tokens, {heads} heads of {width} x {values}, {dtype}, "
             f"decay by {'channel' if by_channel else 'head'}, {tuning}")  # fmt: skip
    return Case(label, arrays, {"scale": width**-0.5}, tuning)


def oracle(case: Case) -> tuple:
    """Token by token and head by head in float64."""
    a = {name: case.arrays[name].astype(np.float64) for name in ("q", "k", "v", "decay", "beta", "state")}
    slots, starts, resumed = (case.arrays[name] for name in ("slots", "starts", "resumed"))
    out = np.zeros(a["v"].shape)
    for s, slot in enumerate(slots):
        for t in range(starts[s], starts[s + 1]):
            if t == starts[s] and not resumed[s]:
                a["state"][slot] = 0.0
            for head in range(out.shape[1]):
                held = a["state"][slot, head] * np.exp(a["decay"][t, head])[..., None]
                key = a["k"][t, head]
                held = held + np.outer(key, a["beta"][t, head] * (a["v"][t, head] - key @ held))
                a["state"][slot, head] = held
                out[t, head] = a["q"][t, head] @ held * case.options["scale"]
    return out, a["state"]


def bound(case: Case, output: int) -> Bound:
    """Bounds of (out, state).  With keys of length 1 no step makes the state's error larger, so that errors add up."""
    if output == 0 and case.arrays["q"].dtype != np.float32:
        return Bound(1e-5, 2.0**-8, "the result is rounded to bfloat16")
    return Bound(1e-5, 1e-5, "sums of up to 256 float32 products of some units, over some chunks")


def _entry(model, sequences, tokens, heads, width, values, by_channel=False) -> Entry:
    """``sequences`` of ``tokens`` each."""
    total = sequences * tokens
    arguments = {
        "q": ((total, heads, width), "bfloat16"), "k": ((total, heads, width), "bfloat16"),
        "v": ((total, heads, values), "bfloat16"),
        "decay": ((total, heads, width) if by_channel else (total, heads), "float32"),
        "beta": ((total, heads), "float32"), "state": ((sequences + 1, heads, width, values), "float32"),
        "slots": ((sequences,), "int32"), "starts": ((sequences + 1,), "int32"), "resumed": ((sequences,), "bool"),
    }  # fmt: skip

    def blocks(generation):
        return candidates(GENERATIONS[generation], heads)

    def work(generation, tuning):
        return work_of(GENERATIONS[generation], tuning, total, sequences, heads, width, values, by_channel)

    label = f"{model}, {sequences} x {tokens} tokens, {heads} heads of {width} x {values}"
    return Entry("delta_prefill", key_of(heads, width, values, by_channel), label, arguments, ("state",),
                 {"scale": width**-0.5}, blocks, work)  # fmt: skip


ENTRIES = (
    _entry("Qwen3-Next-80B", 16, 512, 32, 128, 128),
    _entry("Qwen3-Next-80B, 4 devices", 1, 8192, 8, 128, 128),
    _entry("Kimi-Linear-48B", 16, 512, 32, 128, 128, by_channel=True),
    _entry("Kimi-Linear-48B, 4 devices", 1, 8192, 8, 128, 128, by_channel=True),
)

PROOF = Proof(
    name="delta_prefill",
    summary="Gated delta net over ragged sequences in chunks, with a decay of each head or of each channel (KDA).",
    pallas=delta_prefill_pallas, reference=delta_prefill_reference, draw=draw, oracle=oracle, bound=bound,
    entries=ENTRIES, tuning=Tuning,
)  # fmt: skip
