"""Lowerings of custom operators, by name."""

from __future__ import annotations

from typing import Any, Callable

import torch

# Name -> function(arguments by schema name) -> JAX result(s).
_functions: dict[str, Callable[..., Any]] = {}
_versions: dict[str, str | None] = {}


def register_custom(name: str, function: Callable[..., Any], version: str | None = "") -> None:
    """Lower ``torch.ops.<namespace>.<op>`` (written ``namespace::op``) by ``function``.

    ``version`` tells what the function does, beside the sources of this package, in keys of stored programs; programs
    with an operator whose version is None are not stored.
    """
    _functions[name] = function
    _versions[name] = version


def find(name: str) -> Callable[..., Any] | None:
    """The lowering of a custom operator, or None."""
    return _functions.get(name)


def version_of(target) -> str | None:
    """The version of a custom operator, empty for any other."""
    return _versions.get(target._schema.name, "") if isinstance(target, torch._ops.OpOverload) else ""
