"""The same greedy tokens as transformers, for models with random weights of several architectures."""

from __future__ import annotations

import parity
import pytest
import tiny_models

pytestmark = [pytest.mark.timeout(900)]

NAMES = ("qwen2", "qwen3", "llama", "gemma3", "mixtral", "qwen3_moe")
COUNT = 24
CACHE_BYTES = 32 << 20
# Around one and several blocks of 16, below and well above Gemma 3's window of 32, in one and in several chunks.
LENGTHS = [1, 2, 7, 15, 16, 17, 31, 33, 64, 90, 130, 200]
PROMPTS = tiny_models.token_prompts(12, LENGTHS, seed=1)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """For each model name: (what transformers generates, what the engine generates)."""
    models = parity.save_models([*NAMES, "gemma3_without_window"], tmp_path_factory.mktemp("models"))
    expected = parity.reference([(folder, PROMPTS, COUNT) for folder in models.values()])
    job = parity.Job(PROMPTS, {"max_tokens": COUNT, "ignore_eos": True})
    engines = [
        parity.Engine(
            dict(model=str(models[name]), max_model_len=256, max_num_seqs=4, max_num_batched_tokens=128,
                 kv_cache_memory_bytes=CACHE_BYTES),
            [job],
        )
        for name in NAMES
    ]  # fmt: skip
    return dict(zip(models, expected)), dict(zip(NAMES, parity.engine(engines)))


@pytest.mark.parametrize("name", NAMES)
def test_same_tokens_as_transformers(results, name):
    expected, got = results[0][name], results[1][name]
    assert all(len(tokens) == COUNT for tokens in expected.tokens)
    parity.check(expected.tokens, got.tokens[0], expected.gaps, [f"{name}, {n} tokens" for n in LENGTHS])
    assert max(got.step_tokens) == 128, "the prompts were meant to be chunked and batched"
    assert not got.fallbacks
    assert not got.late, "these programs were made after warm-up"


@pytest.mark.parametrize("name", NAMES)
def test_the_models_can_tell_right_from_wrong(results, name):
    """Outputs depend on the context, and their logits are not flat; otherwise equality would mean little."""
    expected = results[0][name]
    distinct = sum(len(set(tokens)) for tokens in expected.tokens)
    assert distinct > 3 * len(PROMPTS), f"{name} mostly repeats one token: {expected.tokens}"
    gaps = sorted(gap for row in expected.gaps for gap in row)
    assert gaps[len(gaps) // 2] > 100 * parity.TIE, f"the median top-2 gap of {name} is only {gaps[len(gaps) // 2]}"


def test_the_sliding_window_matters(results):
    """With these weights, Gemma 3 without its window says something else after prompts longer than it."""
    with_window, without = results[0]["gemma3"].tokens, results[0]["gemma3_without_window"].tokens
    long = [i for i, length in enumerate(LENGTHS) if length > tiny_models.WINDOW]
    assert all(with_window[i] != without[i] for i in long)


@pytest.mark.parametrize("name", NAMES)
def test_the_cache_takes_the_memory_it_was_given(results, name):
    """Also where layers of several groups lie over each other, as Gemma 3's do."""
    used = results[1][name].cache_bytes
    assert 0.9 * CACHE_BYTES < used <= CACHE_BYTES, f"{used} of {CACHE_BYTES} bytes"
