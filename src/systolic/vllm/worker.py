"""The worker: device start-up, memory for the cache, warm-up."""

from __future__ import annotations

import contextlib
import time

import torch
from vllm.logger import init_logger
from vllm.utils.mem_utils import format_gib
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.worker_base import CompilationTimes

from . import warmup
from .runner import TpuModelRunner

logger = init_logger("vllm.systolic")


class TpuWorker(Worker):
    """One process, one ``tpu`` device."""

    def init_device(self) -> None:
        warmup.startup.start("load")
        self.device = torch.device("tpu", self.local_rank)
        torch.tpu.set_device(self.device)
        init_worker_distributed_environment(
            self.vllm_config, self.rank, self.distributed_init_method, self.local_rank, "gloo"
        )
        set_random_seed(self.model_config.seed)
        self.model_runner = TpuModelRunner(self.vllm_config, self.device)
        name = torch.tpu.get_device_name()
        logger.info("tpu device: %s; dtype %s", name, self.model_config.dtype)

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        from vllm.config import set_current_vllm_config

        with set_current_vllm_config(self.vllm_config):
            self.model_runner.load_model(load_dummy_weights=load_dummy_weights)

    def _maybe_get_memory_pool_context(self, tag: str):
        return contextlib.nullcontext()  # no memory pools: storages are XLA buffers

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache: what was asked for, or the rest of the allowed share of the device."""
        free, total = torch.tpu.mem_get_info(self.device)
        explicit = self.cache_config.kv_cache_memory_bytes
        if explicit is not None:
            if explicit > free:
                raise ValueError(
                    f"--kv-cache-memory-bytes {explicit} ({format_gib(explicit)} GiB) is more than the "
                    f"{format_gib(free)} GiB that are free on the device; ask for less"
                )
            return explicit
        share = self.cache_config.gpu_memory_utilization
        if torch.tpu.get_device_properties(self.device).platform == "cpu":
            # The machine's memory is shared with everything else on it. A fixed size also keeps the cache's shape,
            # and with it the stored programs, the same from start to start.
            available = min(HOST_CACHE_BYTES, int(free * share))
        else:
            available = int(total * share) - (total - free)
        if available <= 0:
            raise ValueError(
                f"no memory is left for the KV cache: {format_gib(free)} of {format_gib(total)} GiB are free and "
                f"--gpu-memory-utilization is {share}; raise it, or free memory on the device"
            )
        logger.info("KV cache: %s GiB of %s GiB free", format_gib(available), format_gib(free))
        return available

    def compile_or_warm_up_model(self) -> CompilationTimes:
        started = time.perf_counter()
        warmup.run(self.model_runner)
        set_random_seed(self.model_config.seed)
        return CompilationTimes(language_model=time.perf_counter() - started, encoder=0.0)

    def sleep(self, level: int = 1) -> None:
        raise NotImplementedError("sleep mode is not supported on tpu yet")

    def wake_up(self, tags: list[str] | None = None) -> None:
        raise NotImplementedError("sleep mode is not supported on tpu yet")

    def profile(self, is_start: bool = True, profile_prefix: str | None = None, **kwargs) -> None:
        raise NotImplementedError("profiling through the API is not supported on tpu yet")


HOST_CACHE_BYTES = 4 << 30  # KV cache on a machine without a TPU; --kv-cache-memory-bytes asks for another size
