"""A traced graph that runs at bucket sizes: inputs padded, results cut back.  See :mod:`.buckets`."""

from __future__ import annotations

import sympy
import torch
from torch.fx import GraphModule

from .aliases import source_of
from .backend import CompiledGraph
from .buckets import Buckets, CannotPad, input_symbols, padded, prove
from .interpreter import Sizes


class BucketedGraph:
    """A :class:`CompiledGraph` whose symbolic sizes are rounded up to buckets.

    Raises CannotPad if padding could change a result.
    """

    def __init__(self, gm: GraphModule, buckets: Buckets, sources: list[str] | None):
        prove(gm.graph)
        self.buckets = buckets
        self.graph = CompiledGraph(gm, sources=sources)
        self.symbols = input_symbols(gm.graph)
        for node in self.graph.results:
            source = source_of(node)
            if source.op == "placeholder" and padded(source.meta["val"]):
                raise CannotPad(
                    f"result {node.name} is input {source.name} or a view of it, which padding would copy. Leave the "
                    "option 'buckets' out, or return what is computed from it"
                )

    def call(self, args):
        """As :meth:`CompiledGraph.call`.  Raises ValueError for a size above the largest bucket."""
        given = list(args)
        if isinstance(args, list):
            args.clear()
        true = self.graph._bind(given)
        rounded = Sizes(dict(true.bindings))
        for symbol in self.symbols & true.bindings.keys():
            rounded.bindings[symbol] = sympy.Integer(self.buckets.above(int(true.bindings[symbol])))
        inputs = [self._pad(node.meta["val"], value, rounded) for node, value in zip(self.graph.placeholders, given)]
        return [
            self._cut(getattr(node, "meta", {}).get("val"), value, true)
            for node, value in zip(self.graph.outputs, self.graph.call(inputs))
        ]

    @staticmethod
    def _pad(fake, value, rounded: Sizes):
        if not isinstance(fake, torch.Tensor):
            return rounded.concrete(fake) if isinstance(fake, torch.SymInt) else value
        wanted = [rounded.concrete(n) for n in fake.shape]
        if wanted == list(value.shape):
            return value
        behind = [n for size, now in zip(reversed(wanted), reversed(value.shape)) for n in (0, size - now)]
        return torch.nn.functional.pad(value, behind)

    @staticmethod
    def _cut(fake, value, true: Sizes):
        if not isinstance(fake, torch.Tensor):
            return true.concrete(fake) if isinstance(fake, torch.SymInt) else value
        for dim in padded(fake):
            value = value.narrow(dim, 0, true.concrete(fake.shape[dim]))
        return value.contiguous() if any(padded(fake)) else value  # behind another dimension it is not dense
