"""Operators that have no record of their own but a decomposition in PyTorch.

The decomposition is traced once per key to a graph of operators that do have records, and that graph
is lowered like any compiled graph.
"""

from __future__ import annotations

import functools

import torch

from ..ops import registry


@functools.cache
def _table():
    from torch._decomp import decomposition_table

    return decomposition_table


def _overload(name: str, overload: str):
    return getattr(getattr(torch.ops.aten, name), overload or "default")


def _writes_out(name: str, overload: str) -> bool:
    """Whether an overload (``out``, ``output``, ``grad_input``) is the out= form of the default one."""
    return any(a.is_out for a in _overload(name, overload)._schema.arguments)


@functools.cache
def _available_functional(name: str, overload: str):
    """The functional overload behind an in-place or out= one, if PyTorch decomposes it."""
    for base, over in ((name, overload), (registry.base_name(name), overload), (name, overload.removesuffix("_out")),
                       (name, "default" if _writes_out(name, overload) else overload)):  # fmt: skip
        try:
            op = _overload(base, over if over != "default" else "")
        except AttributeError:
            continue
        if op in _table() and not any(a.is_out or (a.alias_info and a.alias_info.is_write) for a in op._schema.arguments):
            return op
    return None


def decomposable(name: str, overload: str) -> bool:
    """True when a PyTorch decomposition can stand in for a missing record."""
    return _available_functional(name, overload) is not None


@functools.cache
def graph_table():
    """Decompositions used inside graphs: those of operators without a record."""
    table = {}
    for op, function in _table().items():
        if not isinstance(op, torch._ops.OpOverload) or op.namespace != "aten":
            continue
        name, overload = op._schema.name.removeprefix("aten::"), op._schema.overload_name
        if registry.find(name, overload) is None:
            table[op] = function
    return table


def decomposed_lowering(op, values, on_meta):
    """A function ``(arguments by name, specs) -> results`` made from the operator's decomposition."""
    from torch.fx.experimental.proxy_tensor import make_fx

    from ..compile.interpreter import run

    name, overload = op._schema.name.removeprefix("aten::"), op._schema.overload_name
    functional = _available_functional(name, overload)
    if functional is None:
        raise NotImplementedError(f"aten::{name}.{overload} has neither a lowering nor a decomposition on tpu")
    names = [a.name for a in functional._schema.arguments if a.name in values]
    kwarg_only = {a.name for a in functional._schema.arguments if a.kwarg_only}
    flat_names = []  # (name, position in list or None) of each tensor

    def collect(argument, value):
        converted = on_meta(value)
        if isinstance(converted, torch.Tensor):
            flat_names.append((argument, None))
            return converted
        if isinstance(converted, list) and any(isinstance(item, torch.Tensor) for item in converted):
            flat_names.extend((argument, i) for i, item in enumerate(converted) if isinstance(item, torch.Tensor))
        return converted

    metas = {n: collect(n, values[n]) for n in names if n != "generator"}

    def call(*tensors):
        given = {n: list(v) if isinstance(v, list) else v for n, v in metas.items()}
        for (argument, position), tensor in zip(flat_names, tensors):
            if position is None:
                given[argument] = tensor
            else:
                given[argument][position] = tensor
        positional = [given[n] for n in names if n not in kwarg_only and n in given]
        keywords = {n: v for n, v in given.items() if n in kwarg_only and v is not None}
        if "device" in keywords:
            keywords["device"] = torch.device("meta")
        result = _table()[functional](*positional, **keywords)
        if result is NotImplemented:
            raise NotImplementedError(f"aten::{name}.{overload} is not lowered for tpu, nor decomposed for these arguments")
        return [result] if isinstance(result, torch.Tensor) else list(result)

    tensors = [metas[n] if i is None else metas[n][i] for n, i in flat_names]
    graph = make_fx(call, decomposition_table=graph_table(), tracing_mode="fake")(*tensors)

    def lowering(arguments, specs):
        import jax

        flat = [arguments[n] if i is None else arguments[n][i] for n, i in flat_names]
        produced = run(graph.graph, flat)
        return [
            value if value is None or value.dtype == spec.dtype else jax.lax.convert_element_type(value, spec.dtype)
            for value, spec in zip(produced, specs)
        ]

    return lowering
