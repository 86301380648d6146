"""Mixture-of-experts layers: upstream's routing and weights, with the device's own experts operator."""

from __future__ import annotations

import torch
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod

from ..kernels.experts import ACTIVATIONS
from ..kernels.experts import torch_op  # noqa: F401  defines the operator


class TpuMoEMethod(UnquantizedFusedMoEMethod):
    """Unquantized experts on ``tpu``; upstream leaves this class to out-of-tree platforms."""

    @property
    def is_monolithic(self) -> bool:
        return False  # the router chooses experts first; upstream asks an experts class that is None here

    def process_weights_after_loading(self, layer) -> None:
        """Check what the operator cannot do; the weights stay in the layout they were loaded in."""
        super().process_weights_after_loading(layer)
        name = layer.activation.value
        if name not in ACTIVATIONS:
            raise NotImplementedError(
                f"experts with activation {name!r} are not supported on tpu yet, only {', '.join(sorted(ACTIVATIONS))}"
            )
        if self.moe.has_bias:
            raise NotImplementedError("experts with biases are not supported on tpu yet")
        if getattr(layer, "swiglu_limit", None) is not None:
            raise NotImplementedError("experts with a clamped activation are not supported on tpu yet")

    def apply(self, layer, x, topk_weights, topk_ids, shared_experts=None, shared_experts_input=None) -> torch.Tensor:
        """Routed experts' output [tokens, hidden]; the runner adds what shared experts give."""
        if layer.expert_map is not None:
            raise NotImplementedError("expert parallelism is not supported on tpu yet")
        if layer.apply_router_weight_on_input:
            x, topk_weights = x * topk_weights.to(x.dtype), torch.ones_like(topk_weights)  # k is 1 then
        activation = layer.activation.value
        return torch.ops.systolic.experts(x, layer.w13_weight, layer.w2_weight, topk_ids, topk_weights, activation)


def topk_softmax(topk_weights, topk_indices, token_expert_indices, gating_output, renormalize: bool = False):
    """Softmax over the router's logits [tokens, experts], then the k largest; see upstream's of the same name."""
    return _topk(gating_output.float().softmax(dim=-1), topk_weights, topk_indices, renormalize)


def topk_sigmoid(topk_weights, topk_indices, token_expert_indices, gating_output, renormalize: bool = False):
    """As :func:`topk_softmax`, with a sigmoid for each expert by itself."""
    return _topk(gating_output.float().sigmoid(), topk_weights, topk_indices, renormalize)


def _topk(scores, topk_weights, topk_indices, renormalize: bool):
    weights, indices = scores.topk(topk_weights.shape[-1], dim=-1)
    if renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, indices.to(topk_indices.dtype)


def select_forward(runner):
    """The runner's forward as plain Python, which the trace of the model sees through."""
    from vllm.model_executor.layers.fused_moe.runner import moe_runner

    return moe_runner._moe_forward if runner._shared_experts is None else moe_runner._moe_forward_shared


def apply() -> None:
    """Patch upstream; called once by :mod:`.overrides`."""
    from vllm.model_executor.layers.fused_moe.router import fused_topk_router
    from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner

    UnquantizedFusedMoEMethod.register_oot(TpuMoEMethod)
    fused_topk_router.vllm_topk_softmax = topk_softmax
    fused_topk_router.vllm_topk_sigmoid = topk_sigmoid
    MoERunner._select_forward = select_forward
