"""A real `systolic serve` process for the engine tests: start it, ask it, stop it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).resolve().parent
# A start loads 540 MB of weights and compiles every program when the cache is empty.
START_SECONDS = 240
# What the issue of this project promises for SIGTERM.
STOP_SECONDS = 10
# One answer; generous because other tests may use the machine's cores.
ANSWER_SECONDS = 120
NAME = "model"


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def command(*arguments: object) -> list[str]:
    """`systolic serve ARGUMENTS` as a command line of this interpreter."""
    return [sys.executable, "-m", "systolic.cli", "serve", *map(str, arguments)]


def environment() -> dict[str, str]:
    """This environment; test modules are importable in the server (custom logits processors)."""
    path = [str(HERE), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), "PYTHONUNBUFFERED": "1"}


class Server:
    """One server process; use it as a context manager. `log` is the file with all that it printed."""

    def __init__(self, log: Path, model: Path, *options: object):
        self.log = log
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        options = ("--host", "127.0.0.1", "--port", self.port, "--served-model-name", NAME, *options)
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                command(model, *options), stdout=out, stderr=subprocess.STDOUT, env=environment()
            )
        self.client = httpx.Client(base_url=self.url, timeout=ANSWER_SECONDS)

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Return when /health answers 200; RuntimeError with the end of the log otherwise."""
        limit = time.monotonic() + seconds
        while time.monotonic() < limit and self.process.poll() is None:
            try:
                if self.client.get("/health").status_code == httpx.codes.OK:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.2)
        end = self.text()[-4000:]
        raise RuntimeError(f"server not ready, exit code {self.process.poll()}; its log ends:\n{end}")

    def stop(self) -> tuple[int, float]:
        """Send SIGTERM; returns (exit code, seconds until the end). TimeoutExpired after STOP_SECONDS."""
        start = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(STOP_SECONDS)
        return code, time.monotonic() - start

    def text(self) -> str:
        """All that the server printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def post(self, body: dict[str, Any], path: str = "/v1/completions") -> httpx.Response:
        """POST `body`; the model name is filled in."""
        return self.client.post(path, json={"model": NAME, **body})

    def complete(self, prompt: str | list[int], **body: Any) -> dict[str, Any]:
        """A completion, greedy with 16 tokens unless `body` says otherwise; AssertionError if refused."""
        defaults = {"prompt": prompt, "temperature": 0, "max_tokens": 16, "return_token_ids": True}
        response = self.post({**defaults, **body})
        assert response.status_code == httpx.codes.OK, response.text
        return response.json()

    def choice(self, prompt: str | list[int], **body: Any) -> dict[str, Any]:
        """The only choice of a completion."""
        (only,) = self.complete(prompt, **body)["choices"]
        return only

    def stream(self, body: dict[str, Any], path: str = "/v1/completions") -> list[dict[str, Any]]:
        """Every chunk of a streamed answer; checks that the stream ends as the API says."""
        chunks = []
        with self.client.stream("POST", path, json={"model": NAME, "stream": True, **body}) as response:
            assert response.status_code == httpx.codes.OK, response.read()
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        assert lines[-1] == "[DONE]"
        chunks = [json.loads(line) for line in lines[:-1]]
        return chunks

    def metric(self, name: str) -> float:
        """The sum over labels of a Prometheus metric; KeyError when the server does not have it."""
        text = self.client.get("/metrics").text
        values = re.findall(rf"^{re.escape(name)}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        if not values:
            raise KeyError(name)
        return sum(map(float, values))
