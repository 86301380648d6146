"""Why something is compiled again: what differs from the closest of the earlier calls.

Two kinds are told apart: the same traced graph with other inputs (a new executable; no Python of the model runs),
and a function that Dynamo traces again because one of its guards failed.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # JAX is imported at the first tensor, not before
    import torch

    from ..device.arguments import HostTensor, Number
    from ..device.layout import Window

log = logging.getLogger("systolic.compile")
# Earlier calls of one program that a new one is compared with, and recompilations that are remembered.
_COMPARED, _REMEMBERED = 64, 1000


@dataclass(frozen=True)
class Recompilation:
    """One program compiled again, or (``traced``) one function traced again.

    ``changed`` names each difference, such as ``input 2 (x): shape [4, 8] -> [5, 8]``, or is Dynamo's failed guard.
    """

    name: str
    changed: tuple[str, ...]
    traced: bool = False

    def __str__(self) -> str:
        return f"{self.name} {'traced' if self.traced else 'compiled'} again: {'; '.join(self.changed)}"


_remembered: deque[Recompilation] = deque(maxlen=_REMEMBERED)


def recompilations() -> list[Recompilation]:
    """The latest recompilations of compiled functions in this process, oldest first (at most 1,000)."""
    return list(_remembered)


def remember(name: str, changed: tuple[str, ...], traced: bool = False) -> None:
    """Note a recompilation and log it."""
    _remembered.append(Recompilation(name, changed, traced))
    log.info("%s", _remembered[-1])


def dynamo_reason() -> str | None:
    """The guard that failed, if Dynamo is tracing a function again; else None."""
    from torch._dynamo.utils import get_metrics_context

    return getattr(get_metrics_context(), "_metrics", {}).get("recompile_reason")


class Seen:
    """The inputs of one program's earlier calls.  ``names`` are shown beside the positions of inputs."""

    def __init__(self, names: list[str] | None = None):
        self.names = names
        self.calls: deque[list] = deque(maxlen=_COMPARED)

    def add(self, values: list) -> tuple[str, ...]:
        """Record a call; what differs from the closest earlier one, empty for the first."""
        found = [differences(earlier, values, self.names) for earlier in list(self.calls)]
        self.calls.append(values)
        return tuple(min(reversed(found), key=len)) if found else ()


def differences(earlier: list, values: list, names: list[str] | None = None) -> list[str]:
    """What differs between the parsed inputs of two calls, one line for each property of each input."""
    if len(earlier) != len(values):
        return [f"number of inputs {len(earlier)} -> {len(values)}"]
    lines = []
    for position, (old, new) in enumerate(zip(earlier, values)):
        label = f"input {position}" + (f" ({names[position]})" if names and position < len(names) else "")
        lines += [f"{label}: {line}" for line in _differences(old, new)]
    return lines or ["how the inputs share memory"]


def _differences(old: Any, new: Any) -> list[str]:
    from ..device.arguments import HostTensor, Number
    from ..device.layout import Window

    if type(old) is not type(new):
        return [f"{_kind(old)} -> {_kind(new)}"]
    match new:
        case Window():
            properties = [
                ("shape", _sizes(old.sizes), _sizes(new.sizes)),
                ("dtype", _dtype(old.dtype), _dtype(new.dtype)),
                ("strides", old.strides, new.strides),
                ("offset", _offset(old), _offset(new)),
                ("conjugate", old.conjugate, new.conjugate),
                ("negative", old.negative, new.negative),
            ]
            if len(old.sizes) != len(new.sizes) or (old.sizes != new.sizes and old.contiguous and new.contiguous):
                del properties[2]  # strides that only follow from the shape
            lines = [f"{name} {a} -> {b}" for name, a, b in properties if a != b]
            return lines or _storage(old, new)
        case list() if len(old) != len(new):
            return [f"{len(old)} tensors -> {len(new)}"]
        case list():
            return [f"[{i}] {line}" for i, pair in enumerate(zip(old, new)) for line in _differences(*pair)]
        case Number() | HostTensor():
            kinds = _number(old), _number(new)
            return [f"{kinds[0]} -> {kinds[1]}"] if kinds[0] != kinds[1] else []
    return [f"{old} -> {new}"] if old != new else []


def _storage(old: Window, new: Window) -> list[str]:
    def described(window: Window) -> str:
        if window.stored_dtype is None:
            return "not written yet"
        return f"stored as {_dtype(window.stored_dtype)} {list(window.stored_shape)}"

    if described(old) != described(new):
        return [f"memory {described(old)} -> {described(new)}"]
    return [f"memory of {old.nbytes} bytes -> {new.nbytes}"] if old.nbytes != new.nbytes else []


def _kind(value: Any) -> str:
    names = {"Window": "tensor", "Number": "number", "HostTensor": "CPU number", "list": "list", "NoneType": "None"}
    return names.get(type(value).__name__, type(value).__name__)


def _sizes(sizes) -> list[int]:
    return list(sizes)


def _dtype(dtype) -> str:
    from ..ops.numerics import tdtype

    return str(tdtype(dtype)).removeprefix("torch.")


def _offset(window: Window):
    return "any" if window.moving is not None else window.offset


def _number(value: Number | HostTensor) -> str:
    return str(value.dtype).removeprefix("torch.") if hasattr(value, "dtype") else value.kind.__name__


def input_names(placeholders: list[torch.fx.Node], sources: list[str] | None) -> list[str]:
    """What the inputs of a traced graph are called in the user's function, where that is known.

    ``sources``: those of Dynamo's graph, in order.  AOTAutograd numbers them: ``arg0_1``, or ``primals_1``.
    """
    found = [re.fullmatch(r"arg(\d+)_1|primals_(\d+)", node.name) for node in placeholders]
    backward = any(node.name.startswith("tangents_") for node in placeholders)
    if not sources or (not backward and sum(map(bool, found)) != len(sources)):
        return [node.name for node in placeholders]
    positions = [m and (int(m[1]) if m[1] else int(m[2]) - 1) for m in found]
    return [
        sources[i] if i is not None and i < len(sources) else node.name for i, node in zip(positions, placeholders)
    ]


def source_names(graph: torch.fx.Graph) -> list[str]:
    """The Python expressions that Dynamo's inputs come from, such as ``x`` or ``self.layer.weight``."""
    names = []
    for node in graph.find_nodes(op="placeholder"):
        source = getattr(node.meta.get("grapharg"), "source", None) or getattr(node, "_dynamo_source", None)
        names.append(_readable(source.name if isinstance(getattr(source, "name", None), str) else node.name))
    return names


def _readable(name: str) -> str:
    name = re.sub(r"L\['(\w+)'\]", r"\1", name)
    return re.sub(r"\._(?:modules|parameters|buffers)\['(\w+)'\]", r".\1", name)
