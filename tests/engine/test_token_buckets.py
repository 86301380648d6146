"""After warm-up nothing is compiled: prompts one token shorter and longer than every bucket, and every batch size."""

from __future__ import annotations

import parity
import pytest
import switches
import tiny_models

from systolic.vllm.buckets import token_buckets

# A limit that is a bucket of its own, and one that the sizes of buckets do not divide.
LIMITS = {"aligned": 96, "unaligned": 83}
REQUESTS = 5
SAMPLING = {"max_tokens": 3, "ignore_eos": True}
RANDOM = {**SAMPLING, "temperature": 0.8, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "seed": 3, "logprobs": 2,
          "presence_penalty": 0.5, "repetition_penalty": 1.1, "min_tokens": 2}  # fmt: skip


def lengths(limit: int) -> list[int]:
    """Prompt lengths around every bucket, also beyond the limit, where a prompt comes in chunks."""
    around = {bucket + step for bucket in token_buckets(limit) for step in (-1, 0, 1)}
    return sorted(n for n in around if n > 0)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    model = parity.save_models(["llama"], tmp_path_factory.mktemp("models"))["llama"]
    engines = {}
    for name, limit in LIMITS.items():
        options = switches.options({**switches.PLAIN, "chunk": limit, "scheduling": "async"}, model)
        prompts = tiny_models.token_prompts(len(lengths(limit)), lengths(limit), seed=limit)
        jobs = [parity.Job(prompts, SAMPLING, together=False), parity.Job(prompts[:7], RANDOM, together=False)]
        jobs += [parity.Job(prompts[:n], sampling) for n in range(2, REQUESTS + 2) for sampling in (SAMPLING, RANDOM)]
        engines[name] = parity.Engine({**options, "max_num_seqs": REQUESTS}, jobs)
    return dict(zip(engines, parity.engine(list(engines.values()))))


@pytest.mark.parametrize("name", LIMITS)
def test_nothing_is_compiled_after_warm_up(name, results):
    result, limit = results[name], LIMITS[name]
    assert result.late == []
    assert result.fallbacks == {}
    assert max(result.step_tokens) == limit
    assert {n for n in lengths(limit) if n <= limit} <= set(result.step_tokens), "every bucket and its neighbours ran"
    assert any(name.startswith("model") for name in result.warm_up), "the check above would see a program of the model"
