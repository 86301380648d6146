"""An exported program: its StableHLO, its weights, and how its inputs and results are arranged."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import os
from dataclasses import dataclass
from typing import Any

import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from .module import Module

# Files of another number are refused.
FORMAT = 1
_numbers = itertools.count()
_STATE = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)


@dataclass
class Program:
    """One program for fixed sizes.

    Attributes:
        module: its StableHLO.
        state: parameters, buffers and constants, the program's first inputs; on the device.
        inputs: (sizes, dtype) of each flat user input; None for one that is no tensor.
        results: for each result of the program: None for a user result, else the position of the flat input that it
            is the new value of (state first, then user inputs).
        constants: user results that are no tensors, by position.
        in_spec, out_spec: how user inputs and results nest.
    """

    module: Module
    state: list[torch.Tensor]
    inputs: list[tuple[tuple[int, ...], torch.dtype] | None]
    results: list[int | None]
    constants: dict[int, Any]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec

    def __post_init__(self) -> None:
        from ..kernels import jax_op

        self._exported = self.module.exported()

        def call(*arrays):
            outs = self._exported.call(*arrays)
            return outs[0] if len(outs) == 1 else tuple(outs)

        count = len(self.state) + sum(spec is not None for spec in self.inputs)
        positional = inspect.Parameter.POSITIONAL_ONLY
        parameters = [inspect.Parameter(f"input{i}", positional) for i in range(count)]
        call.__signature__ = inspect.Signature(parameters)
        name, version = f"systolic_aot::program{next(_numbers)}", hashlib.sha256(self.module.code).hexdigest()
        self._operator = jax_op(name, call, results=len(self.results), version=version)

    def __call__(self, *args, **kwargs):
        """Run the program on ``tpu`` tensors.

        Raises:
            TypeError: inputs that do not nest as those of the export, or of another dtype.
            ValueError: an input of another shape or device.
        """
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self.in_spec:
            raise TypeError(f"inputs nest as {spec}, but the program was exported with {self.in_spec}")
        tensors = []
        for position, (value, expected) in enumerate(zip(flat, self.inputs)):
            if expected is None:
                continue
            _check(position, value, *expected)
            tensors.append(value)
        given = [*self.state, *tensors]
        with torch.no_grad():
            produced = self._operator(*given)
            produced = list(produced) if isinstance(produced, (tuple, list)) else [produced]
            returned = []
            for value, target in zip(produced, self.results):
                if target is None:
                    returned.append(value)
                else:
                    given[target].copy_(value)
        for position, value in sorted(self.constants.items()):
            returned.insert(position, value)
        return pytree.tree_unflatten(returned, self.out_spec)

    def stablehlo(self) -> str:
        """The program's text in the StableHLO dialect of MLIR; inputs are the state, then the user's."""
        return self._exported.mlir_module()

    def save(self, path: str | os.PathLike) -> None:
        """Write the program and its state to one file.  Raises OSError."""
        torch.save(
            {
                "systolic.aot": FORMAT,
                "code": torch.frombuffer(bytearray(self.module.code), dtype=torch.uint8),
                "module": (self.module.version, self.module.platforms, self.module.arguments, self.module.results),
                "state": [t.cpu() for t in self.state],
                "inputs": self.inputs,
                "results": self.results,
                "constants": self.constants,
                "in_spec": pytree.treespec_dumps(self.in_spec),
                "out_spec": pytree.treespec_dumps(self.out_spec),
            },
            path,
        )


def load(path: str | os.PathLike) -> Program:
    """Read what :meth:`Program.save` wrote; its state goes to the current device.  No code in the file is run.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such file, is damaged, or is of another format or too old for this JAX.
    """
    try:
        content = torch.load(path, weights_only=True)
    except OSError:
        raise
    except Exception as error:
        raise ValueError(f"{path} is not a program of systolic.aot, or is damaged: {error}") from None
    found = content.get("systolic.aot") if isinstance(content, dict) else None
    if found is None:
        raise ValueError(f"{path} is not a program of systolic.aot; export it again with systolic.aot.export")
    if found != FORMAT:
        raise ValueError(f"{path} has format {found}, this version reads {FORMAT}; export the program again")
    try:
        return Program(
            Module(content["code"].numpy().tobytes(), *content["module"]), [t.tpu() for t in content["state"]], content["inputs"],
            content["results"], content["constants"], pytree.treespec_loads(content["in_spec"]),
            pytree.treespec_loads(content["out_spec"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} cannot be used with this version: {error}; export the program again") from error


def export(exported: torch.export.ExportedProgram, platforms: tuple[str, ...] | None = None) -> Program:
    """Translate an exported PyTorch program, whose tensors may be on any device.

    Args:
        exported: from ``torch.export.export``, with static shapes and without random operators.
        platforms: what the StableHLO is for, of "cpu" and "tpu"; by default what this process runs on.

    Raises:
        TypeError: ``exported`` is something else.
        ValueError: it has dynamic shapes or random operators.
        NotImplementedError: it has an operator that is not lowered; named in the message.
    """
    import jax

    from ..compile import higher_order
    from ..compile.interpreter import not_lowered, run
    from ..device import _C
    from ..ops.numerics import jdtype

    if not isinstance(exported, torch.export.ExportedProgram):
        raise TypeError(f"expected a torch.export.ExportedProgram, got {type(exported).__name__}")
    _C.ensure_initialized()
    exported = exported.run_decompositions(_decompositions())
    graph, signature = exported.graph, exported.graph_signature
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    for node in placeholders:
        _refuse_dynamic(node)
    missing = not_lowered(graph)
    if missing:
        raise NotImplementedError(f"the program has operators that are not lowered for tpu: {', '.join(missing)}")
    if higher_order.count_keys(graph):
        raise ValueError("the program has random operators; export it in eval mode, or pass random values as inputs")
    tensor = {n.name: isinstance(n.meta["val"], torch.Tensor) for n in placeholders}
    state, inputs = [], []
    for spec, node in zip(signature.input_specs, placeholders):
        if spec.kind in _STATE:
            held = exported.constants if spec.kind is InputKind.CONSTANT_TENSOR else exported.state_dict
            value = held[spec.target] if spec.target in held else exported.constants[spec.target]
            state.append(value.detach().tpu())
        elif spec.kind is InputKind.USER_INPUT:
            value = node.meta["val"]
            inputs.append((tuple(value.shape), value.dtype) if tensor[node.name] else None)
        else:
            raise ValueError(f"the program takes {spec.kind.name} {spec.arg}, which is not supported; export without it")
    names = [n.name for n in placeholders if tensor[n.name]]
    outputs = graph.output_node().args[0]
    specs = signature.output_specs
    kept = [i for i, node in enumerate(outputs) if isinstance(node, torch.fx.Node)]
    results = [_written(specs[i], signature, names) for i in kept]
    first = sum(s.kind is not OutputKind.USER_OUTPUT for s in specs)
    constants = {i - first: node for i, node in enumerate(outputs) if i not in kept}

    def function(*arrays):
        arrays = iter(arrays)
        given = [next(arrays) if tensor[n.name] else n.meta["val"] for n in placeholders]
        produced = run(graph, given)
        return tuple(produced[i] for i in kept)

    shapes = [jax.ShapeDtypeStruct(tuple(n.meta["val"].shape), jdtype(n.meta["val"].dtype))
              for n in placeholders if tensor[n.name]]  # fmt: skip
    with jax.enable_x64(True):
        lowered = jax.export.export(jax.jit(function, keep_unused=True), platforms=platforms)(*shapes)
    in_spec, out_spec = exported.call_spec.in_spec, exported.call_spec.out_spec
    return Program(Module.of(lowered), state, inputs, results, constants, in_spec, out_spec)


def _decompositions() -> dict:
    """PyTorch's decompositions of the operators that have no lowering."""
    from ..device.decomposed import graph_table
    from ..ops import registry

    table = dict(graph_table())
    for op, function in torch.export.default_decompositions().materialize().items():
        schema = op._schema
        if op.namespace == "aten" and registry.find(schema.name.removeprefix("aten::"), schema.overload_name) is None:
            table.setdefault(op, function)
    return table


def _refuse_dynamic(node: torch.fx.Node) -> None:
    value = node.meta["val"]
    if isinstance(value, torch.SymInt) or (isinstance(value, torch.Tensor) and any(type(n) is not int for n in value.shape)):
        shape = list(value.shape) if isinstance(value, torch.Tensor) else value
        raise ValueError(
            f"input {node.name} has the dynamic shape {shape}; export with static shapes (no dynamic_shapes=), "
            "one program for each size"
        )


def _written(spec, signature, names: list[str]) -> int | None:
    """The position of the flat input that a result is the new value of."""
    if spec.kind is OutputKind.USER_OUTPUT:
        return None
    if spec.kind is OutputKind.USER_INPUT_MUTATION:
        return names.index(spec.target)
    if spec.kind is OutputKind.BUFFER_MUTATION:
        return names.index(next(n for n, t in signature.inputs_to_buffers.items() if t == spec.target))
    raise ValueError(f"the program returns {spec.kind.name} {spec.arg}, which is not supported; export without it")


def _check(position: int, value, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    if not isinstance(value, torch.Tensor) or value.dtype != dtype:
        found = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
        raise TypeError(f"input {position} must be a tensor of {dtype}, got {found}")
    if value.device.type != "tpu":
        raise ValueError(f"input {position} is on {value.device}; move it with .to('tpu') first")
    if tuple(value.shape) != sizes:
        raise ValueError(f"input {position} has shape {list(value.shape)}, the program was exported for {list(sizes)}")
