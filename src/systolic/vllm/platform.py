"""What vLLM asks of a platform."""

from __future__ import annotations

import torch
from vllm.logger import init_logger
from vllm.platforms.interface import Platform, PlatformEnum

from ..device import client
from . import metrics

logger = init_logger("vllm.systolic")


class TpuPlatform(Platform):
    """The ``tpu`` device: a TPU, or XLA on the CPU when none is attached."""

    _enum = PlatformEnum.OOT
    device_name = "tpu"
    device_type = "tpu"
    dispatch_key = "PrivateUse1"
    ray_device_key = "TPU"
    dist_backend = "gloo"
    device_control_env_var = "TPU_VISIBLE_CHIPS"
    simple_compile_backend = "eager"  # only used by upstream for small helpers of the sampler
    supported_quantization: list[str] = []

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """What ``--dtype auto`` may choose: the model's own dtype if listed, else the first.

        On XLA:CPU only float32: 16-bit matmuls of small batches are several times slower there.  An
        explicit ``--dtype`` is honoured all the same.
        """
        if client.tpu_attached():
            return [torch.bfloat16, torch.float32, torch.float16]
        return [torch.float32]

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return client.kind() if client.tpu_attached() else "XLA on the CPU"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return client.memory_info(device_id)[1]

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        """Every dtype of a model runs; :func:`_say_dtype` warns of slow ones."""

    @classmethod
    def get_device_capability(cls, device_id: int = 0):
        return None

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        torch.tpu.set_device(device)

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        torch.tpu.manual_seed_all(seed)

    @classmethod
    def inference_mode(cls):
        return torch.no_grad()

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def import_kernels(cls) -> None:
        """vLLM is built without native kernels here."""

    @classmethod
    def import_ir_kernels(cls) -> None:
        """The native (PyTorch) form of each IR operator is the one to trace."""

    @classmethod
    def opaque_attention_op(cls) -> bool:
        return False

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        return True

    @classmethod
    def support_static_graph_mode(cls) -> bool:
        return False

    @classmethod
    def check_runner_kv_caches_multi_layer(cls) -> None:
        """Several layers per name are fine: caches are bound by layer name."""

    @classmethod
    def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None) -> str:
        if attn_selector_config.use_mla:
            raise NotImplementedError(
                "multi-head latent attention (MLA) is not supported on tpu yet; serve a model with ordinary attention"
            )
        if attn_selector_config.use_sparse:
            raise NotImplementedError("sparse attention is not supported on tpu yet")
        return "systolic.vllm.attention.PagedAttentionBackend"

    @classmethod
    def get_punica_wrapper(cls) -> str:
        raise NotImplementedError("LoRA is not supported on tpu yet; start without --enable-lora")

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config) -> None:
        from vllm.config import CompilationMode, CUDAGraphMode

        compilation = vllm_config.compilation_config
        compilation.mode = CompilationMode.NONE  # this plugin compiles the model itself, whole
        compilation.cudagraph_mode = CUDAGraphMode.NONE

    @classmethod
    def check_and_update_config(cls, vllm_config) -> None:
        from vllm.config import CompilationMode, CUDAGraphMode

        parallel = vllm_config.parallel_config
        _refuse(vllm_config)
        if parallel.worker_cls == "auto":
            parallel.worker_cls = "systolic.vllm.worker.TpuWorker"
        parallel.disable_custom_all_reduce = True

        compilation = vllm_config.compilation_config
        compilation.mode = CompilationMode.NONE
        compilation.cudagraph_mode = CUDAGraphMode.NONE
        compilation.cudagraph_capture_sizes = []
        compilation.max_cudagraph_capture_size = 0
        compilation.custom_ops = ["none"]
        compilation.ir_enable_torch_wrap = False

        cache = vllm_config.cache_config
        if not cache.user_specified_block_size:
            cache.block_size = 16
        model = vllm_config.model_config
        metrics.share_with_children()
        if model is not None:
            _say_dtype(model)
        _apply_settings(vllm_config)


def _say_dtype(model) -> None:
    if client.tpu_attached():
        return
    if model.dtype == torch.float32:
        logger.info("dtype float32: without a TPU, 16-bit matmuls of small batches are several times slower on XLA:CPU")
    else:
        logger.warning("dtype %s is several times slower than float32 on XLA:CPU; prefer --dtype float32", model.dtype)


def _refuse(vllm_config) -> None:
    """Raise for options that this plugin cannot honour, instead of ignoring them."""
    parallel = vllm_config.parallel_config
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        value = getattr(parallel, name)
        if value != 1:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} {value} is not supported on tpu yet; use {option} 1")
    if vllm_config.lora_config is not None:
        raise ValueError("LoRA is not supported on tpu yet; start without --enable-lora")
    if vllm_config.speculative_config is not None:
        raise ValueError("speculative decoding is not supported on tpu yet; start without --speculative-config")
    model = vllm_config.model_config
    if model is not None and model.quantization is not None:
        raise ValueError(
            f"quantization {model.quantization!r} is not supported on tpu yet; serve the unquantized weights"
        )
    cache = vllm_config.cache_config
    if cache.cache_dtype not in ("auto", "float32"):
        raise ValueError(f"--kv-cache-dtype {cache.cache_dtype} is not supported on tpu yet; use auto")


def _apply_settings(vllm_config) -> None:
    from ..settings import apply

    extra = getattr(vllm_config, "additional_config", None) or {}
    if isinstance(extra, dict) and "systolic" in extra:
        apply(extra["systolic"], "--additional-config")
