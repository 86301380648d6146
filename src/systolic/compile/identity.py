"""What tells one traced graph from another."""

from __future__ import annotations

import hashlib

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, GraphModule

from .custom import version_of
from .higher_order import attribute


def digest(module, graph: Graph, results: str) -> str | None:
    """Identity of a traced computation: its text, the bytes of its constants, and the graphs that it runs.

    ``results`` says what the graph's outputs are for: the text alone does not.

    None if it has a custom operator without a version: nothing then tells what it computes.
    """
    found = hashlib.sha256(f"{results}\n".encode())
    with unset_fake_temporarily():  # constants are real tensors, also while others are traced
        return found.hexdigest() if _add(found, module, graph) else None


def _add(found, module, graph: Graph) -> bool:
    for node in graph.nodes:
        version = version_of(node.target)
        if version is None:
            return False
        found.update(f"{node.name}|{node.op}|{node.target}{version}|{node.args}|{node.kwargs}\n".encode())
        value = attribute(module, node.target) if node.op == "get_attr" else None
        if isinstance(value, torch.Tensor):
            found.update(value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, GraphModule):
            if not _add(found, value, value.graph):
                return False
            found.update(b"end\n")
    return True
