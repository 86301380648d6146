"""Printing a tensor: its values are read once, then formatted on the host."""

from __future__ import annotations

import torch


def install() -> None:
    """Format ``tpu`` tensors from a host copy; element by element each value would be a device read."""
    original = torch._tensor_str._tensor_str

    def tensor_str(self, indent):
        return original(self.cpu() if self.device.type == "tpu" and not _is_fake(self) else self, indent)

    torch._tensor_str._tensor_str = tensor_str


def _is_fake(tensor) -> bool:
    from torch._subclasses.fake_tensor import is_fake

    return is_fake(tensor)
