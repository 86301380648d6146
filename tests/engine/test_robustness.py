"""Two hundred mixed requests, some of whose clients hang up: nothing fails, leaks, hangs or changes."""

import asyncio
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from server import NAME


REQUESTS = 200
CONCURRENCY = 32
# About ten times what the whole load takes on two idle cores; a hang is far longer.
LOAD_SECONDS = 280
TIE = 1e-4  # logprobs closer than this are ordered by rounding

TEXT = Path(__file__).read_text(encoding="utf-8") + (
    "The harbour woke before the sun did. Gulls argued over yesterday's bread, and an old man with a red "
    "cap counted his nets twice. 17 + 25 = 42. \N{HOT PEPPER}\N{SHIP} La mer \u00e9tait calme ce matin. " * 4
)


@dataclass
class Ask:
    """One request: its body, and after how many chunks or seconds its client hangs up (None: never)."""

    body: dict
    greedy: bool
    chunks: int | None = None
    seconds: float | None = None
    status: int | None = None
    tokens: list[int] = field(default_factory=list)
    finished: bool = False


def random_ask(chance: random.Random, ids: list[int]) -> Ask:
    length = int(2 ** chance.uniform(0, 8.5))
    start = chance.randrange(len(ids) - length)
    body = {"prompt": ids[start : start + length], "max_tokens": chance.randint(1, 20)}
    body["return_token_ids"] = True
    greedy = chance.random() < 0.4
    if greedy:
        body["temperature"] = 0
        extras = [{}, {"logprobs": chance.choice([0, 2, 7])}, {"ignore_eos": True}, {"prompt_logprobs": 1}]
        body.update(chance.choice(extras))
    else:
        choices = {
            "temperature": chance.choice([0.3, 0.8, 1.0, 1.7]),
            "top_p": chance.choice([0.1, 0.9, 1.0]),
            "top_k": chance.choice([1, 7, 50, 5000]),
            "min_p": chance.choice([0.02, 0.5]),
            "presence_penalty": chance.choice([-1.0, 1.5]),
            "frequency_penalty": chance.choice([-0.5, 2.0]),
            "repetition_penalty": chance.choice([0.9, 1.3]),
            "seed": chance.randrange(2**31),
            "n": chance.choice([1, 2, 3]),
            "min_tokens": 1,
            "logprobs": chance.choice([0, 1, 5, 20]),
            "logit_bias": {str(chance.randrange(1000)): chance.choice([-100, -1.5, 4]) for _ in range(3)},
            "bad_words": ["the", "and so"],
            "stop": [".", "\n\n"],
            "allowed_token_ids": sorted(chance.sample(range(49152), 500)),
            "structured_outputs": {"regex": "[a-z ]{3,30}"},
            "logprob_token_ids": None,
        }
        for name in chance.sample(sorted(choices), chance.randint(0, 5)):
            body[name] = choices[name]
        if "logprob_token_ids" in body:
            body.update(logprobs=2, logprob_token_ids=[11, 4000])
        # A grammar has no text among 500 random tokens.
        if "structured_outputs" in body:
            body.pop("allowed_token_ids", None)
    how = chance.random()
    # The API refuses prompt_logprobs in a stream.
    body["stream"] = how < 0.6 and "prompt_logprobs" not in body
    ask = Ask(body, greedy)
    if how < 0.2:
        ask.chunks = chance.randint(0, 4)
    elif how > 0.9:
        ask.seconds = chance.uniform(0, 2)
    return ask


async def send(client: httpx.AsyncClient, ask: Ask) -> None:
    body = {"model": NAME, **ask.body}
    try:
        async with asyncio.timeout(ask.seconds):
            if ask.body["stream"]:
                await read_stream(client, body, ask)
                return
            response = await client.post("/v1/completions", json=body)
            ask.status = response.status_code
            if ask.status == httpx.codes.OK:
                ask.tokens = response.json()["choices"][0]["token_ids"]
                ask.finished = True
    except TimeoutError:
        assert ask.seconds is not None


async def read_stream(client: httpx.AsyncClient, body: dict, ask: Ask) -> None:
    chunks = 0
    async with client.stream("POST", "/v1/completions", json=body) as response:
        ask.status = response.status_code
        async for line in response.aiter_lines():
            if ask.chunks is not None and chunks >= ask.chunks:
                return
            if line == "data: [DONE]":
                ask.finished = True
            elif line:
                chunk = json.loads(line.removeprefix("data: "))
                assert "error" not in chunk, chunk
                ask.tokens += chunk["choices"][0]["token_ids"] or []
                chunks += 1


async def load(url: str, asks: list[Ask]) -> None:
    gate = asyncio.Semaphore(CONCURRENCY)
    limits = httpx.Limits(max_connections=CONCURRENCY)
    async with httpx.AsyncClient(base_url=url, timeout=LOAD_SECONDS, limits=limits) as client:

        async def one(ask: Ask) -> None:
            async with gate:
                await send(client, ask)

        async with asyncio.timeout(LOAD_SECONDS):
            await asyncio.gather(*(one(ask) for ask in asks))


def same_up_to_a_tie(ask: Ask, alone: dict) -> bool:
    """The tokens of `ask` are those of the solo run, or differ first where its two best tokens tie."""
    expected = alone["token_ids"]
    for place, (got, want) in enumerate(zip(ask.tokens, expected)):
        if got != want:
            best, second, *_ = sorted(alone["logprobs"]["top_logprobs"][place].values(), reverse=True)
            return best - second < TIE
    return len(ask.tokens) == len(expected)


@pytest.mark.timeout(LOAD_SECONDS + 120)
def test_two_hundred_requests(server, reference):
    chance = random.Random(20)
    ids = reference.ids(TEXT)
    asks = [random_ask(chance, ids) for _ in range(REQUESTS)]
    server.complete("x", max_tokens=1)
    before = server.metric("vllm:kv_cache_usage_perc")
    asyncio.run(load(server.url, asks))

    refused = [(ask.status, ask.body) for ask in asks if ask.status not in (200, None)]
    assert not refused, refused[:3]
    stayed = [ask for ask in asks if ask.chunks is None and ask.seconds is None]
    assert all(ask.finished for ask in stayed), [ask.body for ask in stayed if not ask.finished][:3]
    assert sum(not ask.finished for ask in asks) > 20, "too few clients hung up to show anything"

    survivors = [ask for ask in asks if ask.greedy and ask.finished]
    assert len(survivors) > 40
    for ask in survivors:
        body = {**ask.body, "stream": False, "prompt_logprobs": None, "logprobs": 2}
        alone = server.choice(**body, return_tokens_as_token_ids=True)
        assert same_up_to_a_tie(ask, alone), (ask.body, ask.tokens, alone)

    assert before == server.metric("vllm:kv_cache_usage_perc") == 0
    assert server.metric("vllm:num_requests_running") == server.metric("vllm:num_requests_waiting") == 0


def test_nothing_was_compiled_or_run_on_the_host(server):
    """All that the tests before this one asked for had been prepared in warm-up."""
    lines = server.text().splitlines()
    late = [line for line in lines if "after warm-up" in line or "runs on the CPU" in line]
    assert not late, late[:5]
    assert server.metric("systolic:late_compilations_total") == 0
    assert server.metric("systolic:cpu_fallbacks_total") == 0
    prepared = [server.metric(f"systolic:{name}_total") for name in ("compilations", "program_cache_hits")]
    assert sum(prepared) > 0
