"""Numerics of the Pallas kernels, and of their references, against float64 over drawn cases."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io

import jax
import numpy as np

from systolic.kernels.registry import Case, Proof

# The interpreter's programs run once or a few times: optimising them takes longer than it saves.
FAST_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One case: its label, the largest error as a share of its bound, and what was wrong ("" for nothing)."""

    label: str
    worst: float
    problem: str


class Checker:
    """Checks cases of one kernel and keeps the programs of equal signatures."""

    def __init__(self, proof: Proof, detect_races: bool = True):
        self.proof = proof
        self.detect_races = detect_races
        self._programs: dict = {}

    def check(self, index: int, seed: int) -> Outcome:
        """Run the index-th case of a seed in both forms."""
        case = self.proof.draw(seed, index)
        want = self.proof.oracle(case)
        problems, worst = [], 0.0
        pallas, races = self._run_pallas(case)
        if races:
            problems.append(f"race: {races.strip().splitlines()[1].strip()}")
        for form, got in (("pallas", pallas), ("reference", self._run(case, self.proof.reference))):
            for output, (g, w) in enumerate(zip(got, want, strict=True)):
                bound = self.proof.bound(case, output)
                share = excess(g, w, bound)
                worst = max(worst, share)
                if not share <= 1:
                    problems.append(f"{form}, output {output}: {share:.3g} times the bound {bound.absolute:g} + "
                                    f"{bound.relative:g} * |value|")  # fmt: skip
        return Outcome(f"{index}: {case.label}", worst, "; ".join(problems))

    def _run_pallas(self, case: Case):
        from jax.experimental.pallas import tpu as pltpu

        # Uninitialised memory is NaN, and copies take place as late as their semaphores allow.
        params = pltpu.InterpretParams(detect_races=self.detect_races)
        form = functools.partial(self.proof.pallas, tuning=case.tuning, interpret=params)
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            result = self._run(case, form)
        return result, printed.getvalue() if "RACE DETECTED" in printed.getvalue() else ""

    def _run(self, case: Case, form) -> tuple:
        arrays = dict(case.arrays)
        shapes = tuple((name, a.shape, str(a.dtype)) for name, a in arrays.items())
        is_pallas = form is not self.proof.reference
        key = (is_pallas, shapes, tuple(sorted(case.options.items())), case.tuning)
        if key not in self._programs:
            call = jax.jit(lambda given: form(**given, **case.options))
            options = FAST_COMPILE if is_pallas else None
            self._programs[key] = call.lower(arrays).compile(compiler_options=options)
        return tuple(np.asarray(a) for a in jax.block_until_ready(self._programs[key](arrays)))


def excess(got, want, bound) -> float:
    """The largest error as a share of the bound; infinite for a wrong shape, a NaN or an infinity of its own."""
    got = np.asarray(got)
    want = np.asarray(want)
    if got.shape != want.shape:
        return float("inf")
    if got.size == 0:
        return 0.0
    got, want = got.astype(np.float64), want.astype(np.float64)
    same = (got == want) | (np.isnan(got) & np.isnan(want))  # equal infinities; what was NaN and stayed so
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.abs(got - want) / (bound.absolute + bound.relative * np.abs(want))
    share = np.where(same, 0.0, share)
    return float("inf") if np.isnan(share).any() else float(share.max())
