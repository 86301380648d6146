"""Padding the symbolic sizes of a traced graph up to buckets, where the results cannot tell.

``torch.compile(fn, backend="tpu", options={"buckets": [16, 64, 256]})`` compiles one program a bucket for sizes that are
dynamic (``torch._dynamo.mark_dynamic``, ``dynamic=True``, or PyTorch's second trace).
Inputs are padded with zeros at the end of each dimension whose size is a symbol, and results are cut back.  That is
right only if every element inside the true sizes depends on elements inside the true sizes alone, which
:func:`prove` shows operator by operator from the table of :mod:`.bucket_rules`; anything else is refused.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import torch
from torch.fx import Graph, Node
from torch.utils._pytree import tree_leaves

from .bucket_rules import RULES, CannotPad, Use, any_element, padded, symbolic

__all__ = ["POWERS_OF_TWO", "Buckets", "CannotPad", "input_symbols", "padded", "prove"]

POWERS_OF_TWO = "powers of two"


@dataclass(frozen=True)
class Buckets:
    """The sizes that programs are compiled for: ascending, or every power of two when ``sizes`` is None."""

    sizes: tuple[int, ...] | None

    @classmethod
    def parse(cls, value: Any) -> Buckets:
        """From what the user wrote.  Raises ValueError."""
        if value == POWERS_OF_TWO:
            return cls(None)
        whole = isinstance(value, Sequence) and not isinstance(value, str) and all(type(n) is int for n in value)
        if not whole or not value or min(value) < 1 or list(value) != sorted(set(value)):
            raise ValueError(
                f"buckets must be ascending sizes from 1 such as [16, 64, 256], or {POWERS_OF_TWO!r}; got {value!r}"
            )
        return cls(tuple(value))

    def above(self, size: int) -> int:
        """The smallest bucket that holds ``size``.  Raises ValueError if none does."""
        if self.sizes is None:
            return 1 << max(size - 1, 0).bit_length()
        found = next((n for n in self.sizes if n >= size), None)
        if found is None:
            raise ValueError(f"size {size} is above the largest bucket, {self.sizes[-1]}; add a bucket that holds it")
        return found


def input_symbols(graph: Graph) -> set:
    """The symbols that are sizes of a graph's inputs."""
    values = [n.meta.get("val") for n in graph.find_nodes(op="placeholder")]
    sizes = [v.shape[d] for v in values if isinstance(v, torch.Tensor) for d in padded(v)]
    return {symbol for size in sizes for symbol in size.node.expr.free_symbols}


def _is_multiple(size: torch.SymInt) -> bool:
    """The size is a symbol, or a symbol times a number: the true elements are then in front."""
    factor, rest = size.node.expr.as_coeff_Mul()
    return rest.is_Symbol and factor.is_Integer and factor > 0


def prove(graph: Graph) -> None:
    """Show that padding every symbolic size changes no element inside the true sizes.

    Raises:
        CannotPad: the graph has an operator for which that is not known; named in the message.
    """
    symbols = input_symbols(graph)
    for node in graph.nodes:
        results = [v for v in tree_leaves(node.meta.get("val")) if isinstance(v, torch.Tensor)]
        if node.op != "call_function" or node.target is operator.getitem or not results:
            continue  # what is computed of sizes alone is checked where it is used
        use = Use(node, symbols)
        given = [n.meta.get("val") for n in node.all_input_nodes]
        tensors = results + [v for v in tree_leaves(given) if isinstance(v, torch.Tensor)]
        _refuse_sizes_as_numbers(use)
        if not any(padded(t) for t in tensors):
            continue
        if any(not _is_multiple(size) for t in tensors for size in t.shape if symbolic(size)):
            use.refuse("makes a size that is computed from the padded one")
        rule = _rule(node)
        if rule is None:
            use.refuse("is not known to leave padding alone")
        rule(use)


def _rule(node: Node) -> Callable[[Use], None] | None:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
        return None
    if any(a.alias_info is not None and a.alias_info.is_write for a in target._schema.arguments):
        return None
    if torch.Tag.pointwise in target.tags:
        return any_element
    if target.namespace not in ("aten", "prims"):
        return None
    return RULES.get(target._schema.name.split("::")[1])


# Arguments that say which sizes to make; anywhere else a size is a number that results depend on.
_SIZES = ("size", "shape", "end")


def _refuse_sizes_as_numbers(use: Use) -> None:
    target = use.node.target
    if not isinstance(target, torch._ops.OpOverload):
        names = {"": (use.node.args, use.node.kwargs)}
    else:
        names = {a.name: use.argument(a.name) for a in target._schema.arguments if a.name not in _SIZES}
    for name, value in names.items():
        for leaf in tree_leaves(value):
            number = leaf.meta.get("val") if isinstance(leaf, Node) else leaf
            if isinstance(number, torch.SymInt | torch.SymFloat | torch.SymBool):
                if number.node.expr.free_symbols & use.symbols:
                    use.refuse(f"uses the padded size as a number ({name})")
