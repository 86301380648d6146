"""Worker processes that may hang or crash: a case that does is reported, and the worker replaced."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import wait
from typing import Iterator

from cases import Case
from worker import Outcome, run

# A worker's programs stay in memory: it is replaced after this many cases.
CASES_PER_WORKER = 60
# Seconds after a case's own limit until its worker is killed.
GRACE = 30.0


def _serve(pipe, limit: float) -> None:
    while (case := pipe.recv()) is not None:
        pipe.send(run(case, limit))


class _Worker:
    def __init__(self, limit: float):
        # Forked from a process that has imported PyTorch but not started JAX: a start costs nothing.
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, limit), daemon=True)
        self.process.start()
        theirs.close()
        self.done = 0
        self.case: Case | None = None
        self.since = 0.0

    def give(self, case: Case) -> None:
        self.case, self.since = case, time.monotonic()
        self.pipe.send(case)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def outcomes(cases: list[Case], jobs: int, limit: float) -> Iterator[Outcome]:
    """Run the cases in ``jobs`` processes, each case for at most ``limit`` seconds; in the order in which they end."""
    waiting = list(reversed(cases))
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(_Worker(limit))
                workers[-1].give(waiting.pop())
            wait([w.pipe for w in workers], timeout=1.0)
            for worker in list(workers):
                outcome = _result(worker, limit)
                if outcome is None:
                    continue
                yield outcome
                worker.done += 1
                broken = not worker.process.is_alive() or outcome.reason == _HUNG
                if broken or worker.done >= CASES_PER_WORKER or not waiting:
                    worker.stop()
                    workers.remove(worker)
                else:
                    worker.give(waiting.pop())
    finally:
        for worker in workers:
            worker.stop()


_HUNG = "hung: the process had to be killed"


def _result(worker: _Worker, limit: float) -> Outcome | None:
    if worker.pipe.poll():
        try:
            return worker.pipe.recv()
        except EOFError:
            worker.process.join()
            return Outcome(worker.case, "failed", f"crashed: the process ended with {worker.process.exitcode}")
    if time.monotonic() - worker.since > limit + GRACE:
        worker.stop()
        return Outcome(worker.case, "failed", _HUNG)
    return None
