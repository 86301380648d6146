"""What proves paged attention: drawn cases, a float64 oracle, bounds of error, and the shapes to compile."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from systolic.kernels.generations import GENERATIONS
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


def numpy_type(name: str):
    """NumPy's dtype of that name, with the narrow floats."""
    return np.dtype(getattr(ml_dtypes, name, name))


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
    label, lengths = _lengths(rng, turn, tokens, sequences, table_pages * page_size, page_size)
    live = len(lengths)
    counts = [n for n, _ in lengths]
    blocks = sequences * table_pages + 3
    table = np.zeros((sequences, table_pages), np.int32)
    table[:live] = rng.permutation(blocks)[: live * table_pages].reshape(live, table_pages)
    seq_lens = np.zeros(sequences, np.int32)
    seq_lens[:live] = [context for _, context in lengths]
    starts = np.full(sequences + 1, sum(counts), np.int32)
    starts[: live + 1] = np.concatenate([[0], np.cumsum(counts)])
    slots = np.full(tokens, -1, np.int32)
    for s, (n, context) in enumerate(lengths):
        if rng.random() < 0.1:
            continue  # a layer that shares a cache writes nothing
        position = np.arange(context - n, context)
        slots[starts[s] : starts[s] + n] = table[s, position // page_size] * page_size + position % page_size

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    narrow = cache_dtype in ("int8", "float8_e4m3fn", "float8_e5m2")
    # Powers of two, so that dividing by them rounds nothing and the written cache can be compared exactly.
    scales = 2.0 ** rng.integers(-6, -3, size=(2, kv_heads)) if narrow else np.zeros((0,))
    cache = normal(blocks, 2, kv_heads, page_size, dim)
    if narrow:
        cache = _limited(cache / scales.astype(np.float32)[None, :, :, None, None], numpy_type(cache_dtype))
    cache = cache.astype(numpy_type(cache_dtype))
    _hide_unseen(cache, table, seq_lens, counts, starts, slots, page_size)
    real = numpy_type(dtype)
    arrays = {
        # Twice the usual spread, so that the softmax is far from flat.
        "q": (2 * normal(tokens, q_heads, dim)).astype(real), "k": normal(tokens, kv_heads, dim).astype(real),
        "v": normal(tokens, kv_heads, dim).astype(real), "kv_cache": cache, "block_table": table,
        "seq_lens": seq_lens, "query_start_loc": starts, "slot_mapping": slots, "num_seqs": np.array([live], np.int32),
        "alibi_slopes": rng.uniform(0.01, 0.5, q_heads if alibi else 0).astype(np.float32),
        "sinks": normal(q_heads if sinks else 0), "cache_scales": scales.astype(np.float32),
    }  # fmt: skip
    name = (f"{label}; heads {q_heads}/{kv_heads}x{dim}, page {page_size}, {dtype}/{cache_dtype}, window {window}, "
            f"queries {counts}, contexts {list(seq_lens[:live])}")  # fmt: skip
    return Case(name, arrays, options, tuning)


def _lengths(rng, turn: int, tokens: int, sequences: int, longest: int, page_size: int):
    """A name and (new tokens, context) of each live sequence, for the turns of one program."""
    def context(n):
        return int(rng.integers(n, longest + 1))

    if turn == 0:
        return "nothing", []
    if turn == 1:
        return "one token", [(1, 1)]
    if turn == 2:  # contexts around the ends of pages, new tokens that cross them
        ends = [page_size * int(rng.integers(1, longest // page_size + 1)) for _ in range(sequences)]
        made = [(int(rng.integers(1, 8)), end + int(rng.integers(-1, 2))) for end in ends]
        return "page borders", [(min(n, c), min(c, longest)) for n, c in made]
    if turn == 3:
        return "maximum", [(1, longest)] * (sequences - 1) + [(tokens - sequences + 1, longest)]
    if turn == 4:
        return "decode", [(1, context(1)) for _ in range(sequences)]
    if turn == 5:
        return "prompt", [(tokens, tokens)]
    counts = rng.multinomial(int(rng.integers(1, tokens + 1)), rng.dirichlet(np.ones(sequences) * 0.7))
    return "mixed", [(int(n), context(int(n)) if n else int(rng.integers(0, longest))) for n in counts]


def _hide_unseen(cache, table, seq_lens, counts, starts, slots, page_size) -> None:
    """Put NaN where nobody may look: slots past each sequence and blocks that belong to none."""
    if not np.issubdtype(cache.dtype, np.floating) and cache.dtype.kind != "V":
        return
    seen = np.zeros((cache.shape[0], page_size), bool)
    for s in range(len(counts)):
        position = np.arange(seq_lens[s])
        seen[table[s, position // page_size], position % page_size] = True
    cache[np.broadcast_to(~seen[:, None, None, :, None], cache.shape)] = np.nan


def _limited(x, dtype):
    if dtype == np.int8:
        return np.clip(np.rint(x), -128, 127)
    if dtype.itemsize == 1:
        top = float(ml_dtypes.finfo(dtype).max)
        return np.clip(x, -top, top)
    return x


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
                value = _limited(new[t].astype(np.float32) / scales[kind][:, None], cache.dtype)
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
