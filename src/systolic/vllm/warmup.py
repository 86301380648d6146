"""Warm-up: every program that serving can need is compiled (or loaded) before the first request."""

from __future__ import annotations

import json
import time

import numpy as np
import torch
from vllm.logger import init_logger

from ..compile import executables

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
        return
    from tqdm import tqdm

    startup.start("trace")
    runner.program.trace(_inputs(runner, runner.token_buckets[-1]), _hidden_size(runner), runner.model_config.dtype)
    before = (executables.statistics.compilations, executables.statistics.cache_hits)
    startup.start("compile")
    hidden = {}
    bar = tqdm(runner.token_buckets + runner.request_buckets, desc="Preparing programs", unit="size")
    for position, size in enumerate(bar):
        if position < len(runner.token_buckets):
            bar.set_postfix_str(f"{size} tokens")
            hidden[size] = runner.program.step(_inputs(runner, size))
        else:
            if position == len(runner.token_buckets):
                startup.start("warmup")
            bar.set_postfix_str(f"{size} requests")
            _sample(runner, hidden, size)
    torch.tpu.synchronize()
    startup.stop()
    compiled = executables.statistics.compilations - before[0]
    loaded = executables.statistics.cache_hits - before[1]
    logger.info("warm-up: %d programs compiled, %d loaded from the cache", compiled, loaded)
    logger.info(startup.report())
    print(startup.report(), flush=True)
    executables.on_compilation(_late)


def _late(name: str, seconds: float) -> None:
    logger.warning("compiled %s in %.2f s after warm-up: this size or operator was not prepared", name, seconds)


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


def _sample(runner, hidden, rows: int) -> None:
    """Run logits and every feature of the sampler for one request bucket."""
    from .sampling_warmup import combinations

    index = torch.from_numpy(np.zeros(rows, np.int64))
    logits = None
    for size, states in hidden.items():
        if size >= rows or size == runner.token_buckets[-1]:
            logits = runner.program.logits(states[index])
    for metadata in combinations(runner, rows):
        output = runner.sampler(logits=logits.clone(), sampling_metadata=metadata)
        runner.previous_tokens[:rows].copy_(output.sampled_token_ids.view(-1))
