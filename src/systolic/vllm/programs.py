"""The model as compiled programs: one trace, one executable per token bucket.

The traced function is the whole step of the model: it replaces placeholders by tokens that the
previous step sampled (they are still on the device under async scheduling), runs upstream's model
definition, and updates the paged caches in place.  A second traced function computes logits for the
rows that will be sampled.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.utils.stateless import _reparametrize_module
from vllm.forward_context import set_forward_context

from ..compile.trace import trace
from ..device import client
from .attention import PagedMetadata


def visible_work(example: torch.Tensor) -> torch.Tensor:
    """An int32 zero that takes a few thousand operations to compute from ``example`` (any tensor with elements).

    XLA:CPU runs a program that it estimates below 1,000 operations on the calling thread, and its estimate
    does not see custom calls: without this a step of the model would block the host until it is done.
    """
    angles = torch.arange(4096, dtype=torch.float32, device=example.device) + example.reshape(-1)[:1].float()
    return angles.sin().square().sum().clamp(max=0).to(torch.int32)


@dataclass
class StepInputs:
    """Device inputs of one step; T tokens (a bucket), S = max_num_reqs, one table and slot mapping a cache group.

    input_ids: int32 [T]; positions: int64 [T]; previous: int32 [S], tokens sampled by the last step;
    previous_index: int32 [T], row of ``previous`` to take the token from, or -1; seq_lens: int32 [S];
    query_start_loc: int32 [S + 1]; num_seqs: int32 [1]; rows: int64 [S], tokens whose hidden states are wanted
    for sampling; block_tables: int32 [S, pages] each; slot_mappings: int64 [T] each, -1 for padding.
    """

    input_ids: torch.Tensor
    positions: torch.Tensor
    previous: torch.Tensor
    previous_index: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    num_seqs: torch.Tensor
    rows: torch.Tensor
    block_tables: list[torch.Tensor]
    slot_mappings: list[torch.Tensor]

    def flat(self) -> list[torch.Tensor]:
        return [self.input_ids, self.positions, self.previous, self.previous_index, self.seq_lens,
                self.query_start_loc, self.num_seqs, self.rows, *self.block_tables, *self.slot_mappings]  # fmt: skip

    @classmethod
    def from_flat(cls, tensors, groups: int) -> "StepInputs":
        return cls(*tensors[:8], list(tensors[8 : 8 + groups]), list(tensors[8 + groups :]))

    def token_arguments(self) -> list[int]:
        """Positions in :meth:`flat` of the arguments whose first dimension is T."""
        groups = len(self.block_tables)
        return [0, 1, 3, *range(8 + groups, 8 + 2 * groups)]


class ModelProgram:
    """Runs a vLLM model as compiled programs, or operator by operator with ``eager=True``.

    Args:
        layer_groups: KV cache group number of each attention layer name.
        caches: paged cache of each attention layer name; layers of different groups may share one.
    """

    def __init__(self, model, vllm_config, caches: dict[str, torch.Tensor], layer_groups: dict[str, int], eager: bool):
        self.model = model
        self.vllm_config = vllm_config
        self.layer_groups = layer_groups
        self.eager = eager
        self.layers = vllm_config.compilation_config.static_forward_context
        distinct = {id(cache): cache for cache in caches.values()}
        self.caches = list(distinct.values())
        self.cache_index = {name: list(distinct).index(id(cache)) for name, cache in caches.items()}
        self.weights = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        self._step = None
        self._logits = None
        self._compute_logits = model.compute_logits

    def metadata(self, inputs: StepInputs) -> dict[str, PagedMetadata]:
        """Attention metadata of every layer, from a step's inputs."""
        groups = [
            PagedMetadata(table, inputs.seq_lens, inputs.query_start_loc, slots, inputs.num_seqs)
            for table, slots in zip(inputs.block_tables, inputs.slot_mappings)
        ]
        return {name: groups[group] for name, group in self.layer_groups.items()}

    def _forward(self, inputs: StepInputs) -> tuple[torch.Tensor, torch.Tensor]:
        rows = inputs.previous_index.clamp(min=0)
        ids = torch.where(inputs.previous_index >= 0, inputs.previous[rows], inputs.input_ids)
        if not self.eager and client.is_cpu():
            ids = ids + visible_work(inputs.positions)
        tokens = inputs.input_ids.shape[0]
        context = set_forward_context(
            self.metadata(inputs), self.vllm_config, num_tokens=int(tokens) if isinstance(tokens, int) else 2
        )
        with context:
            hidden = self.model(
                input_ids=ids, positions=inputs.positions, intermediate_tensors=None, inputs_embeds=None
            )
        return hidden, hidden[inputs.rows]

    def step(self, inputs: StepInputs) -> tuple[torch.Tensor, torch.Tensor]:
        """(hidden states [T, hidden], those of ``inputs.rows`` [S, hidden]); the caches are updated in place."""
        if self.eager:
            return self._forward(inputs)
        if self._step is None:
            self._step = self._trace_step(inputs)
        hidden, selected = self._step.call([*self.weights.values(), *self.caches, *inputs.flat()])
        return hidden, selected

    def prepare(self, inputs: StepInputs) -> None:
        """Build the executable for one token bucket without running it."""
        self._step.prepare([*self.weights.values(), *self.caches, *inputs.flat()])

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [R, vocabulary] of hidden states [R, hidden]."""
        if self.eager:
            return self._compute_logits(hidden)
        if self._logits is None:
            self._logits = self._trace_logits(hidden)
        return self._logits.call([*self.weights.values(), hidden])[0]

    def trace(self, inputs: StepInputs, hidden_size: int, dtype: torch.dtype) -> None:
        """Trace both functions now, on inputs with T >= 2."""
        if self.eager:
            return
        self._step = self._trace_step(inputs)
        self._logits = self._trace_logits(torch.zeros(2, hidden_size, dtype=dtype, device=inputs.input_ids.device))

    def _trace_step(self, inputs: StepInputs):
        names = list(self.weights)
        groups = len(inputs.block_tables)
        weights, caches = len(names), len(self.caches)

        def function(*tensors):
            given = dict(zip(names, tensors[:weights]))
            previous = {name: self.layers[name].kv_cache for name in self.cache_index}
            for name, index in self.cache_index.items():
                self.layers[name].kv_cache = tensors[weights + index]
            try:
                with _reparametrize_module(self.model, given, tie_weights=True):
                    return self._forward(StepInputs.from_flat(tensors[weights + caches :], groups))
            finally:
                for name, cache in previous.items():
                    self.layers[name].kv_cache = cache

        first = weights + caches
        dynamic = {first + position: (0,) for position in inputs.token_arguments()}
        return trace(function, [*self.weights.values(), *self.caches, *inputs.flat()], dynamic, "model")

    def _trace_logits(self, hidden: torch.Tensor):
        names = list(self.weights)

        def function(*tensors):
            hidden = tensors[-1]
            if client.is_cpu():
                hidden = hidden + visible_work(hidden)
            with _reparametrize_module(self.model, dict(zip(names, tensors[:-1])), tie_weights=True):
                return self._compute_logits(hidden)

        return trace(function, [*self.weights.values(), hidden], {len(names): (0,)}, "logits")
