"""Graphs with operators that no program can hold: those run by themselves, what is between them are programs.

Such are operators without a lowering, and those with a result whose size only the data tells.  What follows the
latter is compiled for the sizes that a call has.
"""

from __future__ import annotations

import operator
from itertools import groupby
from typing import Any, Callable

from torch.fx import Graph, GraphModule, Node

from .backend import CompiledGraph
from .interpreter import not_lowered_in


class CutGraph:
    """A traced graph as a sequence of parts, each a program or operators that run by themselves."""

    def __init__(self, gm: GraphModule):
        nodes = list(gm.graph.nodes)
        self.placeholders = [n for n in nodes if n.op == "placeholder"]
        self.outputs = gm.graph.output_node().args[0]
        calls = [call for n in nodes if n.op == "call_function" and not _takes_result(n) for call in _with_results(n)]
        groups = [(alone, list(group)) for alone, group in groupby(calls, _runs_alone)]
        self.parts = [_Part(gm, group, alone) for alone, group in groups]
        last = {node: position for position, part in enumerate(self.parts) for node in part.inputs}
        kept = {n for n in self.outputs if isinstance(n, Node)}
        self.dead = [[n for n, where in last.items() if where == i and n not in kept] for i in range(len(self.parts))]

    def call(self, args) -> list:
        """As :meth:`CompiledGraph.call`."""
        values: dict[Node, Any] = dict(zip(self.placeholders, args))
        if isinstance(args, list):
            args.clear()
        for part, dead in zip(self.parts, self.dead):
            values.update(zip(part.outputs, part.run([values[n] for n in part.inputs])))
            for node in dead:
                del values[node]
        return [values[n] if isinstance(n, Node) else n for n in self.outputs]


def _takes_result(node: Node) -> bool:
    """The node picks one of the results of an operator that has several."""
    return node.target is operator.getitem and node.args[0].op == "call_function"


def _with_results(node: Node) -> list[Node]:
    """The node, and those that pick its results: they stay together, since only tensors pass between parts."""
    return [node, *(n for user in node.users if _takes_result(user) for n in _with_results(user))]


def _runs_alone(node: Node) -> bool:
    return _runs_alone(node.args[0]) if _takes_result(node) else bool(not_lowered_in(node))


class _Part:
    """Consecutive nodes of a graph as a graph of their own.

    ``inputs`` and ``outputs`` are nodes of the whole graph; ``run(values of inputs)`` returns those of outputs.
    """

    def __init__(self, gm: GraphModule, nodes: list[Node], alone: bool):
        inside = set(nodes)
        used = [n for node in nodes for n in node.all_input_nodes if n not in inside]
        self.inputs = list(dict.fromkeys(n for n in used if n.op != "get_attr"))
        self.outputs = [node for node in nodes if any(user not in inside for user in node.users)]
        graph, copies = Graph(), {}
        for node in self.inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in (*dict.fromkeys(n for n in used if n.op == "get_attr"), *nodes):
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[node] for node in self.outputs))
        module = GraphModule(gm, graph)
        if alone:
            self.run: Callable[[list], Any] = lambda values: module.forward(*values)
        else:
            self.run = CompiledGraph(module, alias=True).call
