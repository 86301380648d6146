"""Tracing a Python function straight to an ATen graph, without Dynamo.

The function runs once on fake tensors.  It must not branch on values or on symbolic sizes in a way
that differs between the sizes it will be used for: no guards are checked later.  Engines use this
for whole models, whose control flow is fixed by their configuration.
"""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from .backend import CompiledGraph


def trace(function, examples: list, dynamic: dict[int, dict[int, int]], name: str) -> CompiledGraph:
    """Trace ``function(*tensors) -> tensor or sequence of tensors`` to a compiled graph.

    Args:
        examples: real tensors that give dtype, device and static sizes (values are not read).
        dynamic: for an argument position, the dimensions with a symbolic size and a label each:
            dimensions with equal labels share one symbol.  Their example sizes must be above 1.
        name: shown in logs and statistics.

    In-place writes to the arguments become donated updates of their storage.
    """
    from ..device import _C, client
    from ..device.decomposed import graph_table

    _C.ensure_initialized()
    shape_env = ShapeEnv(duck_shape=True, specialize_zero_one=True)
    mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
    fakes = []
    for position, tensor in enumerate(examples):
        dims = dynamic.get(position)
        if dims is None:
            fakes.append(mode.from_tensor(tensor, static_shapes=True))
            continue
        sizes = [DimDynamic.DUCK if d in dims else DimDynamic.STATIC for d in range(tensor.dim())]
        context = StatelessSymbolicContext(dynamic_sizes=sizes)
        fakes.append(mode.from_tensor(tensor, symbolic_context=context, source=_source(position)))

    def flat(*arguments):
        result = function(*arguments)
        return [result] if isinstance(result, torch.Tensor) else list(result)

    with mode, torch.no_grad():
        functional = torch.func.functionalize(flat, remove="mutations")
        graph = make_fx(functional, decomposition_table=graph_table(), _allow_non_fake_inputs=True)(*fakes)
    graph.graph.eliminate_dead_code()
    # Engines prepare a step while the last one runs, which many launches would prevent on XLA:CPU.
    return CompiledGraph(graph, name, apart=not client.is_cpu())


def _source(position: int):
    from torch._dynamo.source import ConstantSource

    return ConstantSource(f"argument{position}")
