"""Fused mode: operators are recorded, and run as one program when a value is needed.

A value is needed by ``item()``, ``cpu()``, printing, ``synchronize()``, an event, a compiled graph or the end of the
block.  A sequence of operators that was seen before runs its program again: a training step is compiled
once.  What nobody holds any more is not computed into memory.  Shape and dtype errors are raised at the line that
makes them; what fails only when the program is compiled names the line that recorded the operator.
"""

from __future__ import annotations

import contextlib
import functools
import os

import torch

from . import _C

_FOLDERS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.dirname(__file__)) + os.sep)


@contextlib.contextmanager
def fused():
    """Fused mode for the whole process, as backward passes run on threads of their own."""
    previous = _C.fused()
    _C.set_fused(True)
    try:
        yield
    finally:
        _C.set_fused(previous)
        if not previous:
            for index in range(torch.tpu.device_count()):
                _C.flush(index)


def is_internal(filename: str) -> bool:
    """Is this a file of PyTorch or of the device, rather than of the user's program?"""
    return filename.startswith(_FOLDERS) or filename.startswith("<frozen")


def build_group(nodes, live, arrays, donated, index: int):
    """An executable of a whole group.

    Args:
        nodes: (Entry, inputs, code object or None, line or None) of each recorded operator, in order; input n >= 0
            is array n of the group, input n < 0 is value -1-n, counting the results of all operators in order.
        live: values that are still wanted, ascending: the results of the group.
        arrays: the group's inputs, jax.Array each.
        donated: for each input, whether its memory may be reused.
        index: device.

    Raises:
        NotImplementedError, RuntimeError: an operator failed; the message names where it was recorded.
    """
    from ..compile import executables

    def function(*inputs):
        values = []
        for entry, sources, code, line in nodes:
            given = [inputs[n] if n >= 0 else values[-1 - n] for n in sources]
            try:
                values.extend(entry.recipe.function(*given))
            except Exception as error:
                kind = NotImplementedError if isinstance(error, NotImplementedError) else RuntimeError
                raise kind(f"{_place(code, line)}: {entry.recipe.label} failed: {error}") from error
        return tuple(values[n] for n in live)

    specs = [(array.shape, array.dtype) for array in arrays]
    positions = [position for position, flag in enumerate(donated) if flag]
    identity = ("fused", [(repr(n[0].recipe.identity), n[1]) for n in nodes], live, specs, positions)
    try:
        return executables.build("fused", identity, lambda: (function, specs, positions, None), index)[0]
    except (NotImplementedError, RuntimeError) as error:
        if isinstance(error, executables.CompilationForbidden) or " failed: " in str(error):
            raise
        first, last = _place(*nodes[0][2:]), _place(*nodes[-1][2:])
        raise RuntimeError(f"the operators recorded from {first} to {last} could not be compiled: {error}") from error


@functools.cache
def _shown(filename: str) -> str:
    return os.path.relpath(filename) if os.path.exists(filename) else filename


def _place(code, line) -> str:
    return "a backward pass" if code is None else f"{_shown(code.co_filename)}:{line}"
