"""What each operator may do to padded dimensions: the table that :mod:`.buckets` proves a graph with.

A padded dimension's true elements are in front, the padding is behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

import torch
from torch.fx import Node


class CannotPad(ValueError):
    """A graph has an operator whose results would depend on padding; the message names it."""


@dataclass(frozen=True)
class Use:
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
    return [d for d, n in enumerate(value.shape) if symbolic(n)]


def symbolic(size) -> bool:
    return isinstance(size, torch.SymInt) and not size.node.expr.is_number


def _dims(dims, rank: int) -> list[int]:
    dims = range(rank) if dims is None or dims == [] else dims if isinstance(dims, (list, tuple)) else [dims]
    return [d % max(rank, 1) for d in dims]


def any_element(use: Use) -> None:
    """Each result element comes from the elements at its own place, or the padding is cut with the result."""


def _along(name: str = "dim") -> Callable[[Use], None]:
    """Elements along some dimensions mix: these must not be padded."""

    def check(use: Use) -> None:
        value = use.tensor("self")
        if set(_dims(use.argument(name), value.dim())) & set(padded(value)):
            use.refuse("mixes elements along the padded dimension")

    return check


def _product(left: str, right: str) -> Callable[[Use], None]:
    """Matrix product: the last dimension of ``left`` and the one before the last of ``right`` are summed over."""

    def check(use: Use) -> None:
        a, b = use.tensor(left), use.tensor(right)
        if a.dim() - 1 in padded(a) or max(b.dim() - 2, 0) in padded(b):
            use.refuse("sums over the padded dimension")

    return check


def _linear(use: Use) -> None:
    """``linear(input, weight)``: [..., K] and [N, K]."""
    if any(value.dim() - 1 in padded(value) for value in (use.tensor("input"), use.tensor("weight"))):
        use.refuse("sums over the padded dimension")


def _layer_norm(use: Use) -> None:
    value = use.tensor("input")
    count = len(use.argument("normalized_shape"))
    if set(range(value.dim() - count, value.dim())) & set(padded(value)):
        use.refuse("normalizes over the padded dimension")


def _reshape(use: Use) -> None:
    """The true elements stay in front: what is before the padded dimension does not change.

    Rows of ``[n, 6, 8]`` are those of ``[6 n, 8]``: the padded ones are the last of both.
    """
    source, result = use.tensor("self"), use.node.meta["val"]
    before, after = padded(source), padded(result)
    if len(before) == len(after) == 1:
        kept = str(_count(source.shape[: before[0]])) == str(_count(result.shape[: after[0]]))
    else:  # of several, each stays whole in its place
        kept = [str(source.shape[d]) for d in before] == [str(result.shape[d]) for d in after] and all(
            str(_count(source.shape[a + 1 :])) == str(_count(result.shape[b + 1 :])) for a, b in zip(before, after)
        )
    if not kept:
        use.refuse("merges or splits the padded dimension")


def _count(sizes):
    total = 1
    for size in sizes:
        total = total * size
    return total


def _slice(use: Use) -> None:
    value, result, end = use.tensor("self"), use.node.meta["val"], use.argument("end")
    dim = use.argument("dim") % value.dim()
    cut = str(value.shape[dim]) != str(result.shape[dim])
    if cut and (dim in padded(value) or dim in padded(result) or isinstance(end, Node)):
        use.refuse("cuts at, or along, the padded size")


def _select(use: Use) -> None:
    value, index = use.tensor("self"), use.argument("index")
    if use.argument("dim") % value.dim() in padded(value) and (not isinstance(index, int) or index < 0):
        use.refuse("counts from the end of the padded dimension")


def _cat(use: Use) -> None:
    values = [n.meta["val"] for n in use.argument("tensors")]
    dim = use.argument("dim") % max(values[0].dim(), 1)
    if any(dim in padded(v) for v in values):
        use.refuse("joins tensors along the padded dimension")


def _rows(use: Use) -> None:
    """``embedding(weight, indices)``: rows are taken by position, so any index may be padded."""
    if 0 in padded(use.tensor("weight")):
        use.refuse("takes rows of the padded dimension")


def _gather(use: Use) -> None:
    """``index``, ``index_select``, ``gather``: positions may be padded with zeros, what they point into may not."""
    if padded(use.tensor("self")):
        use.refuse("takes elements of a padded tensor by position")


def _arange(use: Use) -> None:
    start, step = use.argument("start", 0), use.argument("step", 1)
    if not isinstance(start, int) or step != 1:
        use.refuse("counts with a start or step that depends on the padded size")


# What each operator may do to padded dimensions.  Operators that PyTorch tags as pointwise need no entry; those in
# neither are refused if a tensor of theirs has a padded dimension.
RULES: dict[str, Callable[[Use], None]] = {
    **dict.fromkeys(
        ["clone", "_to_copy", "detach", "alias", "permute", "transpose", "t", "unsqueeze", "squeeze", "expand", "where",
         "masked_fill", "full", "zeros", "ones", "empty", "full_like", "zeros_like", "ones_like", "empty_like",
         "new_zeros", "new_ones", "new_full", "new_empty", "tril", "triu", "scalar_tensor", "lift_fresh_copy", "copy", "stack",
         "convert_element_type", "cumsum", "cumprod"], any_element  # the last two look at what comes before only
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
