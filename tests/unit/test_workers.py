"""Worker processes: tasks that raise nothing, hang, or kill their process."""

from __future__ import annotations

import os
import signal
import time

import pytest

from systolic import workers
from systolic.workers import TooSlow, outcomes, time_limit


def work(task: str, limit: float):
    if task == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if task == "hangs":
        time.sleep(60)
    return task, "done", os.getpid()


def lost(task: str, reason: str):
    return task, reason, 0


def test_crashes_and_hangs_are_results_and_the_rest_goes_on(monkeypatch):
    monkeypatch.setattr(workers, "GRACE", 0.5)
    tasks = ["a", "dies", "b", "hangs", "c", "d"]
    found = {task: reason for task, reason, _ in outcomes(tasks, work, lost, jobs=2, limit=0.5)}
    assert found.keys() == set(tasks)
    assert "-9" in found["dies"] and found["hangs"] == workers.HUNG
    assert {found[t] for t in "abcd"} == {"done"}


def test_a_worker_is_replaced_after_its_share():
    pids = [pid for _, _, pid in outcomes(list("abcd"), work, lost, jobs=1, limit=5, tasks_per_worker=2)]
    assert len(set(pids)) == 2 and len(pids) == 4


def test_the_time_limit_ends_a_block_and_leaves_no_alarm():
    with pytest.raises(TooSlow), time_limit(0.05):
        time.sleep(5)
    with time_limit(0.2):
        pass
    time.sleep(0.3)
