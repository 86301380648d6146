"""A closed-loop load client for OpenAI-compatible servers, and the formulas of its figures.

`concurrency` workers each send one streaming ``/v1/completions`` request after the other.  Prompts
are token ids of an exact length, drawn from a seed, so that no two requests share a prefix and every
engine gets the same ones.  Times come from the client's monotonic clock, in seconds; the summary is
in milliseconds, with the keys of `vllm bench serve`.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from dataclasses import dataclass, field

import aiohttp

FORMULAS = {
    "output_throughput": "output tokens of completed requests / (last token - first send), tokens/s",
    "ttft": "first streamed chunk with a choice - send, seen by the client",
    "itl": "gap between two streamed chunks of one request; gaps of all requests pooled",
    "tpot": "(last chunk - first chunk) / (output tokens - 1), one value a request",
    "e2el": "last chunk - send",
    "p99": "linear interpolation between order statistics",
}


class LoadError(RuntimeError):
    """The server is not there or does not answer as the protocol says; the message names the reason."""


@dataclass
class Record:
    """One request.  Times are seconds; `ttft`, `itl` and `e2e` are empty when `error` is set."""

    prompt_tokens: int
    started: float
    ttft: float = 0.0
    itl: list[float] = field(default_factory=list)
    e2e: float = 0.0
    output_tokens: int = 0
    error: str = ""

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None for a single token."""
        if self.output_tokens < 2:
            return None
        return (self.e2e - self.ttft) / (self.output_tokens - 1)


def make_prompts(count: int, length: int, vocabulary: int, seed: int) -> list[list[int]]:
    """`count` prompts of `length` token ids each, the same for the same arguments.

    The ids stay clear of the first and last 100 of the vocabulary, where special tokens lie.  Raises
    ValueError when a vocabulary is too small for that or two prompts begin alike.
    """
    if vocabulary < 300:
        raise ValueError(f"a vocabulary of {vocabulary} leaves too few ordinary tokens; 300 are needed")
    source = random.Random(f"{seed}/{length}")
    prompts = [[source.randrange(100, vocabulary - 100) for _ in range(length)] for _ in range(count)]
    if length >= 16 and len({tuple(prompt[:16]) for prompt in prompts}) != count:
        raise ValueError("two prompts share their first 16 tokens; choose another seed")
    return prompts


async def _request(session, url: str, model: str, prompt: list[int], output_tokens: int) -> Record:
    body = {"model": model, "prompt": prompt, "max_tokens": output_tokens, "temperature": 0.0,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}
    payload = json.dumps(body).encode()
    record = Record(len(prompt), time.perf_counter())
    usage = None
    arrivals: list[float] = []
    closing = None
    try:
        async with session.post(url, data=payload, headers={"Content-Type": "application/json"}) as answer:
            if answer.status != 200:
                record.error = f"HTTP {answer.status}: {(await answer.text())[:300]}"
                return record
            # A line ends with the newline that readline keeps; events are one data line each.
            while line := await answer.content.readline():
                now = time.perf_counter()
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    break
                event = json.loads(data)
                if "error" in event:
                    record.error = str(event["error"])[:300]
                    return record
                usage = event.get("usage") or usage
                choices = event.get("choices")
                if not choices:
                    continue
                if choices[0].get("finish_reason") and not choices[0].get("text"):
                    closing = now
                else:
                    arrivals.append(now)
    except (aiohttp.ClientError, OSError, asyncio.TimeoutError, ValueError) as error:
        record.error = f"{type(error).__name__}: {error}"
        return record
    record.error = _fill(record, usage, arrivals, closing, output_tokens)
    return record


def _fill(record: Record, usage: dict | None, arrivals: list[float], closing: float | None,
          wanted: int) -> str:
    """Fill in `record` from the chunks' `arrivals`; returns what is wrong with the answer, or ''."""
    if not usage:
        return "the stream has no usage: the server ignores stream_options.include_usage"
    record.output_tokens = usage["completion_tokens"]
    # A closing chunk without text is the last token in vLLM, and no token at all in llama.cpp.
    if closing is not None and len(arrivals) < record.output_tokens:
        arrivals.append(closing)
    if not arrivals:
        return "no chunk with a choice came"
    record.ttft = arrivals[0] - record.started
    record.itl = [after - before for before, after in zip(arrivals, arrivals[1:])]
    record.e2e = arrivals[-1] - record.started
    if usage["prompt_tokens"] != record.prompt_tokens:
        return f"the server counts {usage['prompt_tokens']} prompt tokens, {record.prompt_tokens} were sent"
    if record.output_tokens != wanted:
        return f"{record.output_tokens} output tokens came, {wanted} were asked for"
    return ""


async def run_async(base_url: str, prompts: list[list[int]], output_tokens: int, concurrency: int,
                    model: str = "model", timeout: float = 600.0) -> list[Record]:
    """Send all `prompts`, at most `concurrency` at a time; returns one Record each, in prompt order."""
    url = base_url.rstrip("/") + "/v1/completions"
    records: list[Record | None] = [None] * len(prompts)
    todo = iter(range(len(prompts)))
    limits = aiohttp.ClientTimeout(total=timeout)
    # llama.cpp drops a connection after its answer; a new one a request costs well under 1 ms here.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=limits, connector=connector) as session:
        async def worker():
            for index in todo:
                records[index] = await _request(session, url, model, prompts[index], output_tokens)

        await asyncio.gather(*(worker() for _ in range(min(concurrency, len(prompts)))))
    return records


def run(*arguments, **options) -> list[Record]:
    """`run_async` for callers without an event loop; same arguments and result."""
    return asyncio.run(run_async(*arguments, **options))


def percentile(values: list[float], share: float) -> float:
    """The `share` (0 to 1) quantile of `values`, linear between order statistics, as NumPy's default."""
    if not values:
        raise ValueError("no values to take a percentile of")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarize(records: list[Record]) -> dict:
    """Figures of one run under `vllm bench serve`'s keys (ms; tokens/s); see FORMULAS.

    Failed requests count in `failed` and in the duration only.  Raises LoadError if none completed.
    """
    good = [record for record in records if not record.error]
    if not good:
        reason = records[0].error if records else "no request was sent"
        raise LoadError(f"no request completed; the first error: {reason}")
    duration = max(r.started + r.e2e for r in good) - min(r.started for r in records)
    series = {
        "ttft": [r.ttft for r in good],
        "itl": [gap for r in good for gap in r.itl],
        "tpot": [r.tpot for r in good if r.tpot is not None],
        "e2el": [r.e2e for r in good],
    }
    output = sum(r.output_tokens for r in good)
    summary = {
        "completed": len(good), "failed": len(records) - len(good), "duration": duration,
        "total_input_tokens": sum(r.prompt_tokens for r in good), "total_output_tokens": output,
        "output_throughput": output / duration,
        "errors": sorted({r.error for r in records if r.error}),
    }
    for name, values in series.items():
        if values:
            summary[f"mean_{name}_ms"] = statistics.fmean(values) * 1e3
            summary[f"median_{name}_ms"] = statistics.median(values) * 1e3
            summary[f"p99_{name}_ms"] = percentile(values, 0.99) * 1e3
    return summary
