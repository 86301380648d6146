"""Padding the symbolic sizes of a traced graph up to buckets, where the results cannot tell.

``torch.compile(fn, backend="tpu", options={"buckets": [16, 64, 256]})`` compiles one program a bucket for sizes that are
dynamic (``torch._dynamo.mark_dynamic``, ``dynamic=True``, or PyTorch's second trace).
Inputs are padded with zeros at the end of each dimension whose size is a symbol, and results are cut back.  That is
right only if every element inside the true sizes depends on elements inside the true sizes alone, which
:func:`prove` shows operator by operator from :data:`RULES`; anything else is refused.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Callable, Sequence

import torch
from torch.fx import Graph, Node
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten
POWERS_OF_TWO = "powers of two"


class CannotPad(ValueError):
    """A graph has an operator whose results would depend on padding; the message names it."""


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


@dataclass(frozen=True)
class _Use:
    """One operator of a graph, as the rules see it."""

    node: Node
    symbols: set  # those that are padded

    @property
    def name(self) -> str:
        return str(self.node.target)

    def argument(self, name: str, default=None):
        """An argument by its schema name."""
        schema = self.node.target._schema
        for position, argument in enumerate(schema.arguments):
            if argument.name == name:
                if position < len(self.node.args):
                    return self.node.args[position]
                return self.node.kwargs.get(name, argument.default_value if argument.has_default_value() else default)
        return default

    def tensor(self, name: str) -> torch.Tensor:
        value = self.argument(name)
        return value.meta["val"] if isinstance(value, Node) else self.refuse("is not known to leave padding alone")

    def refuse(self, why: str):
        raise CannotPad(
            f"{self.name} {why}, so its results would depend on padding. Leave the option 'buckets' out, or keep "
            f"this operator outside the compiled function{_where(self.node)}"
        )


def _where(node: Node) -> str:
    lines = (node.meta.get("stack_trace") or "").strip().splitlines()[-2:]
    return f" (from {' '.join(line.strip() for line in lines)})" if lines else ""


def padded(value: torch.Tensor) -> list[int]:
    """The dimensions of a fake tensor whose size is symbolic."""
    return [d for d, n in enumerate(value.shape) if _symbolic(n)]


def input_symbols(graph: Graph) -> set:
    """The symbols that are sizes of a graph's inputs."""
    values = [n.meta.get("val") for n in graph.find_nodes(op="placeholder")]
    sizes = [v.shape[d] for v in values if isinstance(v, torch.Tensor) for d in padded(v)]
    return {symbol for size in sizes for symbol in size.node.expr.free_symbols}


def _symbolic(size) -> bool:
    return isinstance(size, torch.SymInt) and not size.node.expr.is_number


def _dims(dims, rank: int) -> list[int]:
    dims = range(rank) if dims is None or dims == [] else dims if isinstance(dims, (list, tuple)) else [dims]
    return [d % max(rank, 1) for d in dims]


def _any(use: _Use) -> None:
    """Each result element comes from the elements at its own place, or the padding is cut with the result."""


def _along(name: str = "dim") -> Callable[[_Use], None]:
    """Elements along some dimensions mix: these must not be padded."""

    def check(use: _Use) -> None:
        value = use.tensor("self")
        if set(_dims(use.argument(name), value.dim())) & set(padded(value)):
            use.refuse("mixes elements along the padded dimension")

    return check


def _product(left: str, right: str) -> Callable[[_Use], None]:
    """Matrix product: the last dimension of ``left`` and the one before the last of ``right`` are summed over."""

    def check(use: _Use) -> None:
        a, b = use.tensor(left), use.tensor(right)
        if a.dim() - 1 in padded(a) or max(b.dim() - 2, 0) in padded(b):
            use.refuse("sums over the padded dimension")

    return check


def _linear(use: _Use) -> None:
    """``linear(input, weight)``: [..., K] and [N, K]."""
    if any(value.dim() - 1 in padded(value) for value in (use.tensor("input"), use.tensor("weight"))):
        use.refuse("sums over the padded dimension")


def _layer_norm(use: _Use) -> None:
    value = use.tensor("input")
    count = len(use.argument("normalized_shape"))
    if set(range(value.dim() - count, value.dim())) & set(padded(value)):
        use.refuse("normalizes over the padded dimension")


def _reshape(use: _Use) -> None:
    """Padded dimensions stay whole, with the same number of elements behind each."""
    source, result = use.tensor("self"), use.node.meta["val"]
    before, after = padded(source), padded(result)
    same = len(before) == len(after) and all(
        str(source.shape[a]) == str(result.shape[b])
        and str(_count(source.shape[a + 1 :])) == str(_count(result.shape[b + 1 :]))
        for a, b in zip(before, after)
    )
    if not same:
        use.refuse("merges or splits the padded dimension")


def _count(sizes):
    total = 1
    for size in sizes:
        total = total * size
    return total


def _slice(use: _Use) -> None:
    value, result, end = use.tensor("self"), use.node.meta["val"], use.argument("end")
    dim = use.argument("dim") % value.dim()
    cut = str(value.shape[dim]) != str(result.shape[dim])
    if cut and (dim in padded(value) or dim in padded(result) or isinstance(end, Node)):
        use.refuse("cuts at, or along, the padded size")


def _select(use: _Use) -> None:
    value, index = use.tensor("self"), use.argument("index")
    if use.argument("dim") % value.dim() in padded(value) and (not isinstance(index, int) or index < 0):
        use.refuse("counts from the end of the padded dimension")


def _cat(use: _Use) -> None:
    values = [n.meta["val"] for n in use.argument("tensors")]
    dim = use.argument("dim") % max(values[0].dim(), 1)
    if any(dim in padded(v) for v in values):
        use.refuse("joins tensors along the padded dimension")


def _rows(use: _Use) -> None:
    """``embedding(weight, indices)``: rows are taken by position, so any index may be padded."""
    if 0 in padded(use.tensor("weight")):
        use.refuse("takes rows of the padded dimension")


def _gather(use: _Use) -> None:
    """``index``, ``index_select``, ``gather``: positions may be padded with zeros, what they point into may not."""
    if padded(use.tensor("self")):
        use.refuse("takes elements of a padded tensor by position")


def _arange(use: _Use) -> None:
    start, step = use.argument("start", 0), use.argument("step", 1)
    if not isinstance(start, int) or step != 1:
        use.refuse("counts with a start or step that depends on the padded size")


# What each operator may do to padded dimensions.  Operators that PyTorch tags as pointwise need no entry; those in
# neither are refused if a tensor of theirs has a padded dimension.
RULES: dict[str, Callable[[_Use], None]] = {
    **dict.fromkeys(
        ["clone", "_to_copy", "detach", "alias", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "where",
         "masked_fill", "full", "zeros", "ones", "empty", "full_like", "zeros_like", "ones_like", "empty_like",
         "new_zeros", "new_ones", "new_full", "new_empty", "scalar_tensor", "lift_fresh_copy", "copy", "stack",
         "convert_element_type", "cumsum", "cumprod"], _any  # the last two look at what comes before only
    ),
    **dict.fromkeys(
        ["sum", "mean", "amax", "amin", "prod", "argmax", "argmin", "max", "min", "any", "all", "var", "std",
         "var_mean", "logsumexp", "_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax", "sort", "topk",
         "linalg_vector_norm", "median", "kthvalue", "logcumsumexp", "split", "unbind"], _along()
    ),
    **dict.fromkeys(["flip", "roll"], _along("dims")),
    "constant_pad_nd": _along("all"),  # no such argument: all of its dimensions
    "mm": _product("self", "mat2"),
    "bmm": _product("self", "mat2"),
    "addmm": _product("mat1", "mat2"),
    "baddbmm": _product("batch1", "batch2"),
    "matmul": _product("self", "other"),
    "linear": _linear,
    "native_layer_norm": _layer_norm,
    "_fused_rms_norm": _layer_norm,
    "view": _reshape,
    "reshape": _reshape,
    "_unsafe_view": _reshape,
    "_reshape_alias": _reshape,
    "slice": _slice,
    "select": _select,
    "cat": _cat,
    "embedding": _rows,
    "index_select": _gather,
    "index": _gather,
    "gather": _gather,
    "arange": _arange,
}  # fmt: skip


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
        use = _Use(node, symbols)
        given = [n.meta.get("val") for n in node.all_input_nodes]
        tensors = results + [v for v in tree_leaves(given) if isinstance(v, torch.Tensor)]
        _refuse_sizes_as_numbers(use)
        if not any(padded(t) for t in tensors):
            continue
        if any(not size.node.expr.is_Symbol for t in tensors for size in t.shape if _symbolic(size)):
            use.refuse("makes a size that is computed from the padded one")
        rule = _rule(node)
        if rule is None:
            use.refuse("is not known to leave padding alone")
        rule(use)


def _rule(node: Node) -> Callable[[_Use], None] | None:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or torch.Tag.nondeterministic_seeded in target.tags:
        return None
    if any(a.alias_info is not None and a.alias_info.is_write for a in target._schema.arguments):
        return None
    if torch.Tag.pointwise in target.tags:
        return _any
    if target.namespace not in ("aten", "prims"):
        return None
    return RULES.get(target._schema.name.split("::")[1])


# Arguments that say which sizes to make; anywhere else a size is a number that results depend on.
_SIZES = ("size", "shape", "end")


def _refuse_sizes_as_numbers(use: _Use) -> None:
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
