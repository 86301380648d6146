"""Results of a graph that are views: made from the tensor that they view at each call, not computed.

AOTAutograd throws away the values of a result that is a view of an input and keeps its sizes, strides and
offset to make the view again, so these must be those of the view.  What a graph saves for its backward pass is
often an input or its transpose: no copy of a parameter is made then.
"""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass, field

import torch
from torch.fx import Graph, Node, map_arg
from torch.utils._pytree import tree_leaves, tree_map

from .interpreter import Sizes

_MAY_COPY = {"aten::reshape", "aten::contiguous", "aten::to", "aten::flatten", "aten::_reshape_alias"}


@dataclass
class Alias:
    """A view of ``source``: the operators on the way to it, none when it is ``source`` itself.

    A step is an operator with the arguments after its first; sizes that only a call tells are symbols.
    """

    source: Node
    steps: list[tuple] = field(default_factory=list)

    @property
    def symbolic(self) -> bool:
        """True if an operator takes a size that only a call tells."""
        return any(isinstance(leaf, torch.SymInt) for leaf in tree_leaves([step[1:] for step in self.steps]))

    def make(self, tensor: torch.Tensor, sizes: Sizes) -> torch.Tensor:
        """The view of the tensor that ``source`` stands for in this call."""
        for operation, arguments, keywords in self.steps:
            tensor = operation(tensor, *tree_map(sizes.concrete, arguments), **tree_map(sizes.concrete, keywords))
        return tensor


def _is_view(node: Node) -> bool:
    target = node.target
    if node.op != "call_function":
        return False
    if target is operator.getitem:
        return _is_view(node.args[0])
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or target._schema.name in _MAY_COPY:
        return False
    returned = target._schema.returns[0].alias_info if target._schema.returns else None
    tensors = [n for n in node.all_input_nodes if not isinstance(n.meta["val"], (torch.SymInt, int))]
    return returned is not None and not returned.is_write and tensors == [node.args[0]]


def _chain(node: Node) -> Alias:
    steps = []
    while _is_view(node):
        steps.append((node.target, *map_arg((node.args[1:], node.kwargs), lambda n: n.meta["val"])))
        node = node.args[0]
    return Alias(node, steps[::-1])


def source_of(node: Node) -> Node:
    """The node that a node is a view of, itself if it is none."""
    return _chain(node).source


def find_aliases(results: list[Node], written: set[Node], share: bool) -> dict[Node, Alias]:
    """The results to make as views.

    AOTAutograd makes results that view one another share their storage where gradients are recorded; where they are
    not, it leaves that to the backend, which ``share`` asks for.

    A view of an input that the graph does not write is made from that input.  Of another tensor only what
    needs the strides of a view is: one with sizes or offsets that are symbols, or one that is larger than what it
    views.  A view of a smaller part is then computed as a tensor of its own, which does not keep the rest alive.
    """
    found = {}
    chains = {node: _chain(node) for node in results}
    shown = Counter(alias.source for alias in chains.values())
    for node, alias in chains.items():
        if alias.source.op == "placeholder" and alias.source not in written:
            found[node] = alias
        elif alias.steps and alias.source.op == "call_function":
            shared = share and shown[alias.source] > 1 and _owns_memory(alias.source)
            if shared or _needs_strides(alias):
                found[node] = alias
    return found


def _owns_memory(source: Node) -> bool:
    return _is_dense(source) and not source.meta["val"].is_conj() and not source.meta["val"].is_neg()


def take_storage_reads(graph: Graph, placeholders: list[Node], written: set[Node]) -> dict[Node, Alias]:
    """Make each ``as_strided`` of an input a further input, which is returned with the view to pass for it.

    The operator reads the storage behind an input, of which the input's own elements may be a part only.
    """
    found = {}
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten.as_strided.default or not node.users:
            continue
        alias = _chain(node)
        if alias.source.op != "placeholder" or alias.source in written:
            continue
        with graph.inserting_after((placeholders + list(found))[-1]):
            added = graph.placeholder(f"{node.name}_read")
        added.meta = dict(node.meta)
        node.replace_all_uses_with(added)
        found[added] = alias
    if found:
        graph.eliminate_dead_code()
    return found


def _needs_strides(alias: Alias) -> bool:
    if any(step[0] is torch.ops.aten.as_strided.default for step in alias.steps):
        return False
    if not _is_dense(alias.source):
        return False
    return alias.symbolic or any(step[0] is torch.ops.aten.expand.default for step in alias.steps)


def _is_dense(node: Node) -> bool:
    """The node's strides are those of a dense tensor in some order of dimensions, whatever the symbols are."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return False
    step = 1
    left = [(n, s) for n, s in zip(value.shape, value.stride()) if str(n) != "1"]
    while left:
        position = next((i for i, (_, s) in enumerate(left) if str(s) == str(step)), None)
        if position is None:
            return False
        step = step * left.pop(position)[0]
    return True
