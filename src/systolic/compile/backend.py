"""The Dynamo backend: AOTAutograd's ATen graph becomes one program per concrete signature.

Dynamo and AOTAutograd trace once, with symbolic sizes where the caller allows them.  The traced graph
is kept; each new set of concrete sizes walks it through the operator table under `jax.jit` (no Python
of the model runs again) and compiles one executable.  Inputs that the graph mutates, such as a
KV cache, are donated and their storage cells swapped.
"""

from __future__ import annotations

import functools
import itertools
import warnings

import torch
from torch.fx import GraphModule, Node

from ..device import _C
from ..device.arguments import Inputs, describe, parse
from ..device.build import Entry, assembled, finish, random_key
from ..device.layout import Window
from ..device.outside_dynamo import never_trace
from . import changes, executables, higher_order
from .aliases import find_aliases, take_storage_reads
from .buckets import Buckets, input_symbols
from .edges import Edges, device_indices
from .identity import digest
from .interpreter import Sizes, not_lowered, run
from .passes import keep_transposed_operands, keep_weights_as_stored
from .repeats import find
from .saved_random import keep_states_on_device

_numbers = itertools.count()


def tpu_backend(gm: GraphModule, example_inputs, *, options=None, mode=None, **_):
    """Compile a Dynamo graph.  The one option is ``buckets`` (:mod:`systolic.compile.buckets`).

    Raises:
        ValueError: for an unknown option or mode, or a bad value.
    """
    unknown = sorted(set(options or {}) - {"buckets"})
    if unknown:
        raise ValueError(f"backend 'tpu' knows only the option 'buckets', got {unknown}; leave others out")
    buckets = Buckets.parse(options["buckets"]) if options else None
    if mode not in (None, "default"):
        raise ValueError(f"backend 'tpu' knows no mode {mode!r}; leave mode out")
    _C.ensure_initialized()
    executables.statistics.graphs += 1
    reason = changes.dynamo_reason()
    if reason:
        changes.remember("a function", (reason,), traced=True)
    compiler = functools.partial(compile_graph, sources=changes.source_names(gm.graph), buckets=buckets)
    from functorch.compile import min_cut_rematerialization_partition
    from torch._dynamo.backends.common import aot_autograd

    from ..device.decomposed import graph_table

    return aot_autograd(
        fw_compiler=compiler,
        bw_compiler=functools.partial(compiler, backward=True),
        inference_compiler=functools.partial(compiler, share_results=True),
        decompositions=graph_table(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )(gm, example_inputs)


def graph_is_on_tpu(gm: GraphModule, example_inputs) -> bool:
    """True if any input, parameter or created tensor of a Dynamo graph is on the ``tpu`` device."""
    tensors = [x for x in example_inputs if isinstance(x, torch.Tensor)]
    tensors += list(gm.parameters()) + list(gm.buffers())
    if any(t.device.type == "tpu" for t in tensors):
        return True
    for node in gm.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor) and value.device.type == "tpu":
            return True
    return False


def compile_graph(
    gm: GraphModule, example_inputs, share_results: bool = False, sources: list[str] | None = None,
    buckets: Buckets | None = None, backward: bool = False,
):  # fmt: skip
    """A callable for one ATen graph; executables are made at its first call with each signature.

    A graph with an operator that is not lowered is cut there, and says so; one that spans several devices runs operator
    by operator.  ``share_results``: see
    :func:`systolic.compile.aliases.find_aliases`.  ``sources``: see :class:`CompiledGraph`.
    With ``buckets`` symbolic sizes are rounded up.  Raises CannotPad where that could change results.
    """
    if backward:
        higher_order.refuse_redrawing(gm.graph)
    keep_states_on_device(gm.graph)
    missing = not_lowered(gm.graph)
    if len(device_indices(gm.graph)) > 1:
        graph = None
    elif missing:
        from .cuts import CutGraph

        warnings.warn(
            f"a compiled graph is cut into several programs at {', '.join(missing)}, which cannot be part of one. "
            "Operators that tpu does not have run on the CPU (torch.tpu.fallbacks() counts such calls).",
            stacklevel=2,
        )
        graph = CutGraph(gm)
    elif buckets is not None and input_symbols(gm.graph):
        from .bucketed import BucketedGraph

        graph = BucketedGraph(gm, buckets, sources)
    else:
        graph = CompiledGraph(gm, alias=True, share_results=share_results, sources=sources)

    def call(args):
        if graph is not None:
            return graph.call(args)
        inputs = list(args)
        args.clear()
        return gm.forward(*inputs)

    call._boxed_call = True  # AOTAutograd: `args` is a list that we may empty
    return call


class CompiledGraph:
    """One traced graph and its executables.

    ``call(args)`` takes the flat list of graph inputs (tensors and sizes) and returns the flat outputs.
    With ``alias`` an output that views an input shares its storage; without, it is a copy.  With ``apart`` equal
    layers are compiled once and launched one by one (:mod:`.stages`).  ``sources``: what Dynamo's inputs are called.
    """

    def __init__(
        self, gm: GraphModule, name: str | None = None, alias: bool = False, share_results: bool = False,
        apart: bool = True, sources: list[str] | None = None,
    ):  # fmt: skip
        self.apart = apart
        self.name = name or f"graph{next(_numbers)}"
        self.module = gm
        self.graph = gm.graph
        keep_weights_as_stored(self.graph)
        keep_transposed_operands(self.graph)
        self.placeholders = [n for n in self.graph.nodes if n.op == "placeholder"]
        self.mutations = self._take_mutations()  # placeholder position -> node with its new value
        output = next(n for n in self.graph.nodes if n.op == "output")
        self.outputs = list(output.args[0]) if isinstance(output.args[0], (list, tuple)) else [output.args[0]]
        self.results = [
            o for o in self.outputs if isinstance(o, Node) and isinstance(o.meta.get("val"), torch.Tensor)
        ]
        written = {self.placeholders[i] for i in self.mutations}
        self.aliases = find_aliases(self.results, written, share_results) if alias else {}
        viewed = [a.source for a in self.aliases.values() if a.source.op != "placeholder"]
        self.results = list(dict.fromkeys([*(n for n in self.results if n not in self.aliases), *viewed]))
        output.args = ((*self.results, *self.mutations.values()),)
        self.reads = take_storage_reads(self.graph, self.placeholders, written) if alias else {}
        self.placeholders += self.reads
        if self.reads:
            self.results = list(output.args[0][: len(self.results)])
            self.mutations = dict(zip(self.mutations, output.args[0][len(self.results) :]))
        self.random_nodes = higher_order.count_keys(self.graph)
        # Random operators take their keys in graph order, so a graph with any is walked node by node.
        self.repeats = None if self.random_nodes else find(self.graph)
        self.digest = digest(self.module, self.graph, f"{len(self.results)} results, writes {list(self.mutations)}")
        views = (*self.aliases.values(), *self.reads.values())
        self.needs_sizes = any(view.symbolic for view in views) or any(
            n not in self.aliases and n not in self.results for n in self.outputs
        )
        self.program = _C.Program(self._build)
        self.seen = changes.Seen(changes.input_names(self.placeholders, sources))
        self.edges = Edges(self.placeholders, self.results, self.mutations)
        self.plain = self.results == self.outputs and not self.edges.any and not self.reads

    def _take_mutations(self) -> dict[int, Node]:
        """Remove the ``copy_`` epilogue that AOTAutograd adds for mutated inputs."""
        position = {n: i for i, n in enumerate(self.placeholders)}
        found = {}
        for node in reversed(list(self.graph.nodes)):
            if (
                node.op == "call_function"
                and node.target is torch.ops.aten.copy_.default
                and node.args[0] in position
            ):
                found[position[node.args[0]]] = node.args[1]
                node.replace_all_uses_with(node.args[1])
                self.graph.erase_node(node)
        return dict(sorted(found.items()))

    def prepare(self, args) -> None:
        """Build the executable for these inputs without running it; threads may do so side by side."""
        self.program.prepare(list(args))

    def call(self, args):
        """Run the graph.  ``args`` is consumed, as AOTAutograd's boxed convention wants."""
        arguments = list(args)
        if isinstance(args, list):
            args.clear()
        if self.plain:
            return self.program(arguments)
        given = list(arguments)  # before those on the CPU are moved
        sizes = self._bind(given) if self.needs_sizes else Sizes()
        if self.reads:
            inputs = dict(zip(self.placeholders, given))
            with torch.no_grad():
                arguments += [read.make(inputs[read.source], sizes) for read in self.reads.values()]
        tensors = self.edges.run(self.program, arguments) if self.results or self.mutations else []
        made = dict(zip(self.results, tensors))
        if self.aliases:
            made.update(self._views(made, given, sizes))
        out = []
        for node in self.outputs:
            value = node.meta.get("val") if isinstance(node, Node) else node
            out.append(made[node] if isinstance(value, torch.Tensor) else sizes.concrete(value))
        return out

    def _views(self, made, given, sizes: Sizes) -> dict[Node, torch.Tensor]:
        inputs = dict(zip(self.placeholders, given))
        views = {}
        for node, alias in self.aliases.items():
            if alias.source in inputs:
                with torch.no_grad():  # a view of an input shares its version, which autograd checks
                    views[node] = alias.make(inputs[alias.source], sizes)
            else:
                with torch._C._AutoDispatchBelowAutograd():  # to autograd a new tensor is no view
                    views[node] = alias.make(made[alias.source], sizes)
        return views

    def _bind(self, arguments) -> Sizes:
        sizes = Sizes()
        for node, argument in zip(self.placeholders, arguments):
            value = node.meta.get("val")
            shape = argument.sizes if isinstance(argument, Window) else getattr(argument, "shape", None)
            if isinstance(value, torch.Tensor) and shape is not None:
                for symbolic, concrete in zip(value.shape, shape):
                    sizes.bind(symbolic, concrete)
            elif not isinstance(value, torch.Tensor):
                sizes.bind(value, argument)
        return sizes

    def _build(self, descriptions, index: int, key: bytes) -> Entry:
        inputs = Inputs()
        values = [parse(d, inputs) for d in descriptions]
        identity = None if self.digest is None else ("graph", self.digest, describe(values))
        label, changed = f"{self.name}{self._label(values)}", self.seen.add(values)
        if changed:
            changes.remember(label, changed)
        compiled, (outputs, donates, offsets) = executables.build(
            label, identity, lambda: self._make(values, inputs), index, changed, self.apart
        )
        return Entry(self.name, compiled, inputs.reads(), donates, outputs, offsets)

    def _label(self, values) -> str:
        sizes = [v for v in values if isinstance(v, int)]
        return f"[{','.join(map(str, sizes))}]" if sizes else ""

    def _make(self, values, inputs):
        sizes = self._bind(values)
        metas = [_meta(node.meta["val"], sizes) for node in self.results]
        targets = [None] * len(metas)
        for position in self.mutations:
            window = values[position]
            targets.append(window)
            metas.append(
                torch.empty_strided(window.sizes, window.strides, dtype=_torch_dtype(window), device="meta")
            )
        random = self.random_nodes > 0

        def function(*arrays):
            import jax.numpy as jnp

            buffers, offsets, numbers, state = inputs.split(arrays, random)
            given = [
                inputs.read(v, buffers, offsets) if isinstance(v, Window) else self._plain(v, numbers)
                for v in values
            ]
            states = (state + jnp.array([0, 4 * i], state.dtype) for i in range(self.random_nodes))
            keys = (higher_order.Key(random_key(state), state) for state in states)
            produced = run(self.graph, given, sizes, keys, self.repeats)
            return finish(produced, targets, metas, inputs, buffers, offsets)

        return assembled(function, targets, metas, inputs, self.random_nodes)

    @staticmethod
    def _plain(value, numbers):
        position = getattr(value, "position", None)
        return value if position is None else numbers[position]


never_trace(CompiledGraph._build)  # called by the C++ core at the first run with new sizes


def _torch_dtype(window: Window) -> torch.dtype:
    from ..ops.numerics import tdtype

    return tdtype(window.dtype)


def _meta(value: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    shape = [sizes.concrete(s) for s in value.shape]
    stride = [sizes.concrete(s) for s in value.stride()]
    return torch.empty_strided(shape, stride, dtype=value.dtype, device="meta")
