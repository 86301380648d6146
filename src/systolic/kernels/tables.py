"""Tables of block sizes: ``tuning.json`` in a kernel's folder, written by `systolic kernels tune`."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any


def path(kernel: str) -> Path:
    """The table's file."""
    return Path(__file__).parent / kernel / "tuning.json"


@functools.cache
def _table(kernel: str) -> dict:
    file = path(kernel)
    return json.loads(file.read_text()) if file.exists() else {}


def lookup(kernel: str, generation: str, key: str, kind: type) -> Any | None:
    """The entry as a ``kind`` (a dataclass of block sizes), or None."""
    fields = _table(kernel).get(generation, {}).get(key)
    return None if fields is None else kind(**fields)


def store(kernel: str, generation: str, key: str, fields: dict) -> None:
    """Set one entry and write the file."""
    table = json.loads(json.dumps(_table(kernel)))
    table.setdefault(generation, {})[key] = fields
    path(kernel).write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    _table.cache_clear()
