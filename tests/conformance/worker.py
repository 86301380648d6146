"""One case at a time: run its checks and say how it ended."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field

import torch
from cases import Case

from systolic.workers import TooSlow, time_limit

STATES = ("passed", "fallback", "failed")


@dataclass
class Outcome:
    """How a case ended; ``fallbacks`` are the operators that ran on the CPU."""

    case: Case
    state: str
    reason: str = ""
    fallbacks: list[str] = field(default_factory=list)
    seconds: float = 0.0


def lost(case: Case, reason: str) -> Outcome:
    """The outcome of a case whose process hung or crashed."""
    return Outcome(case, "failed", reason)


def run(case: Case, limit: float, thorough: bool = True) -> Outcome:
    """Run a case for at most ``limit`` seconds; without ``thorough`` on half the samples."""
    started = time.perf_counter()
    before = torch.tpu.fallbacks()
    try:
        torch.manual_seed(case.number % 2**32)
        with time_limit(limit), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _checks(case, thorough)
        state, reason = "passed", ""
    except TooSlow:
        state, reason = "failed", f"took more than {limit:.0f} s"
    except Exception as error:
        lines = str(error).strip().splitlines()
        name = "" if type(error).__name__ == "Mismatch" else f"{type(error).__name__}: "
        state, reason = "failed", (name + (lines[0] if lines else ""))[:300]
    finally:
        if case.mode == "compiled":
            torch._dynamo.reset()
    after = torch.tpu.fallbacks()
    used = sorted(name for name, count in after.items() if count > before.get(name, 0))
    if state == "passed" and used:
        state, reason = "fallback", "ran on the CPU: " + ", ".join(used)
    return Outcome(case, state, reason, used, round(time.perf_counter() - started, 3))


def _checks(case: Case, thorough: bool = True) -> None:
    info, compiled = case.info(), case.mode == "compiled"
    if case.database == "operator":
        from operators import Operator

        operator = Operator(info, case.name, case.torch_dtype, thorough)
        operator.compiled() if compiled else operator.eager()
    elif case.database == "module":
        from modules import check_module

        check_module(info, case.name, case.torch_dtype, compiled)
    else:
        from modules import check_optimizer

        check_optimizer(info, case.name, case.torch_dtype, compiled)
