"""Combinations of sampling features that are run once per request bucket in warm-up."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)
from vllm.v1.sample.metadata import SamplingMetadata

from .sampling import (
    PROMPT_LOGPROBS_ROWS,
    TOKEN_ID_LOGPROBS,
    TokenIdLogprobs,
    _PaddedLists,
    prompt_scores,
    token_table_widths,
)


def _processors(runner, structured: bool = False) -> LogitsProcessors:
    """Built-in processors, each used by one request; ``structured``: that request has a grammar too."""
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
    if structured:
        min_tokens.restore_logits_slice = (zero, zero)
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
    for count in runner.logprob_buckets:
        yield metadata(max_num_logprobs=count)
    for width in sorted({max(count, TOKEN_ID_LOGPROBS) for count in runner.logprob_buckets}):
        yield metadata(logprob_token_ids=TokenIdLogprobs.of({0: [0]}, rows, width, device))
    mixed = dict(temperature=vector(0.5), all_greedy=False, all_random=False, generators=seeded)
    only = dict(temperature=vector(0.5), all_greedy=False, all_random=True, generators=seeded)
    yield metadata(**mixed)
    yield metadata(**only)
    yield metadata(**{**only, "generators": {}})
    for chosen in ({"top_p": top["top_p"]}, {"top_k": top["top_k"]}, top):
        yield metadata(**mixed, **chosen)
    yield metadata(**mixed, logitsprocs=_processors(runner))
    yield metadata(logitsprocs=_processors(runner, structured=True))
    yield metadata(allowed_token_ids_mask=torch.zeros(rows, vocabulary, dtype=torch.bool).to(device))
    yield metadata(bad_words_token_ids={0: [[1], [2, 3]]}, output_token_ids=_PaddedLists([[2]], rows))
    for width in token_table_widths(limit):
        outputs = _PaddedLists([[1] * min(width, limit)], rows)
        prompts = torch.full((rows, width), vocabulary, dtype=torch.int64).to(device)
        yield metadata(no_penalties=False, prompt_token_ids=prompts, output_token_ids=outputs)


def score_prompts(runner, hidden: torch.Tensor) -> None:
    """Run every size of prompt logprobs on the hidden states [T, hidden] of one token bucket."""
    index = targets = np.zeros(PROMPT_LOGPROBS_ROWS, np.int64)
    with torch.no_grad():
        for count in runner.logprob_buckets:
            prompt_scores(runner, hidden, index, targets, count)
