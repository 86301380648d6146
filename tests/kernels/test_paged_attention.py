"""Paged attention against a float64 oracle, and its promises about bits, memory and errors."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import systolic.kernels
from systolic.kernels.paged_attention import cache_shape, paged_attention

# Float32 against float64: scores of a few units carry errors near 1e-6 relative, which the softmax
# turns into the same relative error of outputs of size 1.
TOLERANCE = 1e-5


@dataclasses.dataclass
class Case:
    """One call: new tokens and context length of each sequence, sizes and options."""

    queries: list
    contexts: list
    heads: tuple = (6, 2)
    dim: int = 64
    block_size: int = 16
    padding_tokens: int = 0
    padding_sequences: int = 0
    window: int = 0
    soft_cap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    causal: bool = True
    seed: int = 0
    arrays: dict = dataclasses.field(default_factory=dict, repr=False)

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        q_heads, kv_heads = self.heads
        sequences = len(self.queries)
        total = sum(self.queries) + self.padding_tokens
        pages = max(-(-n // self.block_size) for n in self.contexts) + 1
        num_blocks = sequences * pages + 3
        # Twice the usual spread, so that the softmax is far from flat.
        normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
        blocks = rng.permutation(num_blocks)[: sequences * pages].reshape(sequences, pages)
        table = np.zeros((sequences + self.padding_sequences, pages), np.int32)
        table[:sequences] = blocks
        cache = normal(*cache_shape(num_blocks, self.block_size, kv_heads, self.dim))
        lens = np.zeros(sequences + self.padding_sequences, np.int32)
        lens[:sequences] = self.contexts
        starts = np.full(sequences + self.padding_sequences + 1, sum(self.queries), np.int32)
        starts[: sequences + 1] = np.concatenate([[0], np.cumsum(self.queries)])
        slots = np.full(total, -1, np.int32)
        for s, (n, context) in enumerate(zip(self.queries, self.contexts)):
            position = np.arange(context - n, context)
            slots[starts[s]: starts[s] + n] = (
                table[s, position // self.block_size] * self.block_size + position % self.block_size)
        self.arrays = {
            "q": normal(total, q_heads, self.dim) * 2, "k": normal(total, kv_heads, self.dim),
            "v": normal(total, kv_heads, self.dim), "kv_cache": cache, "block_table": table,
            "seq_lens": lens, "query_start_loc": starts, "slot_mapping": slots,
            "num_seqs": np.array([sequences], np.int32),
            "alibi_slopes": rng.uniform(0.01, 0.5, q_heads).astype(np.float32) if self.alibi else None,
            "sinks": normal(q_heads) if self.sinks else None,
        }

    @property
    def options(self):
        return {"scale": self.dim ** -0.5, "sliding_window": self.window, "soft_cap": self.soft_cap,
                "causal": self.causal}

    def run(self, implementation=None, **changes):
        with systolic.kernels.force(implementation):
            call = jax.jit(functools.partial(paged_attention, **self.options))
            out, cache = call(**{**self.arrays, **changes})
        return np.asarray(out), np.asarray(cache)


def oracle(case):
    """The same result in float64, sequence by sequence and head by head, with no paging in it."""
    a = case.arrays
    out = np.zeros(a["q"].shape, np.float64)
    cache = a["kv_cache"].copy()
    for t, slot in enumerate(a["slot_mapping"]):
        if slot >= 0:
            cache[slot // case.block_size, 0, :, slot % case.block_size] = a["k"][t]
            cache[slot // case.block_size, 1, :, slot % case.block_size] = a["v"][t]
    group = case.heads[0] // case.heads[1]
    for s, (n, context) in enumerate(zip(case.queries, case.contexts)):
        rows = cache[a["block_table"][s]].astype(np.float64)
        keys, values = (rows[:, i].transpose(0, 2, 1, 3).reshape(-1, *rows.shape[2::2])[:context]
                        for i in (0, 1))
        for i in range(n):
            t, position = a["query_start_loc"][s] + i, context - n + i
            distance = np.arange(context) - position
            seen = distance <= 0 if case.causal else np.ones(context, bool)
            if case.window:
                seen = seen & (np.abs(distance) < case.window)
            for h in range(case.heads[0]):
                score = keys[:, h // group] @ a["q"][t, h].astype(np.float64) * case.dim ** -0.5
                if case.soft_cap:
                    score = np.tanh(score / case.soft_cap) * case.soft_cap
                if case.alibi:
                    score = score + a["alibi_slopes"][h].astype(np.float64) * distance
                score = np.where(seen, score, -np.inf)
                sink = float(a["sinks"][h]) if case.sinks else -np.inf
                top = max(score.max(), sink)
                weight = np.exp(score - top)
                out[t, h] = weight @ values[:, h // group] / (weight.sum() + np.exp(sink - top))
    return out, cache


def drawn_case(seed):
    """A random mix of prefill, chunked prefill and decode with random options."""
    rng = np.random.default_rng(1000 + seed)
    contexts = [int(rng.choice([1, 15, 16, 17, 63, 64, 65, 100, 255, 256, 257, 300])) for _ in
                range(rng.integers(1, 5))]
    queries = [int(rng.choice([1, n, max(1, n // 3)])) for n in contexts]
    kv_heads = int(rng.choice([1, 2, 3]))
    return Case(queries, contexts, heads=(kv_heads * int(rng.choice([1, 3, 7])), kv_heads),
                dim=int(rng.choice([64, 80, 128, 256])), block_size=int(rng.choice([8, 16, 32])),
                padding_tokens=int(rng.choice([0, 5])), padding_sequences=int(rng.choice([0, 2])),
                window=int(rng.choice([0, 0, 1, 7, 64, 100])), soft_cap=float(rng.choice([0, 0, 2.0, 30.0])),
                alibi=bool(rng.random() < 0.3), sinks=bool(rng.random() < 0.3),
                causal=bool(rng.random() < 0.85), seed=seed)


NAMED = {
    "one-token-prompt": Case([1], [1]),
    "decode-at-page-borders": Case([1] * 6, [15, 16, 17, 31, 32, 33]),
    "decode-at-segment-borders": Case([1] * 4, [256, 257, 512, 513]),
    "long-decode-alone": Case([1], [1500], heads=(9, 3)),
    "prefill-over-segments": Case([700], [700], heads=(3, 1)),
    "chunk-of-a-prompt": Case([70], [333], heads=(9, 3)),
    "mixed": Case([1, 40, 1, 7], [90, 40, 17, 55], padding_tokens=15, padding_sequences=4),
    "sequence-without-queries": Case([3, 0, 1], [10, 40, 20]),
    "window-of-one": Case([20, 1], [20, 80], window=1),
    "window-in-later-segment": Case([30, 1], [400, 700], window=50),
    "window-not-causal": Case([90], [90], window=20, causal=False),
    "soft-cap-small": Case([20, 1], [20, 80], soft_cap=1.5),
    "sinks-with-window": Case([40, 1], [40, 300], sinks=True, window=8),
    "alibi": Case([40, 1], [40, 300], alibi=True, heads=(7, 1)),
    "width-not-of-whole-vectors": Case([9, 1], [20, 70], dim=36, block_size=5),
    "widest": Case([33, 1], [33, 65], dim=256, heads=(7, 1)),
}


# The reference compiles anew for each shape, so it runs on one case for each of its branches.
FOR_REFERENCE = ("mixed", "sequence-without-queries", "window-not-causal", "soft-cap-small",
                 "sinks-with-window", "alibi")


@pytest.mark.parametrize("name, implementation", [(name, "native") for name in NAMED] +
                         [(name, "reference") for name in FOR_REFERENCE])
def test_named_cases_match_the_oracle(name, implementation):
    case = NAMED[name]
    out, cache = case.run(implementation)
    want, want_cache = oracle(case)
    np.testing.assert_allclose(out, want, atol=TOLERANCE, rtol=TOLERANCE)
    np.testing.assert_array_equal(cache, want_cache)


@pytest.mark.parametrize("seed", range(40))
def test_drawn_cases_match_the_oracle(seed):
    case = drawn_case(seed)
    out, cache = case.run("native")
    want, want_cache = oracle(case)
    np.testing.assert_allclose(out, want, atol=TOLERANCE, rtol=TOLERANCE)
    np.testing.assert_array_equal(cache, want_cache)


@pytest.mark.parametrize("seed", (0, 16, 32))
def test_reference_matches_the_oracle_on_drawn_cases(seed):
    case = drawn_case(seed)
    out, cache = case.run("reference")
    want, want_cache = oracle(case)
    np.testing.assert_allclose(out, want, atol=TOLERANCE, rtol=TOLERANCE)
    np.testing.assert_array_equal(cache, want_cache)


@pytest.mark.parametrize("implementation", ["native", "reference"])
def test_padding_gives_zeros_and_writes_nothing(implementation):
    case = Case([3, 1], [30, 12], padding_tokens=6, padding_sequences=3)
    case.arrays["v"][-6:] = np.nan
    out, cache = case.run(implementation)
    assert not out[-6:].any()
    assert not np.isnan(cache).any()
    out, cache = case.run(implementation, num_seqs=np.array([0], np.int32),
                          slot_mapping=np.full(10, -1, np.int32))
    assert not out.any()
    np.testing.assert_array_equal(cache, case.arrays["kv_cache"])


def test_stale_slots_are_not_read():
    """NaN in slots behind a sequence's end, and in blocks before its window, changes nothing."""
    case = Case([1, 5], [200, 37], window=40)
    out, _ = case.run("native")
    cache = case.arrays["kv_cache"].copy()
    used = np.zeros(cache.shape[0] * 16, bool)
    for s, (n, context) in enumerate(zip(case.queries, case.contexts)):
        position = np.arange(max(0, context - n - 40 + 1), context)
        used[case.arrays["block_table"][s, position // 16] * 16 + position % 16] = True
    cache.transpose(0, 3, 1, 2, 4)[~used.reshape(-1, 16)] = np.nan
    poisoned, _ = case.run("native", kv_cache=cache)
    np.testing.assert_array_equal(poisoned, out)


def test_donated_cache_is_updated_in_place():
    case = Case([1, 4], [20, 4])
    call = jax.jit(functools.partial(paged_attention, **case.options), donate_argnames="kv_cache")
    # A copy owned by JAX: the array must not alias NumPy's memory.
    cache = jnp.array(case.arrays["kv_cache"], copy=True) + 0
    pointer = cache.unsafe_buffer_pointer()
    rest = {name: value for name, value in case.arrays.items() if name != "kv_cache"}
    compiled = call.lower(kv_cache=cache, **rest).compile()
    assert compiled.memory_analysis().alias_size_in_bytes >= case.arrays["kv_cache"].nbytes
    assert " copy(" not in compiled.as_text()
    _, updated = compiled(kv_cache=cache, **rest)
    assert updated.unsafe_buffer_pointer() == pointer
    assert cache.is_deleted()
    written = np.zeros(cache.shape[0] * 16, bool)
    written[case.arrays["slot_mapping"]] = True
    by_slot = lambda array: np.asarray(array).transpose(0, 3, 1, 2, 4).reshape(written.size, 2, 2, 64)
    before, after = by_slot(case.arrays["kv_cache"]), by_slot(updated)
    np.testing.assert_array_equal(after[~written], before[~written])
    np.testing.assert_array_equal(after[case.arrays["slot_mapping"], 0], case.arrays["k"])
    np.testing.assert_array_equal(after[case.arrays["slot_mapping"], 1], case.arrays["v"])


def test_cache_kept_without_donation():
    case = Case([2], [9])
    cache = jnp.array(case.arrays["kv_cache"])
    _, updated = case.run("native", kv_cache=cache)
    np.testing.assert_array_equal(np.asarray(cache), case.arrays["kv_cache"])
    assert not np.array_equal(updated, case.arrays["kv_cache"])


OPTIONS = {
    "plain": {},
    "window": {"window": 70},
    "soft-cap-alibi-sinks": {"soft_cap": 5.0, "alibi": True, "sinks": True},
    "dim-80": {"dim": 80, "heads": (7, 1)},
}


def alone(case, sequence, new_tokens, block_offset):
    """One sequence of `case` in a call of its own: its last `new_tokens` tokens, in other blocks."""
    a = case.arrays
    start, end = a["query_start_loc"][sequence: sequence + 2]
    context, n = case.contexts[sequence], case.queries[sequence]
    filled = oracle_cache(case)
    pages = -(-context // case.block_size)
    rng = np.random.default_rng(block_offset)
    table = (rng.permutation(pages) + block_offset).astype(np.int32)
    cache = np.full((pages + block_offset, *filled.shape[1:]), np.nan, np.float32)
    cache[table] = filled[a["block_table"][sequence, :pages]]
    position = np.arange(context - new_tokens, context)
    slots = table[position // case.block_size] * case.block_size + position % case.block_size
    take = slice(end - new_tokens, end)
    assert new_tokens <= n
    with systolic.kernels.force("native"):
        out, _ = jax.jit(functools.partial(paged_attention, **case.options))(
            a["q"][take], a["k"][take], a["v"][take], cache, table[None], np.array([context], np.int32),
            np.array([0, new_tokens], np.int32), slots.astype(np.int32), np.array([1], np.int32),
            a["alibi_slopes"], a["sinks"])
    return np.asarray(out)


def oracle_cache(case):
    cache = case.arrays["kv_cache"].copy()
    for t, slot in enumerate(case.arrays["slot_mapping"]):
        if slot >= 0:
            cache[slot // case.block_size, 0, :, slot % case.block_size] = case.arrays["k"][t]
            cache[slot // case.block_size, 1, :, slot % case.block_size] = case.arrays["v"][t]
    return cache


@pytest.mark.parametrize("option", OPTIONS)
def test_company_does_not_change_a_bit(option):
    """Each sequence alone, in other blocks, gives the bits that it gives in a mixed call."""
    case = Case([1, 130, 1, 9, 1], [600, 130, 17, 300, 1], **{"heads": (9, 3), **OPTIONS[option]})
    out, _ = case.run("native")
    for s, n in enumerate(case.queries):
        start = case.arrays["query_start_loc"][s]
        np.testing.assert_array_equal(alone(case, s, n, 3 + s), out[start: start + n])


@pytest.mark.parametrize("option", OPTIONS)
def test_chunking_does_not_change_a_bit(option):
    """The last tokens of a prompt give the bits of the whole prompt, down to a chunk of one token."""
    case = Case([333], [333], **{"heads": (9, 3), **OPTIONS[option]})
    out, _ = case.run("native")
    for chunk in (1, 2, 5, 64, 100, 270):
        np.testing.assert_array_equal(alone(case, 0, chunk, 2), out[-chunk:])


def test_int64_slots():
    case = Case([2], [9])
    with jax.enable_x64(True):
        out, cache = case.run("native", slot_mapping=case.arrays["slot_mapping"].astype(np.int64))
    want, want_cache = case.run("native")
    np.testing.assert_array_equal(out, want)
    np.testing.assert_array_equal(cache, want_cache)


@pytest.mark.parametrize("name, value, words", [
    ("block_table", np.full((1, 2), 99, np.int32), "names block 99"),
    ("seq_lens", np.array([1], np.int32), r"seq_lens\[0\] is 1, below"),
    ("seq_lens", np.array([33], np.int32), "above what the block table can hold: 32"),
    ("slot_mapping", np.array([0, 4000], np.int32), r"slot_mapping\[1\] is 4000"),
    ("query_start_loc", np.array([0, 3], np.int32), r"query_start_loc\[1\] is 3"),
    ("num_seqs", np.array([2], np.int32), r"num_seqs\[0\] is 2"),
])
def test_values_out_of_range_are_refused(name, value, words):
    with pytest.raises(jax.errors.JaxRuntimeError, match=words):
        Case([2], [9]).run("native", **{name: value})


@pytest.mark.parametrize("name, value, words", [
    ("q", np.zeros((2, 5, 64), np.float32), "5 heads"),
    ("k", np.zeros((2, 3, 64), np.float32), "k has shape"),
    ("v", np.zeros((2, 2, 64), np.float16), "v has dtype float16"),
    ("seq_lens", np.zeros(2, np.int32), "seq_lens has shape"),
    ("slot_mapping", np.zeros(2, np.float32), "slot_mapping has dtype"),
    ("sinks", np.zeros(3, np.float32), "sinks is"),
])
def test_wrong_arguments_are_refused(name, value, words):
    with pytest.raises(ValueError, match=words):
        Case([2], [9]).run("native", **{name: value})


def test_automatic_choice_and_force():
    case = Case([2], [9])
    call = functools.partial(paged_attention, **case.options)
    text = {}
    for choice in (None, "native", "reference"):
        with systolic.kernels.force(choice):
            text[choice] = jax.jit(lambda arrays: call(**arrays)).lower(case.arrays).compile().as_text()
    assert "systolic_paged_attention" in text[None] and " conditional(" not in text[None]
    assert "systolic_paged_attention" in text["native"]
    assert "systolic_paged_attention" not in text["reference"]
    with pytest.raises(ValueError, match="fast"):
        with systolic.kernels.force("fast"):
            pass
