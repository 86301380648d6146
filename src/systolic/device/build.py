"""From one call of an operator to a program: what the C++ core asks for when a key is new."""

from __future__ import annotations

import functools
import keyword
import math
from dataclasses import dataclass
from typing import Any, Callable

import torch

from ..compile import changes, executables
from ..ops import registry
from ..ops.numerics import jdtype, tdtype
from . import layout, refusals
from .arguments import Inputs, bind, describe, host_error, on_meta, parse, to_jax
from .layout import Window

# Batch norm updates its running statistics in training only, whether its schema marks them as written or not;
# the functional form's last results are their new values.
_RUNNING = {"native_batch_norm": ("running_mean", "running_var"),
            "_native_batch_norm_legit": ("running_mean", "running_var")}  # fmt: skip
_RUNNING_FORM = "_native_batch_norm_legit_functional"

UNDEFINED = -2  # as in csrc/program.h


@dataclass
class Output:
    """One result of a program: a new tensor (cell -1), the new array of a cell, or none (UNDEFINED)."""

    cell: int
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    stored_dtype: torch.dtype
    stored_shape: tuple[int, ...]


@dataclass
class Recipe:
    """How the program of one call is made: its name, what identifies it on disk, and ``make`` of executables.build."""

    label: str
    identity: Any
    make: Callable[[], tuple]
    index: int

    @functools.cached_property
    def function(self):
        """The program, traced, as a JAX function of its inputs; returns a list.  Raises what lowering raises."""
        import jax
        from jax.extend.core import jaxpr_as_fun

        function, specs, _, _ = self.make()
        with jax.enable_x64(True):
            traced = jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in specs))
        return jaxpr_as_fun(traced)


@dataclass
class Entry:
    """What the C++ core keeps for one key.  ``callable`` is None while the call was only recorded."""

    name: str  # for profiles
    callable: Any
    reads: list[bool]
    donates: list[bool]
    outputs: list[Output]
    random_offsets: int = 0
    recipe: Recipe | None = None

    def compiled(self):
        """The executable, compiled now if it is not there."""
        if self.callable is None:
            recipe = self.recipe
            self.callable, _ = executables.build(recipe.label, recipe.identity, recipe.make, recipe.index)
        return self.callable


@functools.cache
def operator_facts(name: str, overload: str):
    """(schema, OpOverload, names of written arguments, names of out= arguments)."""
    packet = getattr(torch.ops.aten, name.removeprefix("aten::"))
    op = getattr(packet, overload or "default")
    schema = op._schema
    written = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    outs = [a.name for a in schema.arguments if a.is_out]
    return schema, op, written, outs


def build_operator(name: str, overload: str, descriptions, index: int, key: bytes, now: bool = True) -> Entry | list:
    """The program for one call of ``name.overload`` (see :mod:`systolic.ops.registry`), compiled if ``now``.

    Where an ``out=`` argument does not have its result's sizes, nothing is compiled: the answer is then a
    list of (argument position, sizes) to resize before the call is made again.  Raises what PyTorch's own
    CPU or meta kernel raises for bad arguments.
    """
    schema, op, written, outs = operator_facts(name, overload)
    inputs = Inputs()
    values = {a.name: parse(d, inputs) for a, d in zip(schema.arguments, descriptions)}

    # Shape and dtype errors come from PyTorch itself, before anything is looked up or compiled.
    results = _meta_results(schema, op, values)
    resizes = _out_resizes(schema, values, results)
    if resizes:
        return resizes
    short = name.removeprefix("aten::")
    label = f"aten.{short}.{overload or 'default'}"
    identity = (
        label,
        [(k, describe(v)) for k, v in values.items()],
        [r if r is None else (tuple(r.shape), r.stride(), r.dtype) for r in results],
    )

    def make():
        return _make(short, overload, op, schema, values, results, written, outs, inputs)

    recipe = Recipe(label, identity, make, index)
    try:
        if now:
            changed = _seen(name, overload).add(list(values.values()))
            compiled, entry_plan = executables.build(label, identity, make, index, changed)
        else:
            recipe.function  # a call that cannot be lowered fails here, at its own line
            compiled, entry_plan = None, make()[3]
    except executables.CompilationForbidden:
        raise
    except Exception as error:
        raise host_error(schema, op, values) or error from None
    outputs, donates, offsets = entry_plan
    return Entry(label.removesuffix(".default"), compiled, inputs.reads(), donates, outputs, offsets, recipe)


@functools.cache
def _seen(name: str, overload: str) -> changes.Seen:
    """The calls of an operator that had a program compiled."""
    return changes.Seen([a.name for a in operator_facts(name, overload)[0].arguments])


def _meta_results(schema, op, values):
    """Meta tensors of the results: new ones, and for written arguments their own sizes."""
    arguments, keywords = bind(schema, values, on_meta, "meta")
    refusals.check(schema, op, values)
    try:
        results = op(*arguments, **keywords)
    except Exception as error:
        raise host_error(schema, op, values) or error from None
    refusals.check_promotion(schema, op, values)
    if results is None:
        return _flat(keywords[a.name] if a.kwarg_only else arguments[i] for i, a in enumerate(schema.arguments)
                     if a.alias_info is not None and a.alias_info.is_write)  # fmt: skip
    return [results] if isinstance(results, torch.Tensor) else _flat(results)


def _flat(items) -> list:
    """Tensors and lists of tensors as one list."""
    flat = []
    for item in items:
        flat.extend(item if isinstance(item, (list, tuple)) else [item])
    return flat


def _out_resizes(schema, values, results) -> list[tuple[int, tuple[int, ...]]]:
    outs = [(position, values[a.name]) for position, a in enumerate(schema.arguments) if a.is_out]
    return [
        (position, tuple(result.shape)) for (position, window), result in zip(outs, results)
        if isinstance(window, Window) and result is not None and tuple(result.shape) != window.sizes
    ]  # fmt: skip


def _make(short, overload, op, schema, values, results, written, outs, inputs):
    """(function, input specs, donated positions, plan) for :func:`executables.build`."""
    from .decomposed import decomposed_lowering

    record = registry.find(short, overload)
    random = record is not None and record.rng
    if short in _RUNNING:
        written = [n for n in _RUNNING[short] if isinstance(values.get(n), Window) and values["training"]]
        record = registry.find(_RUNNING_FORM) if written else record
    returns_new = [r for r in schema.returns if r.alias_info is None or not r.alias_info.is_write]
    # Results in order: returned new tensors first, then written arguments that are not returned.
    if returns_new or not schema.returns:
        targets = [None] * len(results) if returns_new else []
        # Some out= forms, such as those of split, return nothing.
        targets += _flat(values[n] for n in written if n not in outs or not schema.returns)
        if not schema.returns:
            results = results[: len(targets)]
        elif written:
            results = results + _flat(on_meta(values[n]) for n in written if n not in outs)
    elif outs:  # what is returned, then what else is written
        others = [n for n in written if n not in outs]
        targets = _flat(values[n] for n in (*outs, *others))
        results = results + _flat(on_meta(values[n]) for n in others)
    else:
        targets = _flat(values[n] for n in written)
        results = results + [on_meta(target) for target in targets[len(results) :]]
    specs = [None if r is None else registry.Spec(tuple(r.shape), jdtype(r.dtype)) for r in results]
    if record is None:
        lowering = decomposed_lowering(op, values, on_meta)
    arguments = {n: v for n, v in values.items() if n not in outs and n != "generator"}

    def function(*arrays):
        buffers, offsets, numbers, state = inputs.split(arrays, random)
        lowered = {n: to_jax(v, inputs, buffers, offsets, numbers) for n, v in arguments.items()}
        if record is not None:
            lowered = {n + "_" if keyword.iskeyword(n) else n: v for n, v in lowered.items()}
            if random:
                lowered["key"] = random_key(state)
            produced = registry.call(record, specs, _drop_defaults(record, lowered))
        else:
            produced = lowering(lowered, specs)
        return finish(produced, targets, results, inputs, buffers, offsets)

    return assembled(function, targets, results, inputs, int(random))


def assembled(function, targets, results, inputs, random_offsets: int):
    """(function, input specs, donated positions, plan) of a program that ends in :func:`finish`.

    ``random_offsets`` is the number of random operators in it.
    """
    plan_outputs = plan(targets, results, inputs)
    donated_cells = _donations(plan_outputs, inputs)
    present = [cell for cell, spec in sorted(inputs.cells.items()) if spec is not None]
    donated = [position for position, cell in enumerate(present) if cell in donated_cells]
    donates = [cell in donated_cells for cell in range(len(inputs.cells))]
    return function, inputs.specs(random_offsets > 0), donated, (plan_outputs, donates, random_offsets)


def _drop_defaults(record, arguments):
    """Leave out arguments that the lowering does not name, if they have no effect on values."""
    accepted = _parameters(record.fn)
    if accepted is None:
        return arguments
    ignored = {"dtype", "layout", "device", "pin_memory", "memory_format", "non_blocking"}
    kept = {}
    for name, value in arguments.items():
        if name in accepted:
            kept[name] = value
        elif name not in ignored and value is not None:
            raise NotImplementedError(
                f"argument {name!r} of {record.name} is not supported on tpu yet (got {value!r})"
            )
    return kept


@functools.cache
def _parameters(function):
    import inspect

    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return None
    return set(parameters)


def random_key(state):
    """The threefry key of a random operator: from the generator's seed and the operator's own offset."""
    import jax
    import jax.numpy as jnp

    seed, offset = state[0], state[1]
    words = jnp.stack([(seed >> 32).astype(jnp.uint32), seed.astype(jnp.uint32)])
    key = jax.random.wrap_key_data(words, impl="threefry2x32")
    key = jax.random.fold_in(key, offset.astype(jnp.uint32))
    return jax.random.key_data(jax.random.fold_in(key, (offset >> 32).astype(jnp.uint32)))


def plan(targets, results, inputs) -> list[Output]:
    """Where each result of :func:`finish` goes and how it is stored, in the same order."""
    created: list[Output] = []
    written: dict[int, Output] = {}
    stored = dict(inputs.cells)
    for target, result in zip(targets, results):
        if result is None:
            created.append(Output(UNDEFINED, torch.bool, (), (), torch.bool, ()))
            continue
        sizes, strides, dtype = tuple(result.shape), tuple(result.stride()), result.dtype
        if target is None:
            order = layout.dense_order(sizes, strides)
            if order is None:
                strides = torch.empty(sizes, device="meta").stride()
                order = tuple(range(len(sizes)))
            shape = tuple(sizes[d] for d in order)
            created.append(Output(-1, dtype, sizes, tuple(strides), dtype, shape))
            continue
        stored[target.cell] = _stored_after_write(target, stored[target.cell])
        kept_dtype, kept_shape = stored[target.cell]
        written[target.cell] = Output(
            target.cell, tdtype(target.dtype), sizes, tuple(strides), tdtype(kept_dtype), tuple(kept_shape)
        )
    return [*(written[cell] for cell in sorted(written)), *created]


def _stored_after_write(target: Window, stored):
    """(dtype, shape) of the storage's array after :func:`layout.write`."""
    dtype = layout.dtype_after_write(target, stored[0] if stored else None)
    elements = target.nbytes // dtype.itemsize
    if stored is None:
        return (dtype, target.sizes if target.whole else (elements,))
    if target.numel == 0:
        return stored
    if target.whole and math.prod(stored[1]) != elements:
        return (dtype, target.sizes)
    return (dtype, stored[1] if math.prod(stored[1]) == elements else (elements,))


def _donations(outputs, inputs) -> set[int]:
    """Cells whose old array may be overwritten: those that get a new one of the same shape and dtype."""
    return {
        o.cell for o in outputs
        if o.cell >= 0 and inputs.cells[o.cell] == (jdtype(o.stored_dtype), tuple(o.stored_shape))
    }  # fmt: skip


def finish(produced, targets, results, inputs, buffers, offsets):
    """Program results from lowered values: written storages first, then new tensors in storage order.

    The written ones come in the order of their inputs: JAX pairs donated inputs with results of equal
    shape in order, and a wrong pairing would copy every one of them.
    """
    created = []
    current, written = dict(buffers), set()
    for value, target, result in zip(produced, targets, results):
        if result is None:
            continue
        if target is None:
            order = layout.dense_order(tuple(result.shape), tuple(result.stride()))
            created.append(value if order is None else value.transpose(order))
            continue
        value = value.astype(target.dtype) if value.dtype != target.dtype else value
        moving = None if target.moving is None else offsets[target.moving]
        current[target.cell] = layout.write(current[target.cell], target, value, moving)
        written.add(target.cell)
    return (*(current[cell] for cell in sorted(written)), *created)
