"""When two results are equal.

PyTorch's default tolerances (``torch.testing.assert_close``) against the CPU's result.  Where that fails for a
floating-point result, the judge is the same operator in float64: the device passes within the same tolerance of
it, or when its largest error is no larger than the CPU kernel's own.  :data:`WIDER` is all that goes beyond.
"""

from __future__ import annotations

import torch
from torch.utils._pytree import tree_flatten, tree_map

# operator -> (rtol, atol, reason)
WIDER: dict[str, tuple[float, float, str]] = {}

_EXACT = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.float32: torch.float64,
          torch.complex64: torch.complex128}  # fmt: skip


class Mismatch(AssertionError):
    """The device's result is not the CPU's."""


def to_host(value):
    """Tensors of a nested result on the CPU, with conjugation and negation done."""
    return tree_map(
        lambda t: t.detach().cpu().resolve_conj().resolve_neg() if isinstance(t, torch.Tensor) else t, value
    )


def upcast(value):
    """Floating-point and complex tensors, and dtype arguments, in double precision."""

    def change(item):
        if isinstance(item, torch.Tensor):
            return item.detach().to(_EXACT.get(item.dtype, item.dtype))
        return _EXACT.get(item, item) if isinstance(item, torch.dtype) else item

    return tree_map(change, value)


def check(got, want, exact, name: str, what: str, values: bool = True) -> None:
    """Raise :class:`Mismatch` unless ``got`` (on the device) equals ``want`` (from the CPU).

    ``exact`` returns the result in double precision, or raises; it is called only when needed.
    With ``values`` false only structure, shapes and dtypes are compared.
    """
    got_leaves, got_spec = tree_flatten(got)
    want_leaves, want_spec = tree_flatten(want)
    if len(got_leaves) != len(want_leaves):
        raise Mismatch(f"{what}: {len(got_leaves)} results instead of {len(want_leaves)}")
    truth = None
    for index, (g, w) in enumerate(zip(got_leaves, want_leaves)):
        place = f"{what}, result {index}" if len(want_leaves) > 1 else what
        if not isinstance(w, torch.Tensor):
            if g != w and not (g != g and w != w):
                raise Mismatch(f"{place}: {g!r} instead of {w!r}")
            continue
        if not isinstance(g, torch.Tensor) or g.dtype != w.dtype or g.shape != w.shape:
            raise Mismatch(f"{place}: {_describe(g)} instead of {_describe(w)}")
        if not values:
            continue
        message = _difference(to_host(g), to_host(w), name)
        if message and w.dtype in _EXACT:
            if truth is None:
                try:
                    truth = tree_flatten(to_host(exact()))[0]
                except Exception:
                    truth = ()
            if index < len(truth) and _close_to(to_host(g), to_host(w), truth[index], name):
                continue
        if message:
            raise Mismatch(f"{place}: {message}")


def _describe(value) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)


def _tolerances(name: str) -> dict:
    return dict(zip(("rtol", "atol"), WIDER[name][:2])) if name in WIDER else {}


def _difference(got, want, name: str) -> str | None:
    if got.layout != want.layout:
        return f"{got.layout} instead of {want.layout}"
    try:
        torch.testing.assert_close(got, want, equal_nan=True, **(_tolerances(name) if want.dtype in _EXACT else {}))
    except AssertionError as error:
        lines = [line for line in str(error).splitlines() if "difference" in line or "Mismatched" in line]
        return "; ".join(lines) or str(error).splitlines()[0]
    return None


def _close_to(got, want, truth, name: str) -> bool:
    if not isinstance(truth, torch.Tensor) or truth.shape != got.shape:
        return False
    if _difference(got, truth.to(got.dtype), name) is None:
        return True
    error, allowed = (got.to(truth.dtype) - truth).abs(), (want.to(truth.dtype) - truth).abs()
    same = torch.isfinite(got) == torch.isfinite(want)
    finite = torch.isfinite(error) & torch.isfinite(allowed)
    if not bool(same.all()) or not bool(finite.any()):
        return False
    return float(error[finite].max()) <= float(allowed[finite].max())
