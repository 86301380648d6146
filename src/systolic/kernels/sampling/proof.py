"""What proves sampling: drawn cases, a float64 oracle, and the shapes to compile."""

from __future__ import annotations

import numpy as np

from systolic.kernels.generations import GENERATIONS
from systolic.kernels.registry import DRAWS_PER_PROGRAM, Bound, Case, Entry, Proof, Work
from systolic.kernels.sampling.kernel import ROWS, sample_tokens_pallas
from systolic.kernels.sampling.reference import sample_tokens_reference
from systolic.kernels.sampling.tuning import Tuning, candidates, key_of


def draw(seed: int, index: int) -> Case:
    """Sizes from the program's number, filters and values from the case's."""
    program, turn = divmod(index, DRAWS_PER_PROGRAM)
    static = np.random.default_rng((seed, program))
    rows, vocabulary = int(static.choice([1, 5, 8, 11])), int(static.choice([1, 100, 128, 700, 1500]))
    tuning = Tuning(int(static.choice([128, 256, 512])))
    rng = np.random.default_rng((seed, program, turn))
    logits = (rng.normal(size=(rows, vocabulary)) * rng.choice([0.5, 3.0, 10.0], (rows, 1))).astype(np.float32)
    temperature = rng.uniform(0.3, 2.0, rows).astype(np.float32)
    top_k, top_p, min_p = np.zeros(rows, np.int32), np.ones(rows, np.float32), np.zeros(rows, np.float32)
    name = ("greedy", "no filters", "top-k", "top-p", "min-p", "all filters", "all filters", "masked and tied")[turn]
    if name == "greedy":
        temperature[:] = 0
    if turn in (2, 5, 6, 7):
        top_k = rng.integers(0, vocabulary + 3, rows).astype(np.int32)
    if turn in (3, 5, 6, 7):
        top_p = rng.uniform(0.01, 1.0, rows).astype(np.float32)
    if turn in (4, 5, 6):
        min_p = rng.choice([0.0, 0.01, 0.3, 1.0], rows).astype(np.float32)
    if turn == 6:
        temperature[rng.random(rows) < 0.5] = 0
    if turn == 7:
        logits = np.round(logits)
        logits[:, rng.random(vocabulary) < 0.5] = -np.inf
        logits[:, int(rng.integers(vocabulary))] = 1.0
    noise = rng.gumbel(size=(rows, vocabulary)).astype(np.float32)
    arrays = {"logits": logits, "noise": noise, "temperature": temperature, "top_k": top_k, "top_p": top_p,
              "min_p": min_p}  # fmt: skip
    return Case(f"{name} {turn}; {rows} x {vocabulary}, {tuning}", arrays, {}, tuning)


def oracle(case: Case) -> tuple:
    """Row by row: sort, then sums in float64."""
    a = case.arrays
    result = np.zeros(a["logits"].shape[0], np.int64)
    for row, logits in enumerate(a["logits"]):
        if a["temperature"][row] == 0:
            result[row] = np.argmax(logits)
            continue
        scaled = (logits / a["temperature"][row]).astype(np.float64)
        weight = np.exp(scaled - scaled.max())
        kept = weight >= float(a["min_p"][row])
        count = int(a["top_k"][row])
        if 0 < count < len(scaled):
            kept &= scaled >= np.sort(scaled)[-count]
        if a["top_p"][row] < 1:
            order = np.argsort(-scaled, kind="stable")
            mass = np.cumsum(np.where(kept, weight, 0.0)[order])
            kept &= scaled >= scaled[order[np.argmax(mass >= float(a["top_p"][row]) * mass[-1])]]
        kept &= scaled > -np.inf
        result[row] = np.argmax(np.where(kept, scaled + a["noise"][row].astype(np.float64), -np.inf))
    return (result,)


def bound(case: Case, output: int) -> Bound:
    """Tokens are equal: sums decide only what lies at the very edge of the mass, which hardly ever wins the draw."""
    return Bound(0.0, 0.0, "a token is right or wrong")


def _entry(model, rows, vocabulary) -> Entry:
    arguments = {name: ((rows, vocabulary), "float32") for name in ("logits", "noise")}
    arguments |= {name: ((rows,), "float32") for name in ("temperature", "top_p", "min_p")}
    arguments["top_k"] = ((rows,), "int32")
    names = ("logits", "noise", "temperature", "top_k", "top_p", "min_p")

    def blocks(generation):
        return candidates(GENERATIONS[generation], vocabulary)

    def work(generation, tuning):
        size = -(-rows // ROWS) * ROWS * -(-vocabulary // tuning.columns) * tuning.columns
        # 32 passes of compare, select and add for each of two thresholds, and some thirty operations beside.
        return Work(hbm_bytes=8.0 * size, matmul_flops={}, vector_ops=(32 * (5 + 9) + 30.0) * size,
                    copies=rows / ROWS * 7, least_bytes=4.0 * rows * vocabulary, least_flops={})  # fmt: skip

    label = f"{model}, {rows} x {vocabulary}"
    return Entry("sampling", key_of(vocabulary), label, {n: arguments[n] for n in names}, (), {}, blocks, work)


ENTRIES = (
    _entry("Llama-3.1-8B", 64, 128256),
    _entry("Qwen3", 8, 151936),
    _entry("Gemma", 256, 262144),
)

PROOF = Proof(
    name="sampling",
    summary="A token for each row of logits: temperature, top-k, top-p and min-p without a sort.",
    pallas=lambda **given: (sample_tokens_pallas(**given),),
    reference=lambda **given: (sample_tokens_reference(**given),),
    draw=draw, oracle=oracle, bound=bound, entries=ENTRIES, tuning=Tuning,
)  # fmt: skip
