"""A custom logits processor for the tests: every token of a request becomes the one that it names."""

from __future__ import annotations

import torch
from vllm.exceptions import VLLMValidationError
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates


class ForcedToken(LogitsProcessor):
    """Reads `forced_token` from `vllm_xargs`."""

    def __init__(self, vllm_config, device, is_pin_memory):
        self.forced: dict[int, int] = {}

    @classmethod
    def validate_params(cls, sampling_params) -> None:
        token = (sampling_params.extra_args or {}).get("forced_token")
        if token is not None and (not isinstance(token, int) or token < 0):
            raise VLLMValidationError(f"forced_token must be a token id, got {token!r}")

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update) -> None:
        process_dict_updates(self.forced, batch_update, self.wanted)

    @staticmethod
    def wanted(params, prompt, output) -> int | None:
        return (params.extra_args or {}).get("forced_token")

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if self.forced:
            # One masked_fill_ of all rows is what the engine itself runs, so nothing new is compiled.
            blocked = torch.zeros(logits.shape, dtype=torch.bool)
            for row, token in self.forced.items():
                blocked[row] = True
                blocked[row, token] = False
            logits.masked_fill_(blocked.to(logits.device), -float("inf"))
        return logits
