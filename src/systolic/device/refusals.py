"""Calls that PyTorch's CPU kernels refuse although its meta kernels take them.

They are asked about before a program is made: computing something all the same would hide a mistake.
"""

from __future__ import annotations

import functools

import torch

from ..ops.numerics import tdtype
from .arguments import bind, on_meta, raised_on_host
from .layout import Window

# They give every place the same value, so it does not matter that several elements share one.
_IDEMPOTENT = {"aten::fill_", "aten::zero_"}


def check(schema, op, values) -> None:
    """Raise what the CPU raises for overlapping targets, lossy results and unordered complex numbers."""
    _check_overlap(schema, values)
    _check_complex(schema, op, values)
    _check_empty(schema, op, values)
    wrong = _WRONG.get(schema.name)
    if wrong is not None and wrong(values):
        error = raised_on_host(schema, op, values)
        if error is not None:
            raise error


def _mask_is_not_boolean(values) -> bool:
    return isinstance(values["mask"], Window) and tdtype(values["mask"].dtype) != torch.bool


def _multinomial_dtypes(values) -> bool:
    target = values.get("out")
    return not tdtype(values["self"].dtype).is_floating_point or (
        target is not None and tdtype(target.dtype) != torch.int64
    )


def _padding_is_negative(values) -> bool:
    return any(isinstance(n, int) and n < 0 for n in values["padding"])


# What only the CPU kernel of an operator looks at: then it is asked for its error.
_WRONG = {
    "aten::masked_scatter": _mask_is_not_boolean,
    "aten::masked_scatter_": _mask_is_not_boolean,
    "aten::multinomial": _multinomial_dtypes,
    "aten::convolution": _padding_is_negative,
    "aten::convolution_overrideable": _padding_is_negative,
}


def check_promotion(schema, op, values) -> None:
    """Raise RuntimeError where a written tensor cannot hold the dtype that the operands promote to."""
    form = _new_tensor_form(op)
    if form is None:
        return
    arguments, keywords = bind(form._schema, values, on_meta, "meta")
    try:
        results = form(*arguments, **keywords)
    except Exception:
        return  # the call itself says what is wrong
    targets = [values[a.name] for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    results = results if isinstance(results, tuple) else (results,)
    for result, target in zip(results, targets):
        if not (isinstance(result, torch.Tensor) and isinstance(target, Window)):
            continue
        if not torch.can_cast(result.dtype, tdtype(target.dtype)):
            # Only the CPU kernel knows whether this operator minds.
            error = raised_on_host(schema, op, values)
            if error is not None:
                raise error


@functools.cache
def _new_tensor_form(op):
    """The overload that returns a new tensor and takes the same arguments apart from ``out``, or None."""
    schema = op._schema
    if not any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments):
        return None
    name = schema.name.removeprefix("aten::")
    base = name if any(a.is_out for a in schema.arguments) else name.removesuffix("_")
    packet = getattr(torch.ops.aten, base, None)
    wanted = [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]
    for overload in packet.overloads() if packet is not None else ():
        form = getattr(packet, overload)
        arguments = form._schema.arguments
        if [(a.name, str(a.type)) for a in arguments] == wanted and not any(
            a.alias_info is not None for a in arguments
        ):
            return form
    return None


def _check_overlap(schema, values) -> None:
    if schema.name in _IDEMPOTENT:
        return
    for argument in schema.arguments:
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = values[argument.name]
        for window in value if isinstance(value, list) else [value]:
            if isinstance(window, Window) and any(n > 1 and s == 0 for n, s in zip(window.sizes, window.strides)):
                raise RuntimeError(
                    "unsupported operation: more than one element of the written-to tensor refers to a "
                    "single memory location. Please clone() the tensor before performing the operation."
                )
            if schema.name == "aten::cat":
                _check_apart(value, values["tensors"])


def _check_apart(target: Window, inputs) -> None:
    """Raise where ``cat`` would write over one of its own inputs."""
    for window in inputs:
        if not isinstance(window, Window) or window.cell != target.cell or not window.numel or not target.numel:
            continue
        if window.moving is None and target.moving is None and max(window.offset, target.offset) <= min(
            w.offset + sum((n - 1) * s for n, s in zip(w.sizes, w.strides)) for w in (window, target)
        ):
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to tensor refer to a "
                "single memory location. Please clone() the tensor before performing the operation."
            )


def _check_empty(schema, op, values) -> None:
    """Reductions of nothing that have no result, such as the median."""
    windows = [v for value in values.values() for v in (value if isinstance(value, list) else [value])]
    windows = [w for w in windows if isinstance(w, Window)]
    if len(windows) == 1 and windows[0].numel == 0:
        error = raised_on_host(schema, op, values)
        if isinstance(error, IndexError):
            raise error


def _check_complex(schema, op, values) -> None:
    """Complex numbers have no order: the CPU has no kernels that would need one, meta kernels do not say so."""
    windows = [v for value in values.values() for v in (value if isinstance(value, list) else [value])]
    if not any(isinstance(w, Window) and tdtype(w.dtype).is_complex for w in windows):
        return
    error = raised_on_host(schema, op, values)
    if error is not None and "complex" in str(error).lower():
        raise error
