"""The same greedy tokens as transformers for the real small model: 64 prompts, 64 tokens each."""

from __future__ import annotations

import parity
import pytest
from parity_prompts import LENGTHS, small_model_prompts

from systolic.models.small_model import ensure_small_model

pytestmark = [pytest.mark.timeout(1800)]

COUNT = 64


def test_same_tokens_as_transformers():
    from tokenizers import Tokenizer

    folder = ensure_small_model()
    prompts = small_model_prompts(Tokenizer.from_file(str(folder / "tokenizer.json")))
    assert len(prompts) == 64 and max(map(len, prompts.values())) == 700
    # The sizes of the tests' server, whose programs then serve here too.
    options = dict(
        model=str(folder), max_model_len=1024, max_num_seqs=8, max_num_batched_tokens=256, kv_cache_memory_bytes=1 << 30
    )
    job = parity.Job(list(prompts.values()), {"max_tokens": COUNT, "ignore_eos": True})
    (got,) = parity.engine([parity.Engine(options, [job])])
    (expected,) = parity.reference([(folder, list(prompts.values()), COUNT)])
    assert all(len(tokens) == COUNT for tokens in expected.tokens)
    parity.check(expected.tokens, got.tokens[0], expected.gaps, list(prompts))
    assert max(got.step_tokens) == 256 and max(LENGTHS) > 256, "prompts were meant to be chunked and batched"
    assert not got.fallbacks
    assert not got.late, "these programs were made after warm-up"
