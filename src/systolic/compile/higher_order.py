"""Operators that take graphs (``torch.cond``, scans, ``flex_attention``): their registry, and random numbers in them.

A lowering is ``function(call: Call) -> results``, registered under the operator's name by :func:`lower`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Iterator, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols
from torch.utils._pytree import tree_leaves

from ..ops import registry


class Key(NamedTuple):
    """What a random node draws: a ``uint32[2]`` key, and the generator's state that it comes from.

    ``state`` is ``uint64[2]`` (seed, offset); None in the graphs that such an operator runs.
    """

    data: Any
    state: Any = None


@dataclass(frozen=True)
class Call:
    """One call of such an operator while a graph is traced to JAX.

    Attributes:
        args: positional arguments; tensors are JAX values, sizes plain numbers, graphs GraphModules.
        kwargs: likewise, by name.
        result: the fake tensors of the results, with symbolic sizes.
        key, state: those of a :class:`Key` if a graph in it takes random numbers, else None.
        walk: ``walk(graph_module, inputs, key) -> flat list of outputs`` runs one of the graphs.
        operate: ``operate(operator, args, kwargs, fake_result, key)`` runs one ATen operator.
    """

    args: tuple
    kwargs: dict[str, Any]
    result: Any
    key: Any
    state: Any
    walk: Callable[..., list]
    operate: Callable[..., Any]


_lowerings: dict[str, Callable[[Call], Any]] = {}


def lower(*names: str):
    """Register the lowering of higher-order operators by name.  A second one for a name is an error."""

    def register(function):
        for name in names:
            if name in _lowerings:
                raise ValueError(f"higher-order operator {name!r} is already lowered by {_lowerings[name]}")
            _lowerings[name] = function
        return function

    return register


def find(target: torch._ops.HigherOrderOperator) -> Callable[[Call], Any] | None:
    """The lowering of an operator, or None."""
    from . import control_flow, flex_attention, saved_random  # noqa: F401  they register theirs

    return _lowerings.get(target.name())


def subgraphs(node: Node) -> list[GraphModule]:
    """The graphs among a node's arguments, in order."""
    arguments = [n for n in tree_leaves((node.args, node.kwargs)) if isinstance(n, Node) and n.op == "get_attr"]
    found = [attribute(node.graph.owning_module, n.target) for n in arguments]
    return [module for module in found if isinstance(module, GraphModule)]


def attribute(module, name: str):
    """What a ``get_attr`` node of a graph of ``module`` stands for."""
    for part in name.split("."):
        module = getattr(module, part)
    return module


def takes_key(node: Node) -> bool:
    """True if the node draws from the generator, itself or in a graph that it runs."""
    if node.op != "call_function":
        return False
    target = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        if target.name() == "run_with_rng_state":
            return False  # it repeats what another one drew
        return target.name() == "run_and_save_rng_state" or any(count_keys(g.graph) for g in subgraphs(node))
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    record = registry.find(target._schema.name.removeprefix("aten::"), target._schema.overload_name)
    return record is not None and record.rng


def count_keys(graph: Graph) -> int:
    """How many keys a walk of the graph takes."""
    return sum(map(takes_key, graph.nodes))


def refuse_redrawing(graph: Graph) -> None:
    """Refuse random numbers that a backward graph would draw anew where the forward pass had others.

    PyTorch's derivatives of ``cond``, ``while_loop`` and ``map`` run the graph again, and give a wrong gradient then.
    Raises NotImplementedError.
    """
    for node in graph.nodes:
        if takes_key(node) and isinstance(node.target, torch._ops.HigherOrderOperator):
            raise NotImplementedError(
                f"the gradient of {node.target} would draw other random numbers than the forward pass did. Draw them "
                "outside, and pass them in"
            )


def depends_on_data(node: Node) -> bool:
    """True if a result is a number, or has a size, that only the data tells."""
    values = [v for v in tree_leaves(node.meta.get("val")) if v is not None]
    sizes = [s for v in values for s in (v.shape if isinstance(v, torch.Tensor) else (v,))]
    return any(has_free_unbacked_symbols(s) for s in sizes)


def derived_keys(key, count: int) -> Iterator[Key]:
    """``count`` keys from the data of one."""
    return (Key(fold_in(key, number)) for number in range(count))


def fold_in(key, number):
    """Another key, ``uint32[2]``, for each ``number``."""
    import jax

    return jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(key, impl="threefry2x32"), number))
