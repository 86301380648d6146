"""The attention backend: one paged custom operator for prefill, decode and mixtures of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from vllm.v1.attention.backend import (
    AttentionBackend,
    AttentionImpl,
    AttentionMetadataBuilder,
    AttentionType,
    CommonAttentionMetadata,
)
from vllm.v1.kv_cache_interface import KVCacheLayout

from ..kernels.paged_attention import torch_op


@dataclass
class PagedMetadata:
    """What one KV cache group's attention layers need in a step.

    Built on the host by :class:`PagedMetadataBuilder`; inside a program the same fields hold the
    program's inputs.

    block_table: int32 [max_num_reqs, pages]; seq_lens: int32 [max_num_reqs]; query_start_loc: int32
    [max_num_reqs + 1]; slot_mapping: int64 [tokens]; num_seqs: int32 [1], the live sequences.
    """

    block_table: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    slot_mapping: torch.Tensor
    num_seqs: torch.Tensor


class PagedMetadataBuilder(AttentionMetadataBuilder[PagedMetadata]):
    """Keeps upstream's host tensors; the runner pads and uploads them once for all layers."""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> PagedMetadata:
        common = common_attn_metadata
        if common.causal is not True:
            raise NotImplementedError("attention that is not causal is not supported on tpu yet")
        return PagedMetadata(
            common.block_table_tensor, common.seq_lens, common.query_start_loc, common.slot_mapping,
            torch.tensor([common.num_reqs], dtype=torch.int32),
        )  # fmt: skip


class PagedAttentionBackend(AttentionBackend):
    """Attention over the paged cache; the cache is updated inside the same operator."""

    forward_includes_kv_cache_update: bool = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16, torch.float16]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls():
        return PagedAttentionImpl

    @staticmethod
    def get_builder_cls():
        return PagedMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None):
        from vllm.v1.attention.backend import MultipleOf

        return [MultipleOf(8)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.LBHNC,)

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []  # any

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True


class PagedAttentionImpl(AttentionImpl):
    """One layer's attention; see upstream's AttentionImpl for the arguments."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
        **unsupported,
    ) -> None:
        if attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"attention of type {attn_type!r} is not supported on tpu yet; only decoders are")
        if unsupported:
            raise NotImplementedError(f"attention options {sorted(unsupported)} are not supported on tpu yet")
        self.num_heads = num_heads
        self.head_size = head_size
        self.scale = float(scale)
        self.num_kv_heads = num_kv_heads or num_heads
        self.alibi_slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        self.sliding_window = sliding_window or 0
        self.kv_cache_dtype = kv_cache_dtype
        self.logits_soft_cap = logits_soft_cap or 0.0
        self.kv_sharing_target_layer_name = kv_sharing_target_layer_name
        self.sinks = sinks

    def forward(
        self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None
    ):
        """Write ``key``/``value`` into the cache and the attention result into ``output`` ([tokens, heads, dim])."""
        if attn_metadata is None:
            return output.fill_(0)  # a memory profile without a cache
        slots = attn_metadata.slot_mapping
        if self.kv_sharing_target_layer_name is not None:
            slots = torch.full_like(slots, -1)  # the cache belongs to an earlier layer, which wrote it
        alibi = None if self.alibi_slopes is None else self.alibi_slopes.to(query.device)
        result = torch_op.attend(
            query, key, value, kv_cache, attn_metadata.block_table, attn_metadata.seq_lens,
            attn_metadata.query_start_loc, slots, attn_metadata.num_seqs, alibi, self.sinks,
            self.scale, self.sliding_window, self.logits_soft_cap,
        )  # fmt: skip
        return output.copy_(result.view_as(output))
