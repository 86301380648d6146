"""Choice between a kernel's Pallas form, its native CPU form and its reference.  JAX is imported when it is needed."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

from systolic.settings import KERNEL_CHOICES, current

CHOICES = (*KERNEL_CHOICES, None)

_forced: contextvars.ContextVar[str | None] = contextvars.ContextVar("systolic_kernels_forced", default=None)
_aim: contextvars.ContextVar[Any] = contextvars.ContextVar("systolic_kernels_aim", default=None)


def forced() -> str | None:
    """The implementation that `force`, else the setting `kernels`, asks for here; None for the automatic choice."""
    choice = _forced.get() or current().kernels
    return None if choice == "auto" else choice


@contextlib.contextmanager
def force(implementation: str | None) -> Iterator[None]:
    """Uses one implementation of every kernel that is traced inside the `with` block.

    The choice is made at trace time: a function that was jitted and traced before keeps what it has.

    Args:
        implementation: "reference", "native", "interpret" (the Pallas form in Pallas's interpreter, where a
            kernel has one; the automatic choice for others), "auto", or None for what the setting says.

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


@contextlib.contextmanager
def aim(device) -> Iterator[None]:
    """Kernels traced inside the `with` block are for ``device``, a JAX device, attached or of a topology.

    For compiling ahead of time; otherwise they are for JAX's default device.
    """
    token = _aim.set(device)
    try:
        yield
    finally:
        _aim.reset(token)


def aimed_device_kind() -> str:
    """JAX's name of the kind of device that kernels traced here are for."""
    import jax

    return (_aim.get() or jax.devices()[0]).device_kind


def pallas_chosen() -> bool:
    """Whether a kernel traced here takes its Pallas form, for a TPU or in the interpreter, if it has one."""
    import jax

    choice, aimed = forced(), _aim.get()
    platform = jax.default_backend() if aimed is None else aimed.platform
    return choice == "interpret" or (platform == "tpu" and choice != "reference")


def dispatch(args: tuple, *, reference: Callable, tpu: Callable | None = None, **native: Callable):
    """Calls the native form of the platform that the program is lowered for, else the reference.

    Args:
        args: arrays, the positional arguments of every implementation.
        reference: the implementation that runs everywhere.
        tpu: the Pallas form; also takes ``interpret``.
        native: other implementations by platform name ("cpu").

    Raises:
        NotImplementedError: "native" is forced and the platform has no native form.
    """
    import jax

    choice, aimed = forced(), _aim.get()
    platform = jax.default_backend() if aimed is None else aimed.platform
    # Only here, as tracing a Pallas kernel takes long: programs for other platforms do without.
    if tpu is not None and pallas_chosen():
        return tpu(*args, interpret=choice == "interpret")
    if choice == "reference":
        return reference(*args)
    if choice == "native":
        if platform not in native:
            known = sorted(native) + (["tpu"] if tpu is not None else [])
            raise NotImplementedError(f"no native kernel for platform {platform!r}, only for {known}; "
                                      "use force('reference') or force('auto')")  # fmt: skip
        return native[platform](*args)
    return jax.lax.platform_dependent(*args, default=reference, **native)
