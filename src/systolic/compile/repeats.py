"""Finding the repeated layers of a traced graph, so that each distinct layer is traced to JAX once.

A deep model's graph is a prefix, the same group of nodes many times over with other weights, and a
suffix.  :func:`find` recovers that structure from the graph alone: two groups are equal only if every
node has the same operator, the same static arguments, the same shapes and the same wiring.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node


@dataclass
class Group:
    """One repetition: its nodes, what it takes from outside (in order of first use), what it gives."""

    nodes: list[Node]
    inputs: list[Node]
    outputs: list[Node]


@dataclass
class Repeats:
    """Equal groups in a graph; all have the same number of nodes, inputs and outputs."""

    groups: list[Group]

    def starts(self) -> dict[Node, Group]:
        """The group that begins at a node."""
        return {group.nodes[0]: group for group in self.groups}


def find(graph: Graph, least: int = 3) -> Repeats | None:
    """The largest run of equal groups with at least ``least`` repetitions, or None."""
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    period = _period(nodes)
    if period is None:
        return None
    start, count = _run(nodes, period)
    if count < least:
        return None
    groups, signature = [], None
    for number in range(count):
        group, described = _group(nodes[start + number * period : start + (number + 1) * period])
        if signature is None or described != signature:
            if len(groups) >= least:
                break
            groups, signature = [], described
        groups.append(group)
    if len(groups) < least or not _share_outputs(groups):
        return None
    return Repeats(groups)


def _period(nodes: list[Node]) -> int | None:
    """Distance between neighbours of the rarest operator that still repeats evenly."""
    counts = Counter(n.target for n in nodes)
    for target, count in sorted(counts.items(), key=lambda item: item[1]):
        if count < 4:
            continue
        where = [i for i, n in enumerate(nodes) if n.target is target]
        gaps = Counter(b - a for a, b in zip(where, where[1:]))
        gap, times = gaps.most_common(1)[0]
        if times >= count // 2 and gap > 1:
            return gap
    return None


def _run(nodes: list[Node], period: int) -> tuple[int, int]:
    """(start, repetitions) of the longest stretch whose operators repeat with ``period``."""
    best, start = (0, 0), None
    for i in range(len(nodes) - period + 1):
        equal = i + period < len(nodes) and nodes[i].target is nodes[i + period].target
        if equal and start is None:
            start = i
        if not equal and start is not None:
            length = i - start + period
            if length // period > best[1]:
                best = (start, length // period)
            start = None
    return best


def _spec(node: Node) -> Any:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(str(s) for s in value.shape))
    if isinstance(value, (list, tuple)):
        return tuple((v.dtype, tuple(str(s) for s in v.shape)) if isinstance(v, torch.Tensor) else None for v in value)
    # A size is not passed into a group but captured: it must be the same node for all of them.
    return ("size", node.name)


def _group(nodes: list[Node]) -> tuple[Group, tuple]:
    inside = {node: i for i, node in enumerate(nodes)}
    inputs: dict[Node, int] = {}

    def describe(argument):
        if isinstance(argument, Node):
            if argument in inside:
                return ("inside", inside[argument])
            spec = _spec(argument)
            if spec[0] == "size":
                return spec
            return ("outside", inputs.setdefault(argument, len(inputs)), spec)
        if isinstance(argument, (list, tuple)):
            return tuple(describe(item) for item in argument)
        return (type(argument).__name__, str(argument))

    described = []
    for node in nodes:
        keywords = tuple((k, describe(v)) for k, v in sorted(node.kwargs.items()))
        described.append((node.target, describe(node.args), keywords, _spec(node) if node.meta.get("val") is not None else None))
    return Group(nodes, list(inputs), []), tuple(described)


def _share_outputs(groups: list[Group]) -> bool:
    """Give every group the same outputs: the positions that any of them has users for outside."""
    wanted: set[int] = set()
    for group in groups:
        inside = set(group.nodes)
        for position, node in enumerate(group.nodes):
            if any(user not in inside for user in node.users):
                value = node.meta.get("val")
                if not isinstance(value, torch.Tensor):
                    return False
                wanted.add(position)
    for group in groups:
        group.outputs = [group.nodes[position] for position in sorted(wanted)]
    return True
