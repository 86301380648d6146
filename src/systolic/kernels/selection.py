"""Choice between a kernel's native form and its reference."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import jax

CHOICES = ("reference", "native", None)

_forced: contextvars.ContextVar[str | None] = contextvars.ContextVar("systolic_kernels_forced", default=None)


def forced() -> str | None:
    """The implementation that `force` asks for here: "reference", "native" or None (automatic)."""
    return _forced.get()


@contextlib.contextmanager
def force(implementation: str | None) -> Iterator[None]:
    """Uses one implementation of every kernel that is traced inside the `with` block.

    The choice is made at trace time: a function that was jitted and traced before keeps what it has.

    Args:
        implementation: "reference", "native", or None for the automatic choice.

    Raises:
        ValueError: for any other value.
    """
    if implementation not in CHOICES:
        raise ValueError(f"implementation is {implementation!r}; it must be one of {CHOICES}")
    token = _forced.set(implementation)
    try:
        yield
    finally:
        _forced.reset(token)


def dispatch(args: tuple, *, reference: Callable, **native: Callable):
    """Calls the native form of the platform that the program is lowered for, else the reference.

    Args:
        args: arrays, the positional arguments of every implementation.
        reference: the implementation that runs everywhere.
        native: implementations by platform name ("cpu", "tpu").

    Raises:
        NotImplementedError: "native" is forced and the default platform has no native form.
    """
    if forced() == "reference":
        return reference(*args)
    if forced() == "native":
        platform = jax.default_backend()
        if platform not in native:
            raise NotImplementedError(
                f"no native kernel for platform {platform!r}, only for {sorted(native)}; "
                "use force('reference') or force(None)")
        return native[platform](*args)
    return jax.lax.platform_dependent(*args, default=reference, **native)
