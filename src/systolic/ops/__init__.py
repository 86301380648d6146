"""Lowerings from ATen to JAX, one file a family, one record an operator.

:func:`load` imports every family; :mod:`systolic.ops.registry` says what a record is.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil


@functools.cache
def load() -> None:
    """Import all families, which registers their records."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
