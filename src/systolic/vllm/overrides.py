"""Every change to upstream vLLM code, with its reason; :func:`apply` makes the ones that are patches.

Subclassing (``TpuWorker``, ``TpuModelRunner``) is listed too, so that one page shows what is not upstream's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Override:
    """One place where this plugin differs from upstream."""

    target: str
    reason: str


OVERRIDES = [
    Override("Worker.init_device", "upstream accepts CUDA devices only"),
    Override("Worker.determine_available_memory", "upstream profiles with CUDA memory statistics"),
    Override("Worker.compile_or_warm_up_model", "compiles our buckets instead of capturing CUDA graphs"),
    Override("GPUModelRunner.__init__", "input preparation stays on the host; CUDA streams and events do not exist"),
    Override("GPUModelRunner.load_model", "upstream measures CUDA memory while loading"),
    Override("GPUModelRunner.initialize_kv_cache_tensors", "one typed tensor a layer in the kernel's shape"),
    Override("GPUModelRunner.may_reinitialize_input_batch", "a new input batch must stay on the host too"),
    Override("GPUModelRunner._init_kv_zero_meta", "upstream prepares a Triton kernel"),
    Override("GPUModelRunner._zero_block_ids", "upstream launches a Triton kernel"),
    Override("GPUModelRunner._prepare_inputs", "the program picks the rows to sample, so upstream gets a slice instead of indices"),
    Override("GPUModelRunner._prepare_input_ids", "the program itself substitutes tokens sampled by the last step"),
    Override("GPUModelRunner._model_forward", "runs one compiled program per token bucket"),
    Override("GPUModelRunner._sample", "upstream's sampler on padded rows"),
    Override("GPUModelRunner._get_prompt_logprobs_dict", "upstream's loop with a fixed number of rows"),
    Override("gpu_model_runner.AsyncGPUModelRunnerOutput", "upstream copies on a CUDA stream"),
    Override("gpu_model_runner.apply_grammar_bitmask", "upstream uses a Triton kernel on this logits device"),
    Override("BlockTable.compute_slot_mapping", "upstream's is a Triton kernel; the positions are on the host here"),
    Override("penalties._convert_to_tensors", "pads the output-token table to a power of two"),
    Override("sampler.batched_count_greater_than", "upstream compiles it with Dynamo per batch size"),
    Override("Sampler.gather_specific_token_logprobs", "one width; companions keep their own top tokens"),
    Override("topk_topp_sampler.empty_exponential_noise_like", "memory written once: one program a size"),
    Override("RMSNorm/RotaryEmbedding/SiluAndMul native forms", "one node of the traced graph each: faster trace"),
    Override("UnquantizedFusedMoEMethod (TpuMoEMethod)", "upstream leaves experts to out-of-tree platforms: ours here"),
    Override("fused_topk_router.vllm_topk_softmax/sigmoid", "upstream's are native CUDA kernels; the same in torch"),
    Override("MoERunner._select_forward", "upstream hides the layer in an opaque operator; our trace sees through it"),
    Override("FastIncrementalDetokenizer.__init__", "repeats a prompt that ends inside a character (issue 48853)"),
    Override("AsyncLLM.shutdown", "requests that wait when the engine ends get an error; upstream may forget them"),
    Override("find_process_using_port", "at SIGTERM upstream may find its own engine, ending, and fail on it"),
    Override("uvicorn.Server.shutdown", "SIGTERM must end a busy server within 10 s: open connections get 5"),
    Override("MinP/LogitBias/MinTokensLogitsProcessor", "index lists of bucketed length; state on the host"),
]

SHUTDOWN_GRACE_SECONDS = 5

_applied = False


def apply() -> None:
    """Patch upstream modules; calling it again does nothing."""
    global _applied
    if _applied:
        return
    _applied = True
    import vllm.v1.engine.async_llm as async_llm
    import vllm.v1.engine.detokenizer as detokenizer
    import vllm.v1.sample.ops.penalties as penalties
    import vllm.v1.sample.ops.topk_topp_sampler as topk_topp_sampler
    import vllm.v1.sample.sampler as sampler
    import vllm.v1.worker.block_table as block_table
    import vllm.v1.worker.gpu_model_runner as gpu_model_runner

    from . import layers, moe, sampling
    from .detokenizer import starting_inside_a_character
    from .shutdown import answering_the_rest

    gpu_model_runner.AsyncGPUModelRunnerOutput = sampling.AsyncOutput
    gpu_model_runner.apply_grammar_bitmask = sampling.apply_grammar_bitmask
    penalties._convert_to_tensors = sampling.convert_output_tokens
    sampler.batched_count_greater_than = sampling.count_greater_or_equal
    sampler.Sampler.gather_specific_token_logprobs = sampling.specific_token_logprobs
    topk_topp_sampler.empty_exponential_noise_like = sampling.noise_like
    block_table.BlockTable.compute_slot_mapping = compute_slot_mapping
    layers.apply()
    _bound_shutdown()
    _spare_children()
    async_llm.AsyncLLM.shutdown = answering_the_rest(async_llm.AsyncLLM.shutdown)
    moe.apply()
    detokenizer.FastIncrementalDetokenizer.__init__ = starting_inside_a_character(
        detokenizer.FastIncrementalDetokenizer.__init__
    )
    for processor, apply_function in sampling.BUILTIN.items():
        processor.__init__ = sampling.on_host(processor)
        processor.apply = apply_function


def compute_slot_mapping(self, num_reqs: int, query_start_loc, positions) -> None:
    """Fill ``slot_mapping`` [max tokens] on the host: block * block_size + offset, -1 for padding."""
    import numpy as np
    from vllm.v1.worker.block_table import SlotMappingMode

    if self.slot_mapping_mode == SlotMappingMode.NONE:
        return
    starts = query_start_loc.numpy()
    where = positions.numpy()
    rows = np.repeat(np.arange(num_reqs), np.diff(starts[: num_reqs + 1]))
    blocks = self.block_table.np[rows, where // self.block_size].astype(np.int64)
    slots = self.slot_mapping.np
    slots[: where.shape[0]] = blocks * self.block_size + where % self.block_size
    slots[where.shape[0] :] = -1


def _spare_children() -> None:
    import sys

    import vllm.utils.network_utils as network

    from .shutdown import of_others

    network.find_process_using_port = of_others(network.find_process_using_port)
    launcher = sys.modules.get("vllm.entrypoints.launchers.launcher")
    if launcher is not None:  # it has the function by name
        launcher.find_process_using_port = network.find_process_using_port


def _bound_shutdown() -> None:
    """uvicorn waits for open connections without limit, and the engine that would answer them has stopped."""
    import uvicorn

    original = uvicorn.Server.shutdown

    async def shutdown(self, sockets=None):
        if self.config.timeout_graceful_shutdown is None:
            self.config.timeout_graceful_shutdown = SHUTDOWN_GRACE_SECONDS
        await original(self, sockets)

    uvicorn.Server.shutdown = shutdown
