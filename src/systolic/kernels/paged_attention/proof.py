"""What proves paged attention: drawn cases, a float64 oracle, bounds of error, and the shapes to compile."""

from __future__ import annotations

import numpy as np

from systolic.kernels.generations import GENERATIONS
from systolic.kernels.paged_attention.draws import hide_unseen, limited, numpy_type, sequences_of
from systolic.kernels.paged_attention.kernel import paged_attention_pallas
from systolic.kernels.paged_attention.reference import paged_attention_reference
from systolic.kernels.paged_attention.tuning import Tuning, candidates, key_of
from systolic.kernels.paged_attention.work import work_of
from systolic.kernels.registry import DRAWS_PER_PROGRAM, Bound, Case, Entry, Proof

HEADS = ((4, 2), (8, 1), (1, 1), (6, 2), (5, 1), (3, 3))
DIMS = (64, 128, 96, 256, 80)
PAGE_SIZES = (16, 32, 16, 64, 128, 256)
TYPES = (("float32", "float32"), ("bfloat16", "bfloat16"), ("float32", "float32"), ("bfloat16", "int8"),
         ("bfloat16", "float8_e4m3fn"), ("float32", "int8"), ("bfloat16", "float8_e5m2"))  # fmt: skip


def draw(seed: int, index: int) -> Case:
    """Sizes and options from the program's number, lengths and values from the case's."""
    program, turn = divmod(index, DRAWS_PER_PROGRAM)
    static = np.random.default_rng((seed, program))

    def pick(options):  # every option of every axis comes up within a few programs
        return options[(program + int(static.integers(2)) * 3) % len(options)]

    q_heads, kv_heads = pick(HEADS)
    dim, page_size, (dtype, cache_dtype) = pick(DIMS), pick(PAGE_SIZES), pick(TYPES)
    window = int(static.choice([0, 0, 1, page_size - 1, page_size, 3 * page_size // 2]))
    options = {
        "scale": float(dim) ** -0.5, "sliding_window": window,
        "soft_cap": float(static.choice([0.0, 0.0, 5.0])), "causal": bool(static.random() < 0.8), "return_lse": True,
    }  # fmt: skip
    parts = int(static.choice([n for n in (1, 2, 3) if kv_heads % n == 0]))
    tuning = Tuning(
        query_block=int(static.choice([16, 32])), pages=int(static.choice([1, 2, 3])), head_parts=parts,
        buffers=int(static.choice([2, 3])), small_tokens=int(static.choice([1, 2])),
        chunk_rows=int(static.choice([16, 64])), unroll_heads=False,
    )  # fmt: skip
    alibi, sinks = bool(static.random() < 0.3), bool(static.random() < 0.4)
    tokens, sequences, table_pages = 40, 5, 128 // page_size + 2

    rng = np.random.default_rng((seed, program, turn))
    label, counts, ragged = sequences_of(rng, turn, tokens, sequences, table_pages, page_size)
    blocks = sequences * table_pages + 3

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    narrow = cache_dtype in ("int8", "float8_e4m3fn", "float8_e5m2")
    # Powers of two, so that dividing by them rounds nothing and the written cache can be compared exactly.
    scales = 2.0 ** rng.integers(-6, -3, size=(2, kv_heads)) if narrow else np.zeros((0,))
    cache = normal(blocks, 2, kv_heads, page_size, dim)
    if narrow:
        cache = limited(cache / scales.astype(np.float32)[None, :, :, None, None], numpy_type(cache_dtype))
    cache = cache.astype(numpy_type(cache_dtype))
    hide_unseen(cache.swapaxes(1, 3), ragged)
    real = numpy_type(dtype)
    arrays = {
        # Twice the usual spread, so that the softmax is far from flat.
        "q": (2 * normal(tokens, q_heads, dim)).astype(real), "k": normal(tokens, kv_heads, dim).astype(real),
        "v": normal(tokens, kv_heads, dim).astype(real), "kv_cache": cache, **ragged,
        "alibi_slopes": rng.uniform(0.01, 0.5, q_heads if alibi else 0).astype(np.float32),
        "sinks": normal(q_heads if sinks else 0), "cache_scales": scales.astype(np.float32),
    }  # fmt: skip
    name = (f"{label}; heads {q_heads}/{kv_heads}x{dim}, page {page_size}, {dtype}/{cache_dtype}, window {window}, "
            f"queries {counts}, contexts {list(ragged['seq_lens'][: len(counts)])}")  # fmt: skip
    return Case(name, arrays, options, tuning)


def oracle(case: Case) -> tuple:
    """(out, cache, lse): sequence by sequence and head by head in float64, with no paging in the attention."""
    a, o = case.arrays, case.options
    q, tokens = a["q"].astype(np.float64), a["q"].shape[0]
    q_heads, (_, _, kv_heads, page_size, dim) = q.shape[1], a["kv_cache"].shape
    cache = a["kv_cache"].copy()
    scales = a["cache_scales"] if a["cache_scales"].size else np.ones((2, kv_heads), np.float32)
    for t, slot in enumerate(a["slot_mapping"]):
        if slot >= 0:
            for kind, new in enumerate((a["k"], a["v"])):
                value = limited(new[t].astype(np.float32) / scales[kind][:, None], cache.dtype)
                cache[slot // page_size, kind, :, slot % page_size] = value.astype(cache.dtype)
    out, lse = np.zeros(q.shape), np.full((tokens, q_heads), -np.inf)
    for s in range(int(a["num_seqs"][0])):
        begin, end = a["query_start_loc"][s : s + 2]
        length = int(a["seq_lens"][s])
        position = np.arange(length)
        rows = cache[a["block_table"][s, position // page_size], :, :, position % page_size].astype(np.float64)
        rows = rows * scales.astype(np.float64)[None, :, :, None]
        for t in range(begin, end):
            here = length - (end - begin) + t - begin
            seen = position <= here if o["causal"] else np.ones(length, bool)
            if o["sliding_window"]:
                seen &= np.abs(position - here) < o["sliding_window"]
            for head in range(q_heads):
                keys, values = rows[seen, :, head // (q_heads // kv_heads)].swapaxes(0, 1)
                score = keys @ q[t, head] * o["scale"]
                if o["soft_cap"]:
                    score = np.tanh(score / o["soft_cap"]) * o["soft_cap"]
                if a["alibi_slopes"].size:
                    score = score + a["alibi_slopes"][head].astype(np.float64) * (position[seen] - here)
                logits = np.append(score, a["sinks"][head]) if a["sinks"].size else score
                top = logits.max()
                total = np.exp(logits - top).sum()
                out[t, head] = np.exp(score - top) @ values / total
                lse[t, head] = top + np.log(total)
    return out, cache, lse


def bound(case: Case, output: int) -> Bound:
    """Bounds of (out, cache, lse)."""
    if output == 1:
        return Bound(0.0, 0.0, "what is written is rounded once, as the oracle does it; the rest is untouched")
    if output == 2:
        return Bound(2e-5, 1e-5, "float32 scores of up to some tens, then a sum of exponentials in float32")
    largest = 8.0  # no normal value of these cases is beyond, and a scale gives back what it took
    if case.arrays["q"].dtype == np.float32 and case.arrays["kv_cache"].dtype != numpy_type("bfloat16"):
        return Bound(1e-5, 1e-5, "scores of some units have relative errors near 1e-6, the softmax keeps them")
    return Bound(2.0**-9 * largest, 2.0**-8,
                 "weights are rounded to bfloat16, by 2^-9 of the largest value, and the result")  # fmt: skip


def _arguments(tokens, sequences, q_heads, kv_heads, dim, page_size, context, cache_dtype, blocks) -> dict:
    scaled = cache_dtype != "bfloat16"
    return {
        "q": ((tokens, q_heads, dim), "bfloat16"), "k": ((tokens, kv_heads, dim), "bfloat16"),
        "v": ((tokens, kv_heads, dim), "bfloat16"),
        "kv_cache": ((blocks, 2, kv_heads, page_size, dim), cache_dtype),
        "block_table": ((sequences, -(-context // page_size)), "int32"), "seq_lens": ((sequences,), "int32"),
        "query_start_loc": ((sequences + 1,), "int32"), "slot_mapping": ((tokens,), "int32"),
        "num_seqs": ((1,), "int32"), "alibi_slopes": ((0,), "float32"), "sinks": ((0,), "float32"),
        "cache_scales": ((2, kv_heads) if scaled else (0,), "float32"),
    }  # fmt: skip


def _entry(model, tokens, sequences, context, q_heads, kv_heads, dim, page_size=16, cache_dtype="bfloat16", window=0,
           sinks=False, lse=False, soft_cap=0.0) -> Entry:  # fmt: skip
    arguments = _arguments(tokens, sequences, q_heads, kv_heads, dim, page_size, context, cache_dtype, 4096)
    if sinks:
        arguments["sinks"] = ((q_heads,), "float32")
    options = {"scale": dim**-0.5, "sliding_window": window, "soft_cap": soft_cap, "causal": True, "return_lse": lse}
    size = numpy_type(cache_dtype).itemsize

    def blocks(generation):
        return candidates(GENERATIONS[generation], tokens, q_heads, kv_heads, dim, page_size, size,
                          -(-context // page_size))  # fmt: skip

    def work(generation, tuning):
        return work_of(GENERATIONS[generation], tuning, tokens, sequences, context, q_heads, kv_heads, dim, page_size,
                       size, window)  # fmt: skip

    kind = "decode" if tokens == sequences else f"{tokens} tokens"
    label = f"{model}, {kind}, {sequences} x {context}, page {page_size}, {cache_dtype}"
    key = key_of(tokens, q_heads, kv_heads, dim, page_size, cache_dtype)
    return Entry("paged_attention", key, label, arguments, ("kv_cache",), options, blocks, work)


ENTRIES = (
    _entry("Llama-3.1-8B", 64, 64, 8192, 32, 8, 128),
    _entry("Llama-3.1-8B", 512, 8, 8192, 32, 8, 128),
    _entry("Llama-3.1-8B", 1, 1, 131072, 32, 8, 128),
    _entry("Qwen3-32B", 64, 64, 8192, 64, 8, 128, page_size=128),
    _entry("GPT-OSS-120B", 64, 64, 8192, 64, 8, 64, window=128, sinks=True),
    _entry("Qwen3.5-397B", 64, 64, 8192, 32, 2, 256, page_size=64, lse=True),
    _entry("Llama-3.1-8B", 64, 64, 8192, 32, 8, 128, page_size=32, cache_dtype="int8"),
    _entry("Llama-3.1-8B", 64, 64, 8192, 32, 8, 128, page_size=32, cache_dtype="float8_e4m3fn"),
    _entry("Gemma-2-9B", 64, 64, 8192, 16, 8, 256, page_size=256, window=4096, soft_cap=50.0),
)

PROOF = Proof(
    name="paged_attention",
    summary="Attention over a paged cache: prefill and decode in one call; the cache is written in the kernel.",
    pallas=paged_attention_pallas, reference=paged_attention_reference, draw=draw, oracle=oracle, bound=bound,
    entries=ENTRIES, tuning=Tuning,
)  # fmt: skip
