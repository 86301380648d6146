"""Checks of kernels' arguments."""

from __future__ import annotations

from collections.abc import Iterable

import jax.numpy as jnp


def need(condition: bool, message: str) -> None:
    """Raise ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


def names(dtypes: Iterable) -> str:
    """Dtypes as a list for a message, such as "int8, float32"."""
    return ", ".join(jnp.dtype(t).name for t in dtypes)
