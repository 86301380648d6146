"""What proves attention inside segments: drawn cases, a float64 oracle, bounds of error, and the shapes to compile."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from systolic.kernels.flash_attention.kernel import flash_attention_pallas
from systolic.kernels.flash_attention.reference import flash_attention_reference
from systolic.kernels.flash_attention.tuning import Tuning, candidates, key_of
from systolic.kernels.generations import GENERATIONS
from systolic.kernels.registry import DRAWS_PER_PROGRAM, Bound, Case, Entry, Proof, Work

HEADS = ((2, 1), (1, 1), (3, 3), (4, 2))
DIMS = (64, 128, 72, 80, 256)
TYPES = ("float32", "bfloat16", "float32")


def draw(seed: int, index: int) -> Case:
    """Shapes and options from the program's number, segments and values from the case's."""
    program, turn = divmod(index, DRAWS_PER_PROGRAM)
    static = np.random.default_rng((seed, program))
    q_heads, kv_heads = HEADS[program % len(HEADS)]
    dim, name = DIMS[program % len(DIMS)], TYPES[program % len(TYPES)]
    queries, keys = int(static.choice([1, 17, 64, 100])), int(static.choice([1, 100, 128, 300]))
    causal = bool(static.random() < 0.4)
    if causal:
        keys = queries
    tuning = Tuning(int(static.choice([16, 32, 64])), int(static.choice([128, 256])))
    options = {"scale": dim**-0.5, "causal": causal, "soft_cap": float(static.choice([0.0, 0.0, 4.0]))}
    rng = np.random.default_rng((seed, program, turn))
    label, q_segments, kv_segments = _segments(rng, turn, queries, keys)
    dtype = np.dtype(getattr(ml_dtypes, name, name))

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32).astype(dtype)

    arrays = {
        "q": (2 * normal(q_heads, queries, dim)).astype(dtype), "k": normal(kv_heads, keys, dim),
        "v": normal(kv_heads, keys, dim), "q_segments": q_segments.astype(np.int32),
        "kv_segments": kv_segments.astype(np.int32),
    }  # fmt: skip
    label = f"{label} {turn}; heads {q_heads}/{kv_heads}x{dim}, {queries} x {keys}, {name}, {options}, {tuning}"
    return Case(label, arrays, options, tuning)


def _segments(rng, turn: int, queries: int, keys: int):
    """A name, and the segments of queries and keys, for the turns of one program."""
    if turn == 0:
        return "nothing", np.full(queries, -1), np.zeros(keys)
    if turn == 1:
        return "one segment", np.zeros(queries), np.zeros(keys)
    if turn == 2:
        return "nothing in common", np.zeros(queries), np.ones(keys)
    if turn == 3:
        return "one of each", np.arange(queries), np.arange(keys)
    if turn == 4:
        return "in any order", rng.integers(-1, 4, queries), rng.integers(0, 4, keys)
    count = int(rng.integers(2, 6))
    cuts = np.sort(rng.random(count))
    found = [np.searchsorted(cuts, np.arange(n) / n) for n in (queries, keys)]
    found[0][queries - int(rng.integers(0, queries // 3 + 1)) :] = -1
    return "packed", *found


def oracle(case: Case) -> tuple:
    """Query by query in float64."""
    a, o = case.arrays, case.options
    q, k, v = (a[name].astype(np.float64) for name in ("q", "k", "v"))
    out = np.zeros(q.shape)
    for t, segment in enumerate(a["q_segments"]):
        seen = a["kv_segments"] == segment
        if o["causal"]:
            seen &= np.arange(k.shape[1]) <= t
        if segment < 0 or not seen.any():
            continue
        for head in range(q.shape[0]):
            kv = head // (q.shape[0] // k.shape[0])
            scores = k[kv, seen] @ q[head, t] * o["scale"]
            if o["soft_cap"]:
                scores = np.tanh(scores / o["soft_cap"]) * o["soft_cap"]
            weights = np.exp(scores - scores.max())
            out[head, t] = weights @ v[kv, seen] / weights.sum()
    return (out,)


def bound(case: Case, output: int) -> Bound:
    """The bounds of paged attention's output, for the same reasons."""
    if case.arrays["q"].dtype == np.float32:
        return Bound(1e-5, 1e-5, "scores of some units have relative errors near 1e-6, the softmax keeps them")
    largest = float(np.abs(case.arrays["v"].astype(np.float32)).max())
    return Bound(2.0**-8 * largest, 2.0**-8, "weights are rounded to bfloat16, and the result")


def _entry(model, segments, tokens, heads, dim, causal=False) -> Entry:
    """``segments`` sequences of ``tokens`` each, one after the other."""
    total = segments * tokens
    arguments = {name: ((heads, total, dim), "bfloat16") for name in ("q", "k", "v")}
    arguments |= {name: ((total,), "int32") for name in ("q_segments", "kv_segments")}
    options = {"scale": dim**-0.5, "causal": causal, "soft_cap": 0.0}

    def blocks(generation):
        return candidates(GENERATIONS[generation], total, total)

    def work(generation, t):
        # A block of queries meets the keys of its segment, rounded outward to blocks.
        keys = min(total, -(-max(tokens, t.queries) // t.keys) * t.keys + t.keys * (segments > 1))
        keys = keys / 2 + t.keys / 2 if causal and segments == 1 else keys
        pairs = heads * total * keys
        least = heads * total * tokens * (0.5 if causal else 1.0)
        padded, moved = -(-dim // 128) * 128, 2.0 * heads * total * dim
        return Work(
            hbm_bytes=2.0 * heads * total * padded * 2 + 4.0 * heads * (total / t.queries) * keys * padded,
            matmul_flops={"bfloat16": 4.0 * pairs * padded}, vector_ops=18.0 * pairs,
            copies=heads * (total / t.queries) * (3 * keys / t.keys + 2),
            least_bytes=4 * moved, least_flops={"bfloat16": 4.0 * least * dim},
            grid_steps=heads * (total / t.queries) * keys / t.keys,
        )  # fmt: skip

    label = f"{model}, {segments} x {tokens} tokens, heads {heads}x{dim}{', causal' if causal else ''}"
    key = key_of(total, total, dim, "bfloat16")
    return Entry("flash_attention", key, label, arguments, (), options, blocks, work)


ENTRIES = (
    _entry("SigLIP-so400m", 8, 729, 16, 72),
    _entry("Qwen2.5-VL vision", 4, 1024, 16, 80),
    _entry("Whisper large", 1, 1500, 20, 64),
    _entry("Llama-3.1-8B prompt", 1, 8192, 32, 128, causal=True),
)

PROOF = Proof(
    name="flash_attention",
    summary="Attention inside segments of packed sequences, without a cache.",
    pallas=lambda **given: (flash_attention_pallas(**given),),
    reference=lambda **given: (flash_attention_reference(**given),),
    draw=draw, oracle=oracle, bound=bound, entries=ENTRIES, tuning=Tuning,
)  # fmt: skip
