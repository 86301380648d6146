"""Upstream's sampler on the device, at bucketed sizes.

The sampler and the logits processors are upstream's own.  What differs is the size of what they see:
rows are padded to a request bucket and lists of indices to powers of two, so that each of their
operators was compiled in warm-up.  Padding rows sample greedily and are cut off afterwards.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
from vllm.v1.outputs import AsyncModelRunnerOutput, LogprobsTensors
from vllm.v1.sample.logits_processor import build_logitsprocs
from vllm.v1.sample.logits_processor.builtin import (
    LogitBiasLogitsProcessor,
    MinPLogitsProcessor,
    MinTokensLogitsProcessor,
)

from .buckets import power_of_two, up

LOGPROB_SIZES = (0, 1, 5, 20, 128, 1024)  # top-k sizes that are compiled, up to --max-logprobs
PROMPT_LOGPROBS_ROWS = 32  # prompt rows scored at a time: a fixed size is compiled once
TOKEN_ID_LOGPROBS = 128  # columns for ``logprob_token_ids``; upstream refuses longer lists


def logprob_buckets(model_config) -> list[int]:
    """Top-k sizes for any number of logprobs that the server allows; a request gets the first k of its bucket."""
    vocabulary = model_config.get_vocab_size()
    most = model_config.max_logprobs
    most = vocabulary if most == -1 else min(most, vocabulary)
    return [size for size in LOGPROB_SIZES if size < most] + [most]


def build_processors(vllm_config, device, runner):
    """Upstream's logits processors; those of users get the device that logits live on."""
    return build_logitsprocs(
        vllm_config, device, False, runner.is_pooling_model, vllm_config.model_config.logits_processors or ()
    )


def token_table_width(longest: int) -> int:
    """Width of a table of prompt or output tokens: 64, 256, 1024, ..."""
    width = 64
    while width < longest:
        width *= 4
    return width


def token_table_widths(limit: int) -> list[int]:
    """All widths for sequences of at most ``limit`` tokens."""
    widths = [64]
    while widths[-1] < limit:
        widths.append(widths[-1] * 4)
    return widths


def _rows(tensor: torch.Tensor | None, rows: int, fill, device) -> torch.Tensor | None:
    """The first ``rows`` of a host tensor, ``fill`` beyond its end, on the device."""
    if tensor is None:
        return None
    out = torch.full((rows, *tensor.shape[1:]), fill, dtype=tensor.dtype)
    count = min(rows, tensor.shape[0])
    out[:count] = tensor[:count]
    return out.to(device)


class DeviceMetadata:
    """The input batch's sampling metadata, padded and on the device; rebuilt when the batch changes."""

    def __init__(self, device, buckets: list[int]):
        self.device = device
        self.buckets = buckets
        self._source = None
        self._padded = None

    def padded(self, batch, rows: int):
        """SamplingMetadata with tensors of ``rows`` rows for the batch's current requests."""
        source = batch.sampling_metadata
        if self._source is source and self._rows == rows:
            return self._padded
        self._source, self._rows = source, rows
        device, vocabulary = self.device, batch.vocab_size
        count = batch.num_reqs
        temperature = None if source.temperature is None else source.temperature[:count]
        prompts = source.prompt_token_ids
        if prompts is not None:
            width = token_table_width(prompts.shape[1])
            wide = torch.full((rows, width), vocabulary, dtype=torch.int64)
            wide[: prompts.shape[0], : prompts.shape[1]] = prompts
            prompts = wide.to(device)
        outputs = source.output_token_ids
        if outputs:
            outputs = _PaddedLists(outputs, rows)
        logprobs = source.max_num_logprobs
        if logprobs is not None and logprobs >= 0:
            logprobs = up(logprobs, self.buckets)
        wanted = source.logprob_token_ids
        if wanted:
            wanted = TokenIdLogprobs.of(wanted, rows, max(logprobs or 0, TOKEN_ID_LOGPROBS), device)
        penalties = not source.no_penalties

        def take(tensor, fill):
            return _rows(None if tensor is None else tensor[:count], rows, fill, device)

        self._padded = dataclasses.replace(
            source,
            # A padding row must not make a batch of random requests mixed: it gets temperature 1 there.
            temperature=take(temperature, 1.0 if source.all_random else 0.0),
            top_p=take(source.top_p, 1.0),
            top_k=take(source.top_k, vocabulary),
            max_num_logprobs=logprobs,
            logprob_token_ids=wanted,
            prompt_token_ids=prompts,
            frequency_penalties=take(source.frequency_penalties, 0.0) if penalties else source.frequency_penalties,
            presence_penalties=take(source.presence_penalties, 0.0) if penalties else source.presence_penalties,
            repetition_penalties=take(source.repetition_penalties, 1.0) if penalties else source.repetition_penalties,
            output_token_ids=outputs,
            allowed_token_ids_mask=take(source.allowed_token_ids_mask, False),
        )
        return self._padded


class _PaddedLists:
    """Output token lists of the batch with empty lists for padding rows; the lists are shared, not copied."""

    def __init__(self, lists, rows: int):
        self._lists, self._rows = lists, rows

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index):
        return self._lists[index] if index < len(self._lists) else []

    def __iter__(self):
        return (self[i] for i in range(self._rows))


@dataclasses.dataclass
class TokenIdLogprobs:
    """Token ids whose logprobs are wanted: ids int64 [rows, width], given bool [rows, 1] (row has a list)."""

    ids: torch.Tensor
    given: torch.Tensor

    @classmethod
    def of(cls, lists: dict[int, list[int]], rows: int, width: int, device) -> "TokenIdLogprobs":
        """From upstream's lists by row; a list is padded by its last token."""
        ids = torch.zeros(rows, width, dtype=torch.int64)
        given = torch.zeros(rows, 1, dtype=torch.bool)
        for row, tokens in lists.items():
            ids[row, : len(tokens)] = torch.as_tensor(tokens)
            ids[row, len(tokens) :] = tokens[-1]
            given[row] = True
        return cls(ids.to(device), given.to(device))


def specific_token_logprobs(self, logprobs, wanted: TokenIdLogprobs, sampled) -> LogprobsTensors:
    """Sampler.gather_specific_token_logprobs at one width; rows without a list get their top tokens.

    Upstream leaves rows without a list empty, so a companion's request would lose its own logprobs.
    """
    _, top = torch.topk(logprobs, wanted.ids.shape[1], dim=-1)
    ids = torch.cat((sampled.unsqueeze(-1), torch.where(wanted.given, wanted.ids, top)), dim=1)
    values = logprobs.gather(-1, ids)
    own = logprobs.gather(-1, sampled.unsqueeze(-1))
    return LogprobsTensors(ids.to(torch.int32), values, count_greater_or_equal(logprobs, own))


def noise_like(probs: torch.Tensor, use_fp64_gumbel: bool) -> torch.Tensor:
    """Memory for the sampler's noise, written once: rows put into memory never written are another program."""
    return torch.ones(probs.shape, dtype=torch.float64 if use_fp64_gumbel else probs.dtype, device=probs.device)


def padded_index(values: torch.Tensor, device) -> torch.Tensor:
    """A host index list on the device, its last entry repeated up to a power of two.

    Repeating is harmless where the same value is written or the same sum is formed from the old value.
    """
    size = power_of_two(values.shape[0], 16)
    out = values[-1:].expand(size).clone()
    out[: values.shape[0]] = values
    return out.to(device)


def min_p_apply(self, logits):
    """MinPLogitsProcessor.apply with one row of ``min_p`` for each padded row."""
    if not self.min_p_count:
        return logits
    self.min_p = _rows(self.min_p_cpu_tensor, logits.shape[0], 0.0, logits.device).unsqueeze(1)
    return _min_p_apply(self, logits)


def logit_bias_apply(self, logits):
    """LogitBiasLogitsProcessor.apply with index lists of bucketed length."""
    if not self.biases:
        return logits
    where = tuple(padded_index(index, logits.device) for index in self.logits_slice)
    logits[where] += padded_index(self.bias_tensor, logits.device)
    return logits


def min_tokens_apply(self, logits):
    """MinTokensLogitsProcessor.apply with index lists of bucketed length.

    A structured-output row whose only allowed tokens are stop tokens keeps them, as upstream has it.
    """
    if not self.min_toks or not self.logits_slice[0].numel():
        return logits
    where = tuple(padded_index(index, logits.device) for index in self.logits_slice)
    minus_infinity = torch.full((), -float("inf"), dtype=logits.dtype, device=logits.device)
    restore = self.restore_logits_slice[0]
    before = logits.clone() if restore.numel() else None
    logits.index_put_(where, minus_infinity)
    if before is not None:
        flags = torch.zeros(logits.shape[0], 1, dtype=torch.bool)
        flags[restore.long()] = True
        empty = torch.isneginf(logits).all(dim=-1, keepdim=True) & flags.to(logits.device)
        logits.copy_(torch.where(empty, before, logits))
    return logits


_min_p_apply = MinPLogitsProcessor.apply


def on_host(processor):
    """``__init__`` of a built-in processor that keeps its state on the host, where it may have any size."""
    original = processor.__init__

    def __init__(self, vllm_config, device, is_pin_memory):
        original(self, vllm_config, torch.device("cpu"), is_pin_memory)

    return __init__


BUILTIN = {
    MinPLogitsProcessor: min_p_apply,
    LogitBiasLogitsProcessor: logit_bias_apply,
    MinTokensLogitsProcessor: min_tokens_apply,
}


def convert_output_tokens(output_token_ids, vocab_size: int, device) -> torch.Tensor:
    """Output tokens as int64 [rows, power of two], padded with ``vocab_size`` (penalties.py)."""
    lists = list(output_token_ids)
    width = token_table_width(max((len(x) for x in lists), default=1))
    table = np.full((len(lists), width), vocab_size, np.int64)
    for row, tokens in enumerate(lists):
        table[row, : len(tokens)] = tokens
    return torch.from_numpy(table).to(device)


def count_greater_or_equal(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """How many entries of each row of ``x`` are at least ``values``: the rank of a token (ops/logprobs.py)."""
    return (x >= values).sum(-1)


def apply_grammar_bitmask(scheduler_output, grammar_output, input_batch, logits) -> None:
    """Mask logits by the grammar's bitmask (int32 [requests, vocabulary / 32], bit set = allowed)."""
    words = grammar_output.grammar_bitmask
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, : logits.shape[1]].astype(bool)
    blocked = np.zeros(logits.shape, bool)
    row = 0
    scheduled = scheduler_output.scheduled_spec_decode_tokens
    for request in grammar_output.structured_output_request_ids:
        position = input_batch.req_id_to_index.get(request)
        if position is not None:
            blocked[position, : bits.shape[1]] = ~bits[row]
        row += 1 + len(scheduled.get(request, ()))
    logits.masked_fill_(torch.from_numpy(blocked).to(logits.device), -float("inf"))


def prompt_scores(runner, hidden_states, index: np.ndarray, targets: np.ndarray, count: int) -> LogprobsTensors:
    """Scores of ``targets`` and the ``count`` best tokens at rows ``index`` of the hidden states.

    Both arrays are int64 [PROMPT_LOGPROBS_ROWS]. The scores are logprobs, or logits where the server is set so.
    """
    logits = runner.program.logits(hidden_states[torch.from_numpy(index)])
    if runner.model_config.logprobs_mode in ("raw_logits", "processed_logits"):
        scores = logits.to(torch.float32)
    else:
        scores = runner.sampler.compute_logprobs(logits)
    return runner.sampler.gather_logprobs(scores, count, torch.from_numpy(targets).to(logits.device))


def prompt_logprobs(runner, hidden_states, num_scheduled_tokens) -> dict[str, LogprobsTensors | None]:
    """Logprobs of prompt tokens, a fixed number of rows at a time (upstream's loop, at compiled sizes).

    ``hidden_states``: [token bucket, hidden], padding included, so that there is one program a bucket.
    """
    chunk = PROMPT_LOGPROBS_ROWS
    finished: dict[str, LogprobsTensors | None] = {}
    wanted = runner.num_prompt_logprobs
    if not wanted:
        return finished
    done = []
    for request_id, count in wanted.items():
        scheduled = num_scheduled_tokens.get(request_id)
        if scheduled is None:
            continue
        request = runner.requests[request_id]
        if request.prompt_token_ids is None:
            continue
        prompt = len(request.prompt_token_ids)
        start = request.num_computed_tokens
        if request.in_progress_prompt_logprobs_cpu is None:
            request.in_progress_prompt_logprobs_cpu = LogprobsTensors.empty_cpu(prompt - 1, count + 1)
            finished_here = request.in_progress_prompt_logprobs_cpu
        else:
            finished_here = request.in_progress_prompt_logprobs_cpu
        first = start + 1  # the hidden state of token i predicts token i + 1
        remaining = prompt - first
        if scheduled <= remaining:
            rows = scheduled
        else:
            rows = remaining
            done.append(request_id)
            finished[request_id] = finished_here
        if rows <= 0:
            continue
        offset = int(runner.query_start_loc.np[runner.input_batch.req_id_to_index[request_id]])
        for begin in range(0, rows, chunk):
            size = min(chunk, rows - begin)
            index = np.full(chunk, offset + begin, np.int64)
            index[:size] += np.arange(size)
            targets = np.zeros(chunk, np.int64)
            targets[:size] = request.prompt_token_ids[first + begin : first + begin + size]
            tensors = prompt_scores(runner, hidden_states, index, targets, up(count, runner.logprob_buckets))
            where = slice(start + begin, start + begin + size)
            finished_here.logprob_token_ids[where] = tensors.logprob_token_ids.cpu()[:size, : count + 1]
            finished_here.logprobs[where] = tensors.logprobs.cpu()[:size, : count + 1]
            finished_here.selected_token_ranks[where] = tensors.selected_token_ranks.cpu()[:size]
    for request_id in done:
        del wanted[request_id]
        runner.requests[request_id].in_progress_prompt_logprobs_cpu = None
    return finished


class _Deferred:
    """A device tensor that is read when somebody needs its values."""

    def __init__(self, tensor: torch.Tensor):
        self._tensor = tensor
        self._host: torch.Tensor | None = None
        self.shape = tensor.shape

    def get(self) -> torch.Tensor:
        if self._host is None:
            self._host = self._tensor.cpu()
        return self._host

    def tolist(self) -> list:
        return self.get().tolist()


class _Ready:
    """Stands for the copy event: reading a :class:`_Deferred` waits by itself."""

    def synchronize(self) -> None: ...


class AsyncOutput(AsyncModelRunnerOutput):
    """A step's output whose device tensors are read when the engine asks, while the next step is prepared."""

    def __init__(
        self, model_runner_output, sampled_token_ids, logprobs_tensors, invalid_req_indices, async_output_copy_stream,
        vocab_size, check_ep_fault=False, num_nans=None,
    ):  # fmt: skip
        self._output = model_runner_output
        self._invalid = invalid_req_indices
        self._logprobs = logprobs_tensors
        self._num_nans = num_nans
        self.sampled_token_ids_cpu = _Deferred(sampled_token_ids)
        self.async_copy_ready_event = _Ready()

    def get_output(self):
        tokens = self.sampled_token_ids_cpu.tolist()
        for row in self._invalid:
            tokens[row].clear()
        self._output.sampled_token_ids = tokens
        if self._logprobs is not None:
            self._output.logprobs = LogprobsTensors(*(t.cpu() for t in self._logprobs[:3])).tolists()
        if self._num_nans is not None:
            counts = self._num_nans.cpu().tolist()
            index = self._output.req_id_to_index
            self._output.num_nans_in_logits = {request: counts[row] for request, row in index.items()}
        return self._output
