"""Running the engine and its reference in processes of their own, and comparing what they generate.

`engine` runs one or several vLLM engines on the `tpu` device, one after the other in one fresh process;
`reference` runs `transformers`' `generate` on the CPU without the device loaded. Both exchange JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# A greedy choice between two logits closer than this is decided by rounding: both answers are right.
TIE = 1e-4

# Seconds for one child process on a busy machine; idle ones take a fraction of it.
TIMEOUT = 1200


@dataclass
class Job:
    """One call of `LLM.generate`.

    prompts: token ids each, or text; together: all at once, else one after the other;
    sampling: arguments of SamplingParams (temperature 0 unless given).
    """

    prompts: list
    sampling: dict[str, Any]
    together: bool = True


@dataclass
class Engine:
    """One engine: arguments of `LLM`, and what to run on it."""

    options: dict[str, Any]
    jobs: list[Job] = field(default_factory=list)


@dataclass
class EngineResult:
    """What one engine did.

    tokens: for each job, for each prompt, the generated ids; gaps: the top-2 logprob gap of each of
    those where the job asked for logprobs, else empty; texts: the generated texts; cached: prompt tokens
    found in the prefix cache, per prompt; preemptions: how often the scheduler preempted a request;
    step_tokens: tokens of each scheduler step; warm_up, late: names of the programs compiled, or
    loaded from the disk cache, by the engine's start and after it; fallbacks: operators that ran on the CPU instead,
    with counts; cache_bytes: memory of the KV cache.
    """

    tokens: list[list[list[int]]]
    gaps: list[list[list[float]]]
    texts: list[list[str]]
    cached: list[list[int]]
    preemptions: int
    step_tokens: list[int]
    warm_up: list[str]
    late: list[str]
    fallbacks: dict[str, int]
    cache_bytes: int


def engine(engines: list[Engine], timeout: float = TIMEOUT) -> list[EngineResult]:
    """Run `engines` in one new process; raises AssertionError with the end of its output if it fails."""
    spec = [{"options": e.options, "jobs": [vars(job) for job in e.jobs]} for e in engines]
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "WARNING"}
    return [EngineResult(**item) for item in _run("engine", spec, environment, timeout)]


@dataclass
class Reference:
    """Greedy tokens by `transformers` and the top-2 logit gap at each of them, both [prompt][position]."""

    tokens: list[list[int]]
    gaps: list[list[float]]


def reference(requests: list[tuple[Path, list[list[int]], int]], timeout: float = TIMEOUT) -> list[Reference]:
    """What `transformers` generates for each (model folder, prompts, number of tokens).

    Prompts of equal length share a batch, so that nothing is ever padded.
    """
    spec = [{"model": str(model), "prompts": prompts, "count": count} for model, prompts, count in requests]
    # Waiting threads sleep: beside other work, spinning ones would take the time of those that compute.
    environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_WAIT_POLICY": "PASSIVE"}
    return [Reference(**item) for item in _run("reference", spec, environment, timeout)]


def save_models(names: list[str], folder: Path) -> dict[str, Path]:
    """Write the models `names` of `tiny_models` below `folder`, by a process without the device."""
    spec = {"names": names, "folder": str(folder)}
    result = _run("save", spec, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, 120)
    return {name: Path(path) for name, path in result.items()}


def _run(action: str, spec, environment: dict[str, str], timeout: float):
    with tempfile.TemporaryDirectory() as scratch:
        given, made = Path(scratch, "spec.json"), Path(scratch, "result.json")
        given.write_text(json.dumps(spec), encoding="utf-8")
        command = [sys.executable, __file__, action, str(given), str(made)]
        done = subprocess.run(
            command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=timeout, text=True, errors="replace",
        )  # fmt: skip
        assert done.returncode == 0 and made.exists(), (
            f"the {action} process ended with code {done.returncode}; the end of its output:\n{done.stdout[-6000:]}"
        )
        return json.loads(made.read_text(encoding="utf-8"))


def first_difference(expected: list[int], got: list[int]) -> int | None:
    """Position of the first token that differs (a missing token differs), or None."""
    for position in range(max(len(expected), len(got))):
        if expected[position : position + 1] != got[position : position + 1]:
            return position
    return None


def differences(expected: list[list[int]], got: list[list[int]], gaps=None, names=None) -> tuple[list[str], list[str]]:
    """Compare lists of tokens prompt by prompt; returns (failures, ties), each a text a prompt.

    A difference is a tie when `gaps` has the reference's top-2 gap there and it is below `TIE`; the
    tokens after it do not count, since the two continue from different texts.
    """
    failures, ties = [], []
    assert len(expected) == len(got), f"{len(got)} outputs for {len(expected)} prompts"
    for index, (left, right) in enumerate(zip(expected, got)):
        where = first_difference(left, right)
        if where is None:
            continue
        label = names[index] if names else f"prompt {index}"
        gap = gaps[index][where] if gaps and where < len(gaps[index]) else None
        text = (
            f"{label}: first difference at token {where}"
            + (f", top-2 logit gap of the reference there {gap:.3g}" if gap is not None else "")
            + f"\n  expected {left}\n  got      {right}"
        )
        (ties if gap is not None and gap < TIE else failures).append(text)
    return failures, ties


def check(expected, got, gaps=None, names=None) -> None:
    """Fail unless all tokens are equal, ties aside; prints both lists and the gap for each difference."""
    failures, ties = differences(expected, got, gaps, names)
    for text in failures + ties:
        print(text)
    assert not failures, f"{len(failures)} of {len(expected)} prompts differ:\n" + "\n".join(failures)


# The other side: what runs in the child process.


def _engine_main(spec):
    return [_run_engine(item["options"], item["jobs"]) for item in spec]


def _run_engine(options, jobs):
    import torch
    from vllm import LLM
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    torch.set_num_threads(2)
    made = _made_programs()
    fallbacks = dict(torch.tpu.fallbacks())
    llm = LLM(dtype="float32", disable_log_stats=True, **options)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    ready = len(made)
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    distinct = {id(cache): cache for cache in runner.kv_caches}
    cache_bytes = sum(cache.numel() * cache.element_size() for cache in distinct.values())
    counts = {"preemptions": 0}
    step_tokens: list[int] = []
    preempt, schedule = scheduler._preempt_request, scheduler.schedule

    def counted_preempt(*args, **kwargs):
        counts["preemptions"] += 1
        return preempt(*args, **kwargs)

    def counted_schedule(*args, **kwargs):
        output = schedule(*args, **kwargs)
        if output.total_num_scheduled_tokens:
            step_tokens.append(output.total_num_scheduled_tokens)
        return output

    scheduler._preempt_request, scheduler.schedule = counted_preempt, counted_schedule
    outputs = [_run_job(llm, job) for job in jobs]
    now = {name: count - fallbacks.get(name, 0) for name, count in torch.tpu.fallbacks().items()}
    result = {
        **{key: [output[key] for output in outputs] for key in ("tokens", "gaps", "texts", "cached")},
        "preemptions": counts["preemptions"],
        "step_tokens": step_tokens,
        "warm_up": made[:ready],
        "late": made[ready:],
        "cache_bytes": cache_bytes,
        "fallbacks": {name: count for name, count in now.items() if count},
    }
    del scheduler._preempt_request, scheduler.schedule
    llm.llm_engine.engine_core.shutdown()
    del llm, scheduler, runner, distinct
    cleanup_dist_env_and_memory()
    return result


def _made_programs() -> list[str]:
    """A new list to which the name of every program is added that the device compiles or loads from now on."""
    from systolic.compile import executables

    made: list[str] = []
    original = getattr(executables.build, "original", executables.build)

    def build(name, *args):
        made.append(name)
        return original(name, *args)

    build.original = original
    executables.build = build
    return made


def _run_job(llm, job):
    from vllm import SamplingParams

    params = SamplingParams(**{"temperature": 0.0, **job["sampling"]})
    prompts = [p if isinstance(p, str) else {"prompt_token_ids": p} for p in job["prompts"]]
    batches = [prompts] if job["together"] else [[p] for p in prompts]
    outputs = [output for batch in batches for output in llm.generate(batch, params, use_tqdm=False)]
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "gaps": [_gaps(output.outputs[0].logprobs) for output in outputs],
        "texts": [output.outputs[0].text for output in outputs],
        "cached": [output.num_cached_tokens or 0 for output in outputs],
    }


def _gaps(logprobs) -> list[float]:
    """Differences of the two largest logprobs at each position."""
    result = []
    for entry in logprobs or ():
        first, second, *_ = sorted((item.logprob for item in entry.values()), reverse=True)
        result.append(first - second)
    return result


def _reference_main(spec):
    return [_generate(**item) for item in spec]


def _generate(model, prompts, count):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # always `count` tokens, the end token like any other
    model.generation_config.pad_token_id = 0  # never used: nothing is padded
    by_length: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        by_length.setdefault(len(prompt), []).append(index)
    tokens, gaps = [None] * len(prompts), [None] * len(prompts)
    for length, indices in by_length.items():
        ids = torch.tensor([prompts[index] for index in indices])
        with torch.no_grad():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count,
                return_dict_in_generate=True, output_logits=True,
            )  # fmt: skip
        top = torch.stack(out.logits).float().topk(2, dim=-1).values  # [count, batch, 2]
        gap = (top[..., 0] - top[..., 1]).t().tolist()
        for row, index in enumerate(indices):
            tokens[index] = out.sequences[row, length:].tolist()
            gaps[index] = gap[row]
    return {"tokens": tokens, "gaps": gaps}


def _save_main(spec):
    import tiny_models

    return {name: str(tiny_models.save(name, Path(spec["folder"], name))) for name in spec["names"]}


if __name__ == "__main__":
    work = {"engine": _engine_main, "reference": _reference_main, "save": _save_main}[sys.argv[1]]
    answer = work(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))
    Path(sys.argv[3]).write_text(json.dumps(answer), encoding="utf-8")
