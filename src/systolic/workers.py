"""Worker processes that may hang or crash: a task that does is reported, and the worker replaced.

Standard library only.  The conformance sweep of the tests and the model zoo run their cases here.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any, Callable, Iterator, Sequence

# A worker's programs stay in memory: it is replaced after this many tasks.
TASKS_PER_WORKER = 60
# Seconds after a task's own limit until its worker is killed.
GRACE = 30.0
HUNG = "hung: the process had to be killed"


class TooSlow(BaseException):
    """A task did not end in its time.  No Exception: PyTorch catches those in places."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`TooSlow` in the block after ``seconds``; in the main thread only, and not nested."""

    def expire(*_):
        raise TooSlow

    previous = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _serve(pipe, work, limit: float) -> None:
    while (task := pipe.recv()) is not None:
        pipe.send(work(task, limit))


class _Worker:
    def __init__(self, work, limit: float):
        # Forked from a process that has imported PyTorch but not started JAX: a start costs nothing.
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work, limit), daemon=True)
        self.process.start()
        theirs.close()
        self.done = 0
        self.task: Any = None
        self.since = 0.0

    def give(self, task) -> None:
        self.task, self.since = task, time.monotonic()
        self.pipe.send(task)

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def outcomes(
    tasks: Sequence,
    work: Callable[[Any, float], Any],
    lost: Callable[[Any, str], Any],
    jobs: int,
    limit: float,
    tasks_per_worker: int = TASKS_PER_WORKER,
) -> Iterator[Any]:
    """Results of ``work(task, limit)`` for each task, in ``jobs`` processes, in the order in which they end.

    ``work`` keeps to ``limit`` seconds by itself (:func:`time_limit`).  A process that does not, or that dies,
    gives ``lost(task, reason)`` as the result of its task.  Tasks and results are pickled; ``work`` is not.
    """
    waiting = list(reversed(tasks))
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                workers.append(_Worker(work, limit))
                workers[-1].give(waiting.pop())
            wait([w.pipe for w in workers], timeout=1.0)
            for worker in list(workers):
                ended, result, broken = _result(worker, lost, limit)
                if not ended:
                    continue
                yield result
                worker.done += 1
                if broken or worker.done >= tasks_per_worker or not waiting:
                    worker.stop()
                    workers.remove(worker)
                else:
                    worker.give(waiting.pop())
    finally:
        for worker in workers:
            worker.stop()


def _result(worker: _Worker, lost, limit: float) -> tuple[bool, Any, bool]:
    """Whether the worker's task ended, its result, and whether the process is of no more use."""
    if worker.pipe.poll():
        try:
            return True, worker.pipe.recv(), not worker.process.is_alive()
        except EOFError:
            worker.process.join()
            code = worker.process.exitcode
            return True, lost(worker.task, f"crashed: the process ended with {code}"), True
    if time.monotonic() - worker.since > limit + GRACE:
        worker.stop()
        return True, lost(worker.task, HUNG), True
    return False, None, False
