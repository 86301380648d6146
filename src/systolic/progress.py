"""Progress of a fixed list of steps: which one runs, elapsed time and an estimate of what is left.

Standard library only: `scripts/bootstrap.py` loads this file by path before anything is installed.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Iterator, Sequence, TextIO


# Weight of the expectation against what was measured.
PRIOR_SECONDS = 30.0


@dataclass(frozen=True)
class Step:
    """One step: a short `key`, the `title` shown, and the seconds it is expected to take."""

    key: str
    title: str
    seconds: float


def duration(seconds: float) -> str:
    """`seconds` in words: "8 s", "2 min 5 s"."""
    whole = max(0, int(round(seconds)))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s"


class Progress:
    """Shows steps one after the other on `stream`.

    On a terminal the running step's line is refreshed every second; elsewhere a line is written when a
    step starts, every `heartbeat` seconds, and when it ends. The estimate of the time left scales the
    expected seconds of the remaining steps by measured over expected of those done and of a running one
    that is overdue; `PRIOR_SECONDS` that went as expected are counted in, so that short steps say little.
    """

    def __init__(self, steps: Sequence[Step], stream: TextIO | None = None, heartbeat: float = 20.0):
        self.steps = list(steps)
        self.stream = sys.stderr if stream is None else stream
        self.heartbeat = heartbeat
        self._live = self.stream.isatty()
        self._finished: set[str] = set()
        self._expected_done = 0.0
        self._measured_done = 0.0

    def left(self, key: str | None = None, elapsed: float = 0.0) -> float:
        """Estimated seconds until the last step ends, `elapsed` seconds into step `key`."""
        expected, measured = self._expected_done + PRIOR_SECONDS, self._measured_done + PRIOR_SECONDS
        if key is not None and self._overdue(key, elapsed):
            expected, measured = expected + self._step(key).seconds, measured + elapsed
        scale = measured / expected
        total = 0.0
        for step in self.steps:
            if step.key in self._finished:
                continue
            total += max(0.0, step.seconds * scale - (elapsed if step.key == key else 0.0))
        return total

    def _overdue(self, key: str, elapsed: float) -> bool:
        """True when step `key` has run for longer than any estimate so far allows."""
        scale = (self._measured_done + PRIOR_SECONDS) / (self._expected_done + PRIOR_SECONDS)
        return elapsed > self._step(key).seconds * max(scale, 1.0)

    def reuse(self, key: str) -> None:
        """Mark step `key` as already done: it takes no time and prints nothing."""
        self._step(key)
        self._finished.add(key)

    @contextmanager
    def step(self, key: str) -> Iterator[None]:
        """Run the body as step `key`; an exception marks the step as failed and is raised again."""
        step = self._step(key)
        head = f"[{self.steps.index(step) + 1}/{len(self.steps)}] {step.title}"
        start = time.monotonic()
        ended = threading.Event()
        ticker = threading.Thread(target=self._tick, args=(head, key, start, ended), daemon=True)
        self._write(f"{head} ... about {duration(self.left(key))} left")
        ticker.start()
        outcome = "failed after"
        try:
            yield
            outcome = "done in"
        finally:
            ended.set()
            ticker.join()
            elapsed = time.monotonic() - start
            if outcome == "done in":
                self._finished.add(key)
                self._expected_done += step.seconds
                self._measured_done += elapsed
            self._write(f"{head}: {outcome} {duration(elapsed)}", last=True)

    def _step(self, key: str) -> Step:
        for step in self.steps:
            if step.key == key:
                return step
        raise KeyError(f"no step {key!r}; the steps are {[step.key for step in self.steps]}")

    def _tick(self, head: str, key: str, start: float, ended: threading.Event) -> None:
        while not ended.wait(1.0 if self._live else self.heartbeat):
            elapsed = time.monotonic() - start
            left = f"about {duration(self.left(key, elapsed))} left"
            if self._overdue(key, elapsed):
                expected = f"longer than the expected {duration(self._step(key).seconds)}"
                after = self.left(key, elapsed)
                left = f"{expected}, then about {duration(after)}" if after >= 1 else expected
            self._write(f"{head} ... {duration(elapsed)}, {left}")

    def _write(self, text: str, last: bool = False) -> None:
        if self._live:
            # Return to the start of the line and clear what a longer text left behind.
            self.stream.write("\r\x1b[K" + text + ("\n" if last else ""))
        else:
            self.stream.write(text + "\n")
        self.stream.flush()
