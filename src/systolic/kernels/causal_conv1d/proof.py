"""What proves the short causal convolution: drawn cases, a float64 oracle, error bounds, and the shapes to compile."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from systolic.kernels.causal_conv1d.kernel import causal_conv1d_pallas
from systolic.kernels.causal_conv1d.reference import causal_conv1d_reference
from systolic.kernels.causal_conv1d.tuning import Tuning, candidates, key_of
from systolic.kernels.causal_conv1d.work import work_of
from systolic.kernels.drawn import draw_sequences
from systolic.kernels.generations import GENERATIONS
from systolic.kernels.registry import DRAWS_PER_PROGRAM, Bound, Case, Entry, Proof


def draw(seed: int, index: int) -> Case:
    """Shapes from the program's number, lengths and values from the case's."""
    program, turn = divmod(index, DRAWS_PER_PROGRAM)
    static = np.random.default_rng((seed, program))
    tokens, count = int(static.choice([1, 30, 70, 130])), int(static.choice([1, 3, 20]))
    width, channels = 2 + (program + 2) % 3, int(static.choice([40, 128, 300, 512]))
    wide = int(static.choice([n for n in (128, 256, channels) if channels % n == 0]))
    tuning = Tuning(int(static.choice([16, 32, 64])), wide)
    dtype = np.dtype((np.float32, ml_dtypes.bfloat16)[program % 2])
    rng = np.random.default_rng((seed, program, turn))
    name, arrays = draw_sequences(rng, turn, tokens, count, tuning.rows)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    arrays |= {
        "x": normal(tokens, channels).astype(dtype), "weight": normal(channels, width), "bias": normal(channels),
        "state": normal(count + 2, width - 1, channels).astype(dtype),
    }  # fmt: skip
    options = {"silu": program % 4 < 2}
    lengths = np.diff(arrays["starts"]).tolist()
    label = f"{name}; {lengths} of {tokens} tokens, {channels} channels, {width} wide, {dtype}, {options}, {tuning}"
    return Case(label, arrays, options, tuning)


def _sums(case: Case, transform):
    """(the sums, the states after them) with ``transform`` over all factors, in float64."""
    a = {name: transform(case.arrays[name].astype(np.float64)) for name in ("x", "weight", "bias", "state")}
    slots, starts, resumed = (case.arrays[name] for name in ("slots", "starts", "resumed"))
    out, width = np.zeros(a["x"].shape), a["weight"].shape[1]
    for s, slot in enumerate(slots):
        first, last = starts[s : s + 2]
        if first == last:
            continue
        seen = np.concatenate([a["state"][slot] * resumed[s], a["x"][first:last]])
        for t in range(first, last):
            out[t] = a["bias"] + (a["weight"].T * seen[t - first : t - first + width]).sum(axis=0)
        a["state"][slot] = seen[len(seen) - width + 1 :]
    return out, a["state"]


def oracle(case: Case) -> tuple:
    """Token by token in float64."""
    out, state = _sums(case, lambda values: values)
    return out / (1 + np.exp(-out)) if case.options["silu"] else out, state


def bound(case: Case, output: int) -> Bound:
    """Bounds of (out, state)."""
    if output == 1:
        return Bound(0.0, 0.0, "the state is a copy of inputs")
    relative = 2.0**-8 if case.arrays["x"].dtype != np.float32 else 2.0**-20
    largest = float(_sums(case, np.abs)[0].max())
    return Bound(8 * 2.0**-24 * largest, relative, "a rounding for each of up to 5 terms, those of SiLU, the result's")


def _entry(model, sequences, tokens, channels) -> Entry:
    """``sequences`` of ``tokens`` each."""
    total, width = sequences * tokens, 4
    arguments = {
        "x": ((total, channels), "bfloat16"), "weight": ((channels, width), "bfloat16"),
        "bias": ((channels,), "bfloat16"), "state": ((sequences + 1, width - 1, channels), "bfloat16"),
        "slots": ((sequences,), "int32"), "starts": ((sequences + 1,), "int32"), "resumed": ((sequences,), "bool"),
    }  # fmt: skip

    def blocks(generation):
        return candidates(GENERATIONS[generation], total, sequences, channels)

    def work(generation, tuning):
        return work_of(GENERATIONS[generation], tuning, total, sequences, channels, width)

    label = f"{model}, {sequences} x {tokens} tokens, {channels} channels"
    return Entry("causal_conv1d", key_of(total, sequences, channels), label, arguments, ("state",), {"silu": True},
                 blocks, work)  # fmt: skip


ENTRIES = (
    _entry("Qwen3-Next-80B", 16, 512, 8192),
    _entry("Qwen3-Next-80B decode", 64, 1, 8192),
    _entry("Mamba2-2.7B", 1, 8192, 5376),
    _entry("Mamba2-2.7B decode", 64, 1, 5376),
)

PROOF = Proof(
    name="causal_conv1d",
    summary="Causal convolution of width 2 to 4 over ragged sequences, decode included, states updated in place.",
    pallas=causal_conv1d_pallas, reference=causal_conv1d_reference, draw=draw, oracle=oracle, bound=bound,
    entries=ENTRIES, tuning=Tuning,
)  # fmt: skip
