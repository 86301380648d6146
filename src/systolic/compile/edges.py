"""Where a graph meets the host: CPU tensors among its inputs and outputs, and graphs without tpu inputs."""

from __future__ import annotations

import torch
from torch.fx import Graph, Node


def _device(node: Node) -> torch.device | None:
    value = node.meta.get("val")
    return value.device if isinstance(value, torch.Tensor) else None


def device_indices(graph: Graph) -> set[int]:
    """Indices of the tpu devices that a graph's tensors are on."""
    devices = [_device(node) for node in graph.nodes]
    return {d.index or 0 for d in devices if d is not None and d.type == "tpu"}


class Edges:
    """What has to cross between host and device when a graph runs.

    A graph runs on one device as a whole.  CPU inputs are copied there first (a 0-d one travels as a number
    unless the graph writes it), results that belong on the CPU are copied back.
    """

    def __init__(self, placeholders: list[Node], results: list[Node], mutations: dict[int, Node]):
        devices = [_device(node) for node in placeholders]
        self.inputs = [
            i for i, (node, d) in enumerate(zip(placeholders, devices))
            if d is not None and d.type == "cpu" and (node.meta["val"].dim() > 0 or i in mutations)
        ]  # fmt: skip
        self.results = [i for i, node in enumerate(results) if _device(node).type == "cpu"]
        self.written = [i for i in self.inputs if i in mutations]
        has_input = any(d is not None and d.type == "tpu" for d in devices)
        nodes = placeholders or results
        found = device_indices(nodes[0].graph) if nodes and not has_input else set()
        self.index = min(found) if found else None  # the device of a graph that no input places

    @property
    def any(self) -> bool:
        """False when every tensor comes from and stays on one device."""
        return bool(self.inputs or self.results) or self.index is not None

    def run(self, program, arguments: list) -> list[torch.Tensor]:
        """Call ``program(arguments)`` with CPU tensors moved; ``arguments`` is changed."""
        placed = (a.device.index for a in arguments if isinstance(a, torch.Tensor) and a.device.type == "tpu")
        index = next(placed, torch.tpu.current_device()) if self.index is None else self.index
        originals = {i: arguments[i] for i in self.inputs}
        for i in self.inputs:
            arguments[i] = arguments[i].to(f"tpu:{index}")
        with torch.tpu.device(index):
            tensors = program(arguments)
        for i in self.written:
            originals[i].copy_(arguments[i])
        for i in self.results:
            tensors[i] = tensors[i].cpu()
        return tensors
