"""One architecture: the reference on the CPU, then the same on ``tpu``, eager and compiled."""

from __future__ import annotations

import copy
import re
import time
import traceback
import warnings
from dataclasses import dataclass, field
from typing import Any, Callable

import torch

from systolic.workers import TooSlow, time_limit

from . import criterion, inputs, shrink, weights
from .catalog import Architecture

NEW_TOKENS = 4
CHECKS = ("eager", "backward", "generate", "compiled")  # in the order in which they run
NOT_GENERATIVE = "the class does not generate"
# States of a record: only the first counts as attempted.
ATTEMPTED, NOT_INSTANTIATED, REFERENCE_FAILS = "attempted", "not instantiated", "the reference fails"


@dataclass
class Record:
    """What one architecture did.

    ``eager``, ``compiled``, ``generate`` and ``backward`` hold ``ran``, ``matched``, ``difference`` and ``cause``
    of a check, and what it measured beside; one that does not apply holds ``not_applicable`` with the reason.
    ``fallbacks`` counts calls of operators that ran on the CPU because they are not lowered.
    """

    model_type: str
    class_name: str
    task: str
    state: str = ATTEMPTED
    cause: str = ""
    parameters: int = 0
    inputs: list[str] = field(default_factory=list)
    eager: dict[str, Any] = field(default_factory=dict)
    compiled: dict[str, Any] = field(default_factory=dict)
    generate: dict[str, Any] = field(default_factory=dict)
    backward: dict[str, Any] = field(default_factory=dict)
    fallbacks: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def applied(self) -> list[dict]:
        """The checks that apply."""
        return [c for c in (getattr(self, name) for name in CHECKS) if c and "not_applicable" not in c]

    @property
    def ran(self) -> bool:
        """Every check that applies ended without an error."""
        entries = [getattr(self, name) for name in CHECKS]
        return self.state == ATTEMPTED and all(entries) and all(c["ran"] for c in self.applied())

    @property
    def matched(self) -> bool:
        """Every check that applies gave the reference's results."""
        return self.ran and all(c["matched"] for c in self.applied())


def lost(architecture: Architecture, reason: str) -> Record:
    """The record of an architecture whose process hung or crashed."""
    a = architecture
    return Record(a.model_type, a.class_name, a.task, cause=reason)


def run(architecture: Architecture, limit: float, wanted: tuple[str, ...] = CHECKS) -> Record:
    """Run the ``wanted`` checks (always the eager one) of an architecture, for at most ``limit`` seconds in all."""
    a = architecture
    record = Record(a.model_type, a.class_name, a.task)
    started, cpu, before = time.perf_counter(), time.process_time(), torch.tpu.fallbacks()
    try:
        with time_limit(limit), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _all(a, record, wanted)
    except TooSlow:
        running = next((n for n in CHECKS if not getattr(record, n)), "")
        record.cause = f"took more than {limit:.0f} s, up to the check {running!r}"
    finally:
        torch._dynamo.reset()
    if record.state == ATTEMPTED and not record.cause:
        record.cause = "; ".join(
            f"{n}: {c['cause']}" for n in CHECKS if (c := getattr(record, n)).get("cause")
        )
    record.fallbacks = {
        n: c - before.get(n, 0) for n, c in torch.tpu.fallbacks().items() if c > before.get(n, 0)
    }
    record.seconds = round(time.perf_counter() - started, 1)
    record.cpu_seconds = round(time.process_time() - cpu, 1)
    return record


def _all(a: Architecture, record: Record, wanted: tuple[str, ...]) -> None:
    try:
        model = _model(a)
    except Exception as error:
        record.state, record.cause = NOT_INSTANTIATED, one_line(error)
        return
    record.parameters = sum(p.numel() for p in model.parameters())
    device_model = copy.deepcopy(model)  # now: a model may keep what its first call computed, and on the CPU
    try:
        given = inputs.build(model, a)
        record.inputs = [f"{name} {list(t.shape)}" for name, t in given.items()]
        output = model(**given)
        want = criterion.results(output)
        if not any(t.is_floating_point() for t in want.values()):
            raise ValueError("the model gives no floating-point result to compare")
        if not all(
            bool(torch.isfinite(t).any()) for t in want.values() if t.is_floating_point() and t.numel()
        ):
            raise ValueError("the reference's results are not finite")
        with torch.no_grad():
            _compare_again(criterion.results(model(**given)), want)
    except Exception as error:
        record.state, record.cause = REFERENCE_FAILS, one_line(error)
        return
    gradients = _attempt(lambda: _gradients(model, output)) if "backward" in wanted else None
    device_model = device_model.to("tpu")
    device_given = {name: t.to("tpu") for name, t in given.items()}
    outputs: list = []

    def eager():
        outputs.append(device_model(**device_given))
        return {"difference": criterion.compare(criterion.results(outputs[0]), want)}

    record.eager = _check(eager)
    if "backward" in wanted:
        record.backward = _backward(device_model, outputs, gradients, lambda: _exact_gradients(model, given))
    outputs.clear()
    if "generate" in wanted:
        record.generate = _generate(model, device_model, given, device_given)
    if "compiled" in wanted:
        record.compiled = _check(lambda: _compiled(device_model, device_given, want, model, given))
        if not record.compiled["ran"] and (error := _trace_fails(model, given)):
            record.compiled = {"not_applicable": f"on the CPU Dynamo cannot trace it either: {error}"}
    for name in CHECKS:
        if name not in wanted and name != "eager":
            setattr(record, name, {"not_applicable": "left out of this run"})


def _compare_again(got, want) -> None:
    try:
        criterion.compare(got, want)
    except criterion.Mismatch as error:
        raise ValueError(
            f"the forward draws random numbers: a second call gives other results ({error})"
        ) from None


def _model(a: Architecture) -> torch.nn.Module:
    torch.manual_seed(a.seed)
    model = a.model_class()(shrink.small_config(a.config_class())).float().eval()
    weights.randomize(model, a.seed)
    if model.can_generate():
        model.generation_config.eos_token_id = None
        model.generation_config.pad_token_id = 0
    return model


def _check(function: Callable[[], dict]) -> dict[str, Any]:
    """A check's entry: what ``function`` returns, or why it did not run or match."""
    try:
        return {"ran": True, "matched": True} | function()
    except criterion.Mismatch as error:
        return {"ran": True, "matched": False, "cause": str(error)}
    except Exception as error:
        return {"ran": False, "matched": False, "cause": one_line(error)}


def _attempt(function: Callable[[], Any]) -> Any:
    """The result of a reference, or the error that it raises."""
    try:
        return function()
    except Exception as error:
        return error


def _gradients(model, output) -> dict[str, torch.Tensor]:
    """Gradients on the CPU of the sum of all floating-point results, each weighted by a fixed pattern."""
    from torch.utils._pytree import tree_leaves

    model.zero_grad(set_to_none=True)
    loss = None
    for leaf in tree_leaves(dict(output) if isinstance(output, dict) else output):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.is_floating_point():
            pattern = torch.linspace(-1, 1, leaf.numel()).reshape(leaf.shape).to(leaf.device)
            # Masked logits are -inf.
            part = (torch.where(torch.isfinite(leaf), leaf, 0.0) * pattern).sum() / leaf.numel()
            loss = part if loss is None else loss + part
    if loss is None:
        raise ValueError("no result depends on a parameter in a differentiable way")
    loss.backward()
    return {n: p.grad.detach().to("cpu") for n, p in model.named_parameters() if p.grad is not None}


def _exact_gradients(model, given) -> dict[str, torch.Tensor]:
    exact = copy.deepcopy(model).double()
    given = {n: t.double() if t.is_floating_point() else t for n, t in given.items()}
    return _gradients(exact, exact(**given))


def _backward(device_model, outputs, want, exact) -> dict[str, Any]:
    if isinstance(want, Exception):
        return {"not_applicable": f"on the CPU: {one_line(want)}"}
    if not outputs:
        return {"not_applicable": "there is no eager result to go back from"}
    result = _check(
        lambda: criterion.compare_gradients(_gradients(device_model, outputs[0]), want, lambda: _attempt(exact))
    )
    device_model.zero_grad(set_to_none=True)
    return result


def _generate(model, device_model, given, device_given) -> dict[str, Any]:
    if not model.can_generate():
        return {"not_applicable": NOT_GENERATIVE}
    want = _attempt(lambda: _greedy(model, given))
    if isinstance(want, Exception):
        return {"not_applicable": f"on the CPU: {one_line(want)}"}

    def generate():
        got = _greedy(device_model, device_given)
        if "past_key_values" not in got:  # all tokens at once, as CTC does: there is no step whose choice could be open
            criterion.compare({"tokens": got.sequences.cpu()}, {"tokens": want.sequences})
            return {"cache": "none"}
        gap = criterion.same_tokens(got.sequences.cpu(), want.sequences, want.logits)
        found = {"cache": type(got.past_key_values).__name__}
        return found if gap is None else found | {"top2_gap": gap}

    return _check(generate)


def _greedy(model, given):
    return model.generate(
        **{n: v for n, v in given.items() if n != "decoder_input_ids"}, max_new_tokens=NEW_TOKENS, do_sample=False,
        num_beams=1, use_cache=True, return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip


def _compiled(device_model, device_given, want, model, given) -> dict[str, Any]:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    with torch.no_grad():
        output = torch.compile(device_model, backend="tpu")(**device_given)
    breaks = {_without_folders(reason)[:200]: count for reason, count in counters["graph_break"].items()}
    found = {
        "graphs": counters["stats"]["unique_graphs"],
        "breaks": sum(breaks.values()),
        "break_reasons": breaks,
    }
    got = criterion.results(output)
    try:
        return found | {"difference": criterion.compare(got, want)}
    except criterion.Mismatch as error:
        traced = _attempt(lambda: criterion.results(_traced(model, given)))
        return found | _against_trace(got, want, traced, str(error))


def _without_folders(reason: str) -> str:
    """A graph break's reason on one line, with files named from the installed package on, equal on all machines."""
    return re.sub(r"[^\s`'\"]*/site-packages/", "", " ".join(reason.split()))


def _against_trace(got, want, traced, cause: str) -> dict[str, Any]:
    """The entry of a compiled result unlike eager's: matches if Dynamo alone makes the same difference on the CPU."""
    wrong = {"matched": False, "cause": cause}
    if isinstance(traced, Exception):
        return wrong
    changed = _check(lambda: {"difference": criterion.compare(traced, want)})
    same = _check(lambda: {"difference": criterion.compare(got, traced)})
    if changed["matched"] or not same["matched"]:
        return wrong
    return {
        "difference": same["difference"],
        "reference": f"Dynamo alone on the CPU, unlike eager there: {changed['cause']}",
    }


def _traced(model, given):
    """What the CPU gives when Dynamo traces the model and nothing compiles its graphs."""
    torch._dynamo.reset()
    with torch.no_grad():
        return torch.compile(model, backend="eager")(**given)


def _trace_fails(model, given) -> str:
    """Why Dynamo alone, without any compiler, fails on the CPU as well; empty when it does not."""
    error = _attempt(lambda: _traced(model, given))
    return one_line(error) if isinstance(error, Exception) else ""


def one_line(error: BaseException) -> str:
    """Type, first line of the message and place of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    frame = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    place = f" ({frame.filename.rpartition('/')[2]}:{frame.lineno})" if frame else ""
    return f"{type(error).__name__}: {' '.join(lines[:2])[:500]}{place}"
