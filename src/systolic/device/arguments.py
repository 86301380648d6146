"""The arguments of a call: from the C++ core's descriptions to meta tensors, JAX values and CPU tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from ..ops import registry
from ..ops.numerics import jdtype, tdtype
from . import layout
from .layout import Window

# Above this many elements no CPU tensors are made to ask for an error message.
_SMALL = 1 << 22


@dataclass
class Inputs:
    """The run-time inputs of a program, collected from the C++ core's descriptions of a call."""

    windows: list[Window] = field(default_factory=list)
    cells: dict[int, tuple[Any, tuple[int, ...]] | None] = field(default_factory=dict)  # cell -> stored spec
    numbers: list[Any] = field(default_factory=list)  # NumPy dtype of each run-time number
    moving: int = 0

    def add_window(self, description) -> Window:
        _, cell, stored, dtype, sizes, strides, (how, where), nbytes, lazy = description
        window = Window(
            cell=cell,
            stored_dtype=jdtype(stored[0]) if stored else None,
            stored_shape=tuple(stored[1]) if stored else None,
            dtype=jdtype(dtype),
            sizes=tuple(sizes),
            strides=tuple(strides),
            moving=where if how == "moving" else None,
            offset=where if how == "fixed" else 0,
            nbytes=nbytes,
            conjugate=bool(lazy & 1),
            negative=bool(lazy & 2),
        )
        self.cells[cell] = (window.stored_dtype, window.stored_shape) if stored else None
        self.moving += how == "moving"
        self.windows.append(window)
        return window

    def reads(self) -> list[bool]:
        return [self.cells[cell] is not None for cell in range(len(self.cells))]

    def specs(self, random: bool) -> list[tuple[tuple[int, ...], Any]]:
        """(shape, dtype) of each program input, in the order in which the C++ core passes them."""
        specs = [(spec[1], spec[0]) for _, spec in sorted(self.cells.items()) if spec is not None]
        specs += [((), jdtype(torch.int64))] * self.moving
        specs += [((), dtype) for dtype in self.numbers]
        if random:
            specs.append(((2,), jdtype(torch.uint64)))
        return specs

    def split(self, arrays, random: bool):
        """Name the positional inputs: (buffers by cell, offsets, numbers, random state)."""
        arrays = list(arrays)
        state = arrays.pop() if random else None
        buffers = {cell: None for cell in self.cells}
        present = [cell for cell, spec in sorted(self.cells.items()) if spec is not None]
        for position, cell in enumerate(present):
            buffers[cell] = arrays[position]
        offsets = arrays[len(present) : len(present) + self.moving]
        return buffers, offsets, arrays[len(present) + self.moving :], state

    def read(self, window: Window, buffers, offsets):
        moving = None if window.moving is None else offsets[window.moving]
        return layout.read(buffers[window.cell], window, moving)


_KINDS = {"bool": bool, "int": int, "float": float, "complex": complex}
_KIND_DTYPES = {"bool": torch.bool, "int": torch.int64, "float": torch.float64, "complex": torch.complex128}


@dataclass(frozen=True)
class Number:
    """A run-time number: its position and kind, and the value of the call that is being compiled."""

    position: int
    kind: type
    value: Any


@dataclass(frozen=True)
class HostTensor:
    """A 0-d CPU tensor used beside tpu tensors."""

    position: int
    dtype: torch.dtype
    wrapped: bool
    value: Any


def parse(description, inputs: Inputs):
    """A C++ description as a value: Window, Number, HostTensor, list, or a plain Python object."""
    if isinstance(description, tuple) and description:
        match description[0]:
            case "tensor":
                return inputs.add_window(description)
            case "number":
                _, position, kind, value = description
                inputs.numbers.append(jdtype(_KIND_DTYPES[kind]))
                return Number(position, _KINDS[kind], value)
            case "host":
                _, position, dtype, wrapped, value = description
                inputs.numbers.append(jdtype(dtype))
                return HostTensor(position, dtype, wrapped, value)
    if isinstance(description, list):
        return [parse(item, inputs) for item in description]
    return description


def on_meta(value):
    match value:
        case Window():
            return torch.empty_strided(value.sizes, value.strides, dtype=tdtype(value.dtype), device="meta")
        case Number():
            return value.value
        case HostTensor():
            # A wrapped Python number keeps its weaker claim in type promotion.
            return value.value if value.wrapped else torch.empty((), dtype=value.dtype, device="meta")
        case list():
            return [on_meta(item) for item in value]
    return value


def to_jax(value, inputs: Inputs, buffers, offsets, numbers):
    match value:
        case Window():
            return inputs.read(value, buffers, offsets)
        case Number():
            return registry.Scalar(value.kind, numbers[value.position])
        case HostTensor() if value.wrapped:
            kind = complex if value.dtype.is_complex else float if value.dtype.is_floating_point else int
            return registry.Scalar(bool if value.dtype == torch.bool else kind, numbers[value.position])
        case HostTensor():
            return numbers[value.position]
        case list():
            return [to_jax(item, inputs, buffers, offsets, numbers) for item in value]
    return value


def describe(value):
    """A stable text of a parsed argument for the disk cache; run-time numbers have no value there."""
    match value:
        case Number():
            return f"number({value.kind.__name__})"
        case HostTensor():
            return f"host({value.dtype},{value.wrapped})"
        case list():
            return [describe(item) for item in value]
    return value


def bind(schema, values, convert, device: str):
    """(positional, keyword) arguments of a call of ``schema`` on another device, from parsed values."""
    arguments, keywords = [], {}
    for argument in schema.arguments:
        value = values[argument.name]
        if argument.name == "device":
            value = torch.device(device)
        elif argument.name in ("layout", "pin_memory", "generator"):
            value = None
        converted = convert(value)
        if argument.kwarg_only:
            keywords[argument.name] = converted
        else:
            arguments.append(converted)
    return arguments, keywords


def _on_host(value):
    match value:
        case Window():
            return torch.ones(value.sizes, dtype=tdtype(value.dtype))
        case Number() | HostTensor():
            return value.value
        case list():
            return [_on_host(item) for item in value]
    return value


def host_error(schema, op, values) -> Exception | None:
    """What PyTorch's CPU kernel raises for tensors of these shapes and dtypes, or None if it takes them.

    Asked after a call failed: the CPU's words are the ones that users know.
    """
    error = raised_on_host(schema, op, values)
    return None if isinstance(error, NotImplementedError) else error


def raised_on_host(schema, op, values) -> Exception | None:
    """As :func:`host_error`, with what the CPU has no kernel for."""
    windows = [v for value in values.values() for v in (value if isinstance(value, list) else [value])]
    if sum(w.numel for w in windows if isinstance(w, Window)) > _SMALL:
        return None
    arguments, keywords = bind(schema, values, _on_host, "cpu")
    try:
        op(*arguments, **keywords)
    except Exception as error:
        return error.with_traceback(None)
    return None
