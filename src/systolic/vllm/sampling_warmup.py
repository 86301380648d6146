"""Combinations of sampling features that are run once per request bucket in warm-up."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.metadata import SamplingMetadata

from .sampling import LOGPROB_BUCKETS, _PaddedLists

OUTPUT_WIDTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


def _processors(runner) -> LogitsProcessors:
    """Built-in processors, each used by one request."""
    config, host = runner.vllm_config, torch.device("cpu")
    min_p = MinPLogitsProcessor(config, host, False)
    bias = LogitBiasLogitsProcessor(config, host, False)
    min_tokens = MinTokensLogitsProcessor(config, host, False)
    min_p.min_p_count = 1
    min_p.min_p_cpu_tensor[0] = 0.1
    zero = torch.zeros(1, dtype=torch.int32)
    bias.biases = {0: {0: 1.0}}
    bias.bias_tensor, bias.logits_slice = torch.ones(1), (zero, zero)
    min_tokens.min_toks = {0: (1, [], {0}, False)}
    min_tokens.logits_slice = (zero, zero)
    return LogitsProcessors([min_p, bias, min_tokens])


def combinations(runner, rows: int) -> Iterator[SamplingMetadata]:
    """Sampling metadata for ``rows`` rows that together reach every operator of the sampler."""
    device, vocabulary = runner.device, runner.input_batch.vocab_size
    limit = runner.max_model_len

    def vector(value, dtype=torch.float32):
        return torch.full((rows,), value, dtype=dtype).to(device)

    base = dict(
        temperature=None, all_greedy=True, all_random=False, top_p=None, top_k=None, generators={},
        max_num_logprobs=None, no_penalties=True, prompt_token_ids=None, frequency_penalties=vector(0.0),
        presence_penalties=vector(0.0), repetition_penalties=vector(1.0), output_token_ids=[],
        allowed_token_ids_mask=None, bad_words_token_ids={}, logitsprocs=LogitsProcessors(),
        spec_token_ids=[[] for _ in range(rows)],
    )  # fmt: skip
    seeded = {0: torch.Generator(device=device).manual_seed(0)}
    top = dict(top_p=vector(0.9), top_k=vector(5, torch.int32))

    def metadata(**changes) -> SamplingMetadata:
        return SamplingMetadata(**{**base, **changes})

    yield metadata()
    for count in LOGPROB_BUCKETS:
        yield metadata(max_num_logprobs=count)
    yield metadata(max_num_logprobs=-1)
    mixed = dict(temperature=vector(0.5), all_greedy=False, all_random=False, generators=seeded)
    only = dict(temperature=vector(0.5), all_greedy=False, all_random=True, generators=seeded)
    yield metadata(**mixed)
    yield metadata(**only)
    for chosen in ({"top_p": top["top_p"]}, {"top_k": top["top_k"]}, top):
        yield metadata(**mixed, **chosen)
    yield metadata(**mixed, logitsprocs=_processors(runner))
    yield metadata(allowed_token_ids_mask=torch.zeros(rows, vocabulary, dtype=torch.bool).to(device))
    yield metadata(bad_words_token_ids={0: [[1], [2, 3]]}, output_token_ids=_PaddedLists([[2]], rows))
    for width in OUTPUT_WIDTHS:
        if width > 2 * limit:
            break
        outputs = _PaddedLists([[1] * min(width, limit)], rows)
        prompts = torch.full((rows, width), vocabulary, dtype=torch.int64).to(device)
        yield metadata(no_penalties=False, prompt_token_ids=prompts, output_token_ids=outputs)
