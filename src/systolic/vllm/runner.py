"""Upstream's V1 runner with a device behind it that runs whole compiled steps.

Input preparation stays on the host, as upstream's CPU runner does it: those tensors change size with
every batch, and a TPU host has to upload them anyway.  What is uploaded is padded to a bucket, so that
the device only ever sees sizes that were compiled in warm-up.
"""

from __future__ import annotations

import contextlib

import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.logger import init_logger
from vllm.model_executor.model_loader import get_model
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.utils import bind_kv_cache

from ..device import huge_pages
from ..kernels.paged_attention import cache_shape
from . import sampling
from .buckets import request_buckets, token_buckets, up
from .programs import ModelProgram, StepInputs

logger = init_logger("vllm.systolic")


@contextlib.contextmanager
def _host_stand_ins():
    """While upstream's ``__init__`` runs: it makes CUDA streams and events that this runner never uses."""

    class Nothing:
        def __init__(self, *args, **kwargs) -> None: ...

        def record(self, *args, **kwargs) -> None: ...

        def synchronize(self, *args, **kwargs) -> None: ...

        def wait_stream(self, *args, **kwargs) -> None: ...

    saved = torch.cuda.Stream, torch.cuda.Event, torch.Event
    torch.cuda.Stream = torch.cuda.Event = torch.Event = Nothing
    try:
        yield
    finally:
        torch.cuda.Stream, torch.cuda.Event, torch.Event = saved


class TpuModelRunner(GPUModelRunner):
    """See the module docstring; :mod:`.overrides` gives the reason of each override."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device):
        with _host_stand_ins():
            super().__init__(vllm_config, torch.device("cpu"))
        self.device = device
        self._alias_host_buffers()
        self.token_buckets = token_buckets(self.max_num_tokens)
        self.request_buckets = request_buckets(self.max_num_reqs)
        self.previous_index = np.full(self.max_num_tokens, -1, np.int32)
        self.rows = torch.zeros(self.max_num_reqs, dtype=torch.int64)
        self.previous_tokens = torch.zeros(self.max_num_reqs, dtype=torch.int32, device=device)
        self.program: ModelProgram | None = None
        self.input_batch.logitsprocs = sampling.build_processors(vllm_config, device, self)
        self.logprob_buckets = sampling.logprob_buckets(self.model_config)
        self._device_metadata = sampling.DeviceMetadata(device, self.logprob_buckets)
        self._tokens = 0
        self.watch = None  # set at the end of warm-up

    def _alias_host_buffers(self) -> None:
        for value in vars(self).values():
            if isinstance(value, CpuGpuBuffer):
                value.gpu = value.cpu
        self._alias_input_batch()

    def _alias_input_batch(self) -> None:
        batch = self.input_batch
        for name, value in list(vars(batch).items()):
            if name.endswith("_cpu_tensor") and isinstance(value, torch.Tensor):
                if isinstance(getattr(batch, name[:-11], None), torch.Tensor):
                    setattr(batch, name[:-11], value)
        for table in batch.block_table.block_tables:
            for value in vars(table).values():
                if isinstance(value, CpuGpuBuffer):
                    value.gpu = value.cpu

    # Loading and memory

    def load_model(self, load_dummy_weights: bool = False) -> None:
        if load_dummy_weights:
            raise ValueError("loading dummy weights into a running server is not supported on tpu")
        self.model = get_model(vllm_config=self.vllm_config)
        huge_pages.collapse(self.model.parameters())
        self._moe_model = None

    def may_reinitialize_input_batch(self, kv_cache_config) -> None:
        """Upstream may build a new input batch here; it must be a host one too."""
        before, self.device = self.device, torch.device("cpu")
        processors = self.input_batch.logitsprocs
        try:
            super().may_reinitialize_input_batch(kv_cache_config)
        finally:
            self.device = before
        self.input_batch.logitsprocs = processors
        self._alias_input_batch()

    def initialize_kv_cache_tensors(self, kv_cache_config, kernel_block_sizes, kv_cache_allocation_context=None):
        """Typed tensors in the shape the attention kernel reads (upstream cuts raw bytes instead).

        Layers of different groups that upstream lays over each other share one tensor: a block belongs to one
        group at a time, and the memory budget counts it once.
        """
        starts = {
            name: tensor.offset + index * tensor.layer_stride
            for tensor in kv_cache_config.kv_cache_tensors
            for index, name in enumerate(tensor.layers)
        }
        caches: dict[str, torch.Tensor] = {}
        placed: dict[tuple, torch.Tensor] = {}
        self.layer_groups: dict[str, int] = {}
        for number, group in enumerate(kv_cache_config.kv_cache_groups):
            for name in group.layer_names:
                spec = group.kv_cache_spec
                spec = getattr(spec, "kv_cache_specs", {}).get(name, spec)
                shape = cache_shape(kv_cache_config.num_blocks, spec.block_size, spec.num_kv_heads, spec.head_size)
                place = (starts[name], shape, spec.dtype)
                if place not in placed:
                    placed[place] = torch.zeros(shape, dtype=spec.dtype, device=self.device)
                caches[name] = placed[place]
                self.layer_groups[name] = number
        for name, target in self.shared_kv_cache_layers.items():
            caches[name] = caches[target]
            self.layer_groups[name] = self.layer_groups[target]
        bind_kv_cache(caches, self.compilation_config.static_forward_context, self.kv_caches, 1)
        own = {name: cache for name, cache in caches.items() if name not in self.shared_kv_cache_layers}
        self.program = ModelProgram(
            self.model, self.vllm_config, own, self.layer_groups, self.model_config.enforce_eager
        )
        self.model.compute_logits = self.program.logits
        return caches

    def _init_kv_zero_meta(self) -> None:
        """Nothing to prepare: :meth:`_zero_block_ids` writes through ordinary tensors."""

    def _zero_block_ids(self, block_ids: list[int]) -> None:
        for cache in self.program.caches:
            for block in block_ids:
                cache[block].zero_()

    def _sync_device(self) -> None:
        torch.tpu.synchronize()

    # A step

    def _prepare_inputs(self, scheduler_output, num_scheduled_tokens):
        rows, spec, count = super()._prepare_inputs(scheduler_output, num_scheduled_tokens)
        self._tokens = scheduler_output.total_num_scheduled_tokens
        self.rows[: rows.shape[0]] = rows
        # The program picks these rows itself: upstream's `hidden_states[logits_indices]` becomes a plain slice.
        return slice(0, up(rows.shape[0], self.request_buckets)), spec, count

    def _prepare_input_ids(self, scheduler_output, num_reqs, total_num_scheduled_tokens, cu_num_tokens) -> None:
        """Say for each token whether the device still holds it as the last step's sample."""
        index = self.previous_index
        index[:total_num_scheduled_tokens] = -1
        if self.input_batch.prev_sampled_token_ids is None:
            return
        previous = self.prev_positions.np[:num_reqs]
        known = previous >= 0
        index[np.asarray(cu_num_tokens)[known] - 1] = previous[known]

    def _upload(self, array) -> torch.Tensor:
        return torch.as_tensor(array).to(self.device)

    def _step_inputs(self, tokens: int, num_reqs: int) -> StepInputs:
        bucket = up(tokens, self.token_buckets)

        def pad(source: np.ndarray, fill, dtype):
            out = np.full(bucket, fill, dtype)
            out[:tokens] = source[:tokens]
            return self._upload(out)

        tables = self.input_batch.block_table.block_tables
        return StepInputs(
            input_ids=pad(self.input_ids.np, 0, np.int32),
            positions=pad(self.positions.numpy(), 0, np.int64),
            previous=self.previous_tokens,
            previous_index=pad(self.previous_index, -1, np.int32),
            seq_lens=self._upload(self.seq_lens),
            query_start_loc=self._upload(self.query_start_loc.cpu),
            num_seqs=self._upload(np.array([num_reqs], np.int32)),
            rows=self._upload(self.rows),
            block_tables=[self._upload(table.block_table.cpu) for table in tables],
            slot_mappings=[pad(table.slot_mapping.np, -1, np.int64) for table in tables],
        )

    def _model_forward(self, input_ids=None, positions=None, intermediate_tensors=None, inputs_embeds=None, **kwargs):
        if inputs_embeds is not None or kwargs:
            raise NotImplementedError("only token ids are supported as model input on tpu")
        self._hidden, selected = self.program.step(self._step_inputs(self._tokens, self.input_batch.num_reqs))
        return selected

    def _sample(self, logits, spec_decode_metadata):
        batch = self.input_batch
        batch.update_async_output_token_ids()
        metadata = self._device_metadata.padded(batch, logits.shape[0])
        output = self.sampler(logits=logits, sampling_metadata=metadata)
        sampled = output.sampled_token_ids
        self.previous_tokens[: sampled.shape[0]].copy_(sampled.view(-1))
        if self.watch is not None:
            self.watch.publish()
        rows = batch.num_reqs
        output.sampled_token_ids = sampled[:rows]
        if output.logprobs_tensors is not None:
            output.logprobs_tensors = LogprobsTensors(*(
                t[:rows] if isinstance(t, torch.Tensor) and t.dim() and t.shape[0] == sampled.shape[0] else t
                for t in output.logprobs_tensors
            ))  # fmt: skip
        return output

    def _get_or_create_async_output_copy_stream(self):
        return None

    def _to_list(self, sampled_token_ids: torch.Tensor) -> list[list[int]]:
        return sampled_token_ids.cpu().tolist()

    def _get_prompt_logprobs_dict(self, hidden_states, num_scheduled_tokens):
        # `hidden_states` are the rows for sampling here; a prompt's logprobs need those of all tokens.
        return sampling.prompt_logprobs(self, self._hidden, num_scheduled_tokens)
