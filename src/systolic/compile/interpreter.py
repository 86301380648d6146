"""Running a graph of ATen operators through the operator table, on JAX values.

The same walk serves every concrete size: symbolic sizes in the graph are replaced by the values that
the caller binds, so a new size costs no trace of the model.
"""

from __future__ import annotations

import keyword
import operator
from typing import Any

import torch
from torch.fx import Graph, Node

from ..ops import registry
from ..ops.numerics import jdtype
from . import custom, higher_order
from .custom import register_custom
from .repeats import Repeats
from .stages import LAYER


class Sizes:
    """Concrete values of symbolic sizes."""

    def __init__(self, bindings: dict[Any, int] | None = None):
        self.bindings = bindings or {}
        self._known: dict[Any, Any] = {}

    def concrete(self, value):
        """A SymInt, SymFloat, SymBool or plain number as a plain number."""
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            expression = value.node.expr
            found = self._known.get(expression)
            if found is None:
                found = expression.xreplace(self.bindings)
                if isinstance(value, torch.SymInt):
                    found = int(found)
                elif isinstance(value, torch.SymFloat):
                    found = float(found)
                else:
                    found = bool(found)
                self._known[expression] = found
            return found
        return value

    def bind(self, symbolic, value: int) -> None:
        """Record that a placeholder's symbolic size has this value."""
        if isinstance(symbolic, torch.SymInt):
            expression = symbolic.node.expr
            if expression.is_Symbol:
                import sympy

                self.bindings[expression] = sympy.Integer(value)


def _spec(value, sizes: Sizes):
    if value is None or not isinstance(value, torch.Tensor):
        return None
    return registry.Spec(tuple(sizes.concrete(s) for s in value.shape), jdtype(value.dtype))


def _specs(value, sizes: Sizes) -> list:
    if isinstance(value, (list, tuple)):
        return [spec for v in value for spec in _specs(v, sizes)]
    return [_spec(value, sizes)]


def _like(structure, results):
    """Flat results in the nesting of lists that the operator returns."""
    remaining = iter(results)

    def take(item):
        return [take(x) for x in item] if isinstance(item, (list, tuple)) else next(remaining)

    return take(structure)


def run(graph: Graph, inputs: list, sizes: Sizes | None = None, keys=None, repeats: Repeats | None = None) -> list:
    """Evaluate a graph.  ``inputs`` go to its placeholders in order; ``keys`` yields a Key for each random node.

    ``repeats`` names equal groups of nodes: JAX then traces one of them and calls it for each.
    Returns the flat list of the graph's outputs (None where the graph returns none).
    """
    sizes = sizes or Sizes()
    # Constants first: their places in the graph may be among the nodes of a group that takes them.
    values: dict[Node, Any] = {
        node: _constant(graph.owning_module, node.target) for node in graph.nodes if node.op == "get_attr"
    }
    remaining = iter(inputs)
    last_use = _last_uses(graph)
    starts = repeats.starts() if repeats else {}
    body = _body(repeats.groups[0], sizes) if repeats else None
    done: set[Node] = set()
    for node in graph.nodes:
        if node in done or node.op == "get_attr":
            pass
        elif node in starts:
            group = starts[node]
            results = body(*(values[n] for n in group.inputs))
            values.update(zip(group.outputs, results))
            done.update(group.nodes)
        elif node.op == "placeholder":
            values[node] = next(remaining)
        elif node.op == "call_function":
            try:
                values[node] = _call(node, values, sizes, keys)
            except Exception as error:
                line = (node.meta.get("stack_trace") or "").strip().splitlines()[-2:]
                where = f" (from {' '.join(s.strip() for s in line)})" if line else ""
                error.add_note(f"while lowering {node.format_node()}{where}")
                raise
        elif node.op == "output":
            return [_lookup(item, values) for item in torch.utils._pytree.tree_leaves(
                node.args[0], is_leaf=lambda x: x is None)]  # fmt: skip
        for dead in last_use.get(node, ()):
            values.pop(dead, None)
    raise RuntimeError("graph has no output node")


def _body(group, sizes: Sizes):
    """A jitted function of a group's inputs that returns its outputs."""
    import jax

    def body(*given):
        values = dict(zip(group.inputs, given))
        for node in group.nodes:
            for size in node.all_input_nodes:  # sizes are captured as plain numbers
                if size in values:
                    continue
                if size.op == "get_attr":  # a graph that the nodes share
                    values[size] = _constant(size.graph.owning_module, size.target)
                elif not isinstance(size.meta.get("val"), torch.Tensor):
                    values[size] = sizes.concrete(size.meta["val"])
            values[node] = _call(node, values, sizes, None)
        return tuple(values[node] for node in group.outputs)

    body.__name__ = LAYER
    return jax.jit(body)


def _last_uses(graph: Graph) -> dict[Node, list[Node]]:
    seen: set[Node] = set()
    uses: dict[Node, list[Node]] = {}
    for node in reversed(graph.nodes):
        for used in node.all_input_nodes:
            if used not in seen:
                seen.add(used)
                uses.setdefault(node, []).append(used)
    return uses


def _constant(module, name: str):
    import jax.numpy as jnp

    value = higher_order.attribute(module, name)
    if isinstance(value, torch.fx.GraphModule):
        return value
    host = value.detach().cpu()
    if host.dtype == torch.bfloat16:
        return jnp.asarray(host.view(torch.int16).numpy().view(jdtype(torch.bfloat16)))
    return jnp.asarray(host.numpy())


def _lookup(item, values):
    if isinstance(item, Node):
        return values[item]
    if isinstance(item, (list, tuple)):
        return type(item)(_lookup(x, values) for x in item)
    return item


def _call(node: Node, values, sizes: Sizes, keys):
    target = node.target
    args = _lookup(list(node.args), values)
    kwargs = {k: _lookup(v, values) for k, v in node.kwargs.items()}
    key = next(keys) if higher_order.takes_key(node) else None
    if isinstance(target, torch._ops.HigherOrderOperator):
        return _call_higher_order(node, _plain(args, sizes), _plain(kwargs, sizes), sizes, key)
    if not isinstance(target, torch._ops.OpOverload):
        if target is operator.getitem:
            return args[0][args[1]]
        result = node.meta.get("val")
        if isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return sizes.concrete(result)
        return target(*args, **kwargs)  # arithmetic on sizes
    if target.namespace == "aten" and target._schema.name.startswith("aten::sym_"):
        return sizes.concrete(node.meta["val"])
    if target in _READS_STORAGE:
        args[0] = _in_storage_order(args[0], node.args[0].meta["val"], sizes)
    return _operate(target, args, kwargs, node.meta.get("val"), sizes, key and key.data)


def _operate(target: torch._ops.OpOverload, args, kwargs, result, sizes: Sizes, key):
    """Lower one operator; ``result`` is the fake tensor (or tensors) that it returns, ``key`` a random one's key."""
    schema = target._schema
    arguments = {}
    for position, argument in enumerate(schema.arguments):
        if position < len(args):
            arguments[argument.name] = args[position]
        elif argument.name in kwargs:
            arguments[argument.name] = kwargs[argument.name]
    arguments = {k: _plain(v, sizes) for k, v in arguments.items()}
    function = custom.find(schema.name)
    if function is not None:
        return function(**arguments)
    name, overload = schema.name.removeprefix("aten::"), schema.overload_name
    record = registry.find(name, overload) if target.namespace == "aten" else None
    if record is None:
        raise NotImplementedError(f"{target} is not lowered for tpu")
    from ..device.build import _drop_defaults

    arguments.pop("generator", None)
    arguments = {n + "_" if keyword.iskeyword(n) else n: v for n, v in arguments.items()}
    if record.rng:
        arguments["key"] = key
    results = registry.call(record, _specs(result, sizes), _drop_defaults(record, arguments))
    return _like(result, results)


def _call_higher_order(node: Node, args, kwargs, sizes: Sizes, key):
    def walk(module, inputs, key=None):
        keys = None if key is None else higher_order.derived_keys(key, higher_order.count_keys(module.graph))
        return run(module.graph, inputs, sizes, keys)

    def operate(target, args, kwargs, result, key):
        return _operate(target, args, kwargs, result, sizes, key)

    call = higher_order.Call(
        tuple(args), kwargs, node.meta.get("val"), key and key.data, key and key.state, walk, operate
    )
    return higher_order.find(node.target)(call)


_READS_STORAGE = (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_copy.default)


def _in_storage_order(value, tensor, sizes: Sizes):
    """A value with its dimensions in the order in which the tensor's storage has them."""
    from ..device.layout import dense_order

    shape, strides = ([sizes.concrete(n) for n in numbers] for numbers in (tensor.shape, tensor.stride()))
    order = dense_order(shape, strides)
    if order is None:
        raise NotImplementedError(
            f"as_strided of a tensor of sizes {shape} and strides {strides} is not supported inside a compiled graph: "
            "its storage holds more than its elements. Take the view outside the compiled function."
        )
    return value.transpose(order)


def not_lowered(graph: Graph) -> list[str]:
    """Names of the operators in a graph, and in those that it runs, that :func:`run` cannot evaluate."""
    return sorted({name for node in graph.nodes for name in not_lowered_in(node)})


def not_lowered_in(node: Node) -> list[str]:
    """:func:`not_lowered` of one node: it has no lowering, or a result whose size only the data tells."""
    target = node.target
    if node.op != "call_function":
        return []
    if isinstance(target, torch._ops.HigherOrderOperator):
        missing = [str(target)] if higher_order.find(target) is None or higher_order.depends_on_data(node) else []
        return missing + [name for module in higher_order.subgraphs(node) for name in not_lowered(module.graph)]
    if node.meta.get("unbacked_bindings"):
        return [str(target)]
    if not isinstance(target, torch._ops.OpOverload) or custom.find(target._schema.name) is not None:
        return []
    name = target._schema.name.removeprefix("aten::")
    known = registry.find(name, target._schema.overload_name) if target.namespace == "aten" else None
    return [] if known is not None or name.startswith("sym_") else [str(target)]


def _plain(value, sizes: Sizes):
    if isinstance(value, dict):
        return {k: _plain(v, sizes) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, sizes) for v in value]
    return sizes.concrete(value)


def _convert_element_type(a, dtype):
    """``prims.convert_element_type``, which Dynamo emits for numbers that are run-time inputs."""
    from ..ops.numerics import cast

    return cast(a, dtype)


register_custom("prims::convert_element_type", _convert_element_type)


def _assert_scalar(self, assert_msg):
    """A condition on sizes: programs are made for the sizes of a call, so it is checked when one is made."""
    if not self:
        raise RuntimeError(assert_msg)
    return None


register_custom("aten::_assert_scalar", _assert_scalar)


def _fma(a, b, c):
    """``a * b + c`` without rounding after the product: what Dynamo makes of in-place addcmul and addcdiv."""
    import jax.numpy as jnp

    if a.dtype != jnp.float32:
        return a * jnp.asarray(b, a.dtype) + c
    a, b, c = (jnp.asarray(x, jnp.float64) for x in (a, b, c))  # the product is exact there
    return (a * b + c).astype(jnp.float32)


register_custom("prims::fma", _fma)
