"""What proves latent attention: drawn cases, a float64 oracle, bounds of error, and the shapes to compile."""

from __future__ import annotations

import numpy as np

from systolic.kernels.generations import GENERATIONS
from systolic.kernels.mla_attention import cache_shape
from systolic.kernels.mla_attention.kernel import mla_attention_pallas
from systolic.kernels.mla_attention.reference import mla_attention_reference
from systolic.kernels.mla_attention.tuning import candidates, key_of
from systolic.kernels.mla_attention.work import work_of
from systolic.kernels.paged_attention.draws import hide_unseen, limited, numpy_type, sequences_of
from systolic.kernels.paged_attention.tuning import Tuning
from systolic.kernels.registry import DRAWS_PER_PROGRAM, Bound, Case, Entry, Proof

HEADS = (16, 4, 1, 5, 8)
# Latent and rotated part.
WIDTHS = ((512, 64), (128, 64), (256, 32), (128, 128))
PAGE_SIZES = (16, 32, 64, 128)
TYPES = (("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float8_e4m3fn"), ("float32", "int8"),
         ("bfloat16", "bfloat16"))  # fmt: skip


def draw(seed: int, index: int) -> Case:
    """Sizes and types from the program's number, lengths and values from the case's."""
    program, turn = divmod(index, DRAWS_PER_PROGRAM)
    static = np.random.default_rng((seed, program))
    heads, (latent, rope) = HEADS[program % len(HEADS)], WIDTHS[program % len(WIDTHS)]
    page_size, (dtype, cache_dtype) = int(static.choice(PAGE_SIZES)), TYPES[program % len(TYPES)]
    page_size = max(page_size, 32 if cache_dtype in ("int8", "float8_e4m3fn") else 16)
    tuning = Tuning(
        query_block=int(static.choice([16, 32])), pages=int(static.choice([1, 2, 3])),
        buffers=int(static.choice([2, 3])), small_tokens=int(static.choice([1, 2])), chunk_rows=64,
    )  # fmt: skip
    tokens, sequences, table_pages = 40, 5, 128 // page_size + 2
    rng = np.random.default_rng((seed, program, turn))
    label, counts, ragged = sequences_of(rng, turn, tokens, sequences, table_pages, page_size)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    # A power of two, so that dividing by it rounds nothing and the written cache can be compared exactly.
    narrow = cache_dtype in ("int8", "float8_e4m3fn")
    scale = 2.0 ** rng.integers(-6, -3, size=1) if narrow else np.zeros((0,))
    cache = normal(*cache_shape(sequences * table_pages + 3, page_size, latent, rope))
    cache[:, :, latent + rope :] = 0
    cache = limited(cache / scale[0] if narrow else cache, numpy_type(cache_dtype)).astype(numpy_type(cache_dtype))
    hide_unseen(cache, ragged)
    arrays = {
        # Twice the usual spread, so that the softmax is far from flat.
        "q": (2 * normal(tokens, heads, latent + rope)).astype(numpy_type(dtype)),
        "new": normal(tokens, latent + rope).astype(numpy_type(dtype)), "cache": cache, **ragged,
        "cache_scale": scale.astype(np.float32),
    }  # fmt: skip
    options = {"latent": latent, "scale": (latent + rope) ** -0.5, "return_lse": True}
    name = (f"{label}; {heads} heads of {latent} + {rope}, page {page_size}, {dtype}/{cache_dtype}, queries {counts}, "
            f"contexts {list(ragged['seq_lens'][: len(counts)])}, {tuning}")  # fmt: skip
    return Case(name, arrays, options, tuning)


def oracle(case: Case) -> tuple:
    """(out, cache, lse): token by token in float64, with no paging in the attention."""
    a, latent = case.arrays, case.options["latent"]
    tokens, heads, width = a["q"].shape
    cache, page_size = a["cache"].copy(), a["cache"].shape[1]
    factor = float(a["cache_scale"][0]) if a["cache_scale"].size else 1.0
    for t, slot in enumerate(a["slot_mapping"]):
        if slot >= 0:
            row = limited(a["new"][t].astype(np.float32) / np.float32(factor), cache.dtype)
            cache[slot // page_size, slot % page_size, :width] = row.astype(cache.dtype)
            cache[slot // page_size, slot % page_size, width:] = 0
    out, lse = np.zeros((tokens, heads, latent)), np.full((tokens, heads), -np.inf)
    for s in range(int(a["num_seqs"][0])):
        begin, end = a["query_start_loc"][s : s + 2]
        for t in range(begin, end):
            position = np.arange(a["seq_lens"][s] - (end - 1 - t))
            rows = cache[a["block_table"][s, position // page_size], position % page_size, :width]
            rows = rows.astype(np.float64) * factor
            score = a["q"][t].astype(np.float64) @ rows.T * case.options["scale"]
            top = score.max(axis=1, keepdims=True)
            total = np.exp(score - top).sum(axis=1, keepdims=True)
            out[t] = np.exp(score - top) @ rows[:, :latent] / total
            lse[t] = (top + np.log(total))[:, 0]
    return out, cache, lse


def bound(case: Case, output: int) -> Bound:
    """Bounds of (out, cache, lse)."""
    if output == 1:
        return Bound(0.0, 0.0, "what is written is rounded once, as the oracle does it; the rest is untouched")
    if output == 2:
        return Bound(2e-5, 1e-5, "float32 scores of up to some tens, then a sum of exponentials in float32")
    if case.arrays["q"].dtype == np.float32:
        return Bound(1e-5, 1e-5, "scores of some units have relative errors near 1e-6, the softmax keeps them")
    largest = 8.0  # no normal value of these cases is beyond, and a scale gives back what it took
    return Bound(2.0**-9 * largest, 2.0**-8,
                 "weights are rounded to bfloat16, by 2^-9 of the largest value, and the result")  # fmt: skip


def _entry(model, tokens, sequences, context, heads, latent, rope, scale, page_size=64, cache_dtype="bfloat16",
           lse=False) -> Entry:  # fmt: skip
    width, pages = latent + rope, -(-context // page_size)
    size = numpy_type(cache_dtype).itemsize
    arguments = {
        "q": ((tokens, heads, width), "bfloat16"), "new": ((tokens, width), "bfloat16"),
        "cache": (cache_shape(8192, page_size, latent, rope), cache_dtype),
        "block_table": ((sequences, pages), "int32"), "seq_lens": ((sequences,), "int32"),
        "query_start_loc": ((sequences + 1,), "int32"), "slot_mapping": ((tokens,), "int32"),
        "num_seqs": ((1,), "int32"),
        "cache_scale": ((0,) if size > 1 else (1,), "float32"),
    }  # fmt: skip

    def blocks(generation):
        return candidates(GENERATIONS[generation], tokens, heads, page_size, pages)

    def work(generation, tuning):
        return work_of(GENERATIONS[generation], tuning, tokens, sequences, context, heads, width, latent, page_size,
                       size)  # fmt: skip

    kind = "decode" if tokens == sequences else f"{tokens} tokens"
    label = f"{model}, {kind}, {sequences} x {context}, {heads} heads, page {page_size}, {cache_dtype}"
    return Entry("mla_attention", key_of(tokens, heads, width, page_size, cache_dtype), label, arguments, ("cache",),
                 {"latent": latent, "scale": scale, "return_lse": lse}, blocks, work)  # fmt: skip


# 192 elements of a head before the absorption; a longer context's factor comes in through the caller's scale.
SCALE = 192**-0.5
ENTRIES = (
    _entry("DeepSeek-V3", 64, 64, 8192, 128, 512, 64, SCALE),
    _entry("DeepSeek-V3, 8 devices", 64, 64, 8192, 16, 512, 64, SCALE, lse=True),
    _entry("DeepSeek-V3, 8 devices", 64, 64, 8192, 16, 512, 64, SCALE, cache_dtype="float8_e4m3fn"),
    _entry("DeepSeek-V3", 512, 8, 8192, 128, 512, 64, SCALE),
    _entry("DeepSeek-V2-Lite", 1, 1, 32768, 16, 512, 64, SCALE, page_size=16),
)

PROOF = Proof(
    name="mla_attention",
    summary="Multi-head latent attention, absorbed, over a paged cache of latents that the kernel writes.",
    pallas=mla_attention_pallas, reference=mla_attention_reference, draw=draw, oracle=oracle, bound=bound,
    entries=ENTRIES, tuning=Tuning,
)  # fmt: skip
