"""Warm-up: every program that serving can need is compiled (or loaded) before the first request."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import numpy as np
import torch
from vllm.logger import init_logger

from ..compile import executables
from . import metrics, sampling_warmup

logger = init_logger("vllm.systolic")


class Startup:
    """Seconds of each part of a start, printed as one line when the server is ready."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.seconds: dict[str, float] = {"import": _process_age()}
        self._name: str | None = None
        self._since = 0.0

    def start(self, name: str) -> None:
        self.stop()
        self._name, self._since = name, time.perf_counter()

    def stop(self) -> None:
        if self._name is not None:
            self.seconds[self._name] = self.seconds.get(self._name, 0.0) + time.perf_counter() - self._since
            self._name = None

    def report(self) -> str:
        return "systolic startup: " + json.dumps({k: round(v, 2) for k, v in self.seconds.items()})


def _process_age() -> float:
    import psutil

    return time.time() - psutil.Process().create_time()


startup = Startup()


def run(runner) -> None:
    """Trace, compile and run every bucket of the model and of the sampler."""
    if runner.model_config.enforce_eager:
        startup.stop()
        logger.info("eager mode: nothing is compiled ahead; operators are compiled when they first run")
        _finish(runner)
        return
    startup.start("trace")
    runner.program.trace(_inputs(runner, runner.token_buckets[-1]), _hidden_size(runner), runner.model_config.dtype)
    startup.start("compile")
    # Half of a compilation holds the interpreter, half is XLA's: one thread per core keeps both busy.
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        inputs = [_inputs(runner, size) for size in runner.token_buckets]
        _each(pool, runner.program.prepare, inputs, "Compiling the model", "token buckets")
        # One run shows that the whole path works; the other sizes need no run.
        hidden, selected = runner.program.step(inputs[0])
        torch.tpu.synchronize()
        startup.start("warmup")
        _each(pool, lambda rows: _sample(runner, selected, rows), runner.request_buckets, "Compiling the sampler",
              "request buckets")  # fmt: skip
        states = [torch.zeros(size, *hidden.shape[1:], dtype=hidden.dtype, device=hidden.device)
                  for size in runner.token_buckets]  # fmt: skip
        _each(pool, lambda rows: sampling_warmup.score_prompts(runner, rows), states, "Compiling prompt scores",
              "token buckets")  # fmt: skip
    torch.tpu.synchronize()
    startup.stop()
    logger.info(
        "warm-up: %d programs compiled, %d loaded from the program cache",
        executables.statistics.compilations, executables.statistics.cache_hits,
    )  # fmt: skip
    _finish(runner)


def _each(pool, function, items, title: str, unit: str) -> None:
    """Run ``function`` on each item in the pool behind a progress bar; the largest items go first."""
    from tqdm import tqdm

    futures = [pool.submit(function, item) for item in reversed(items)]
    for future in tqdm(as_completed(futures), total=len(futures), desc=title, unit=f" {unit}", disable=None):
        future.result()


def _finish(runner) -> None:
    print(startup.report(), flush=True)
    runner.watch = Watch()
    executables.on_compilation(runner.watch.compiled)
    runner.watch.publish()


class Watch:
    """Says when serving needs a compilation or a CPU fallback, which warm-up should have prevented."""

    def __init__(self) -> None:
        self.late = 0
        self._published = None

    def compiled(self, name: str, seconds: float) -> None:
        """Observer of compilations after warm-up."""
        self.late += 1
        logger.warning("compiled %s in %.2f s after warm-up: this size or operator was not prepared", name, seconds)

    def publish(self) -> None:
        """Write the counters if one changed."""
        state = (executables.statistics.compilations, sum(torch.tpu.fallbacks().values()))
        if state != self._published:
            self._published = state
            metrics.publish(self.late)


def _hidden_size(runner) -> int:
    return runner.model_config.get_hidden_size()


def _inputs(runner, tokens: int):
    """Inputs of a step with ``tokens`` padding tokens and no request: nothing is written to a cache."""
    for table in runner.input_batch.block_table.block_tables:
        table.slot_mapping.np[:] = -1
    runner.previous_index[:] = -1
    runner.input_ids.np[:tokens] = 0
    runner.positions.zero_()
    runner.seq_lens.zero_()
    runner.query_start_loc.np[:] = 0
    return runner._step_inputs(tokens, 0)


def _sample(runner, selected, rows: int) -> None:
    """Run logits and every feature of the sampler for one request bucket."""
    logits = runner.program.logits(selected[:rows])
    with torch.no_grad():
        for metadata in sampling_warmup.combinations(runner, rows):
            output = runner.sampler(logits=logits.clone(), sampling_metadata=metadata)
            runner.previous_tokens[:rows].copy_(output.sampled_token_ids.view(-1))
