"""When the device's results are equal to the CPU's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten_with_path

RTOL = 1e-3
ATOL = 1e-4
# A gradient is a sum over tokens of terms of both signs: its tolerance is relative to its largest element.
GRADIENT_RTOL = 1e-3
# Where tokens differ, the reference's two best logits must be closer than this: then either order is right.
TOP2_GAP = 1e-4


class Mismatch(AssertionError):
    """The device's result is not the CPU's."""


def results(output) -> dict[str, torch.Tensor]:
    """The tensors of a model's output on the CPU by their place in it; caches are left out."""
    leaves, _ = tree_flatten_with_path(dict(output) if isinstance(output, dict) else output)
    found = {}
    for path, leaf in leaves:
        name = "".join(str(key) for key in path)
        if isinstance(leaf, torch.Tensor) and "past_key_values" not in name:
            found[name or "result"] = leaf.detach().to("cpu")
    return found


def compare(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor]) -> float:
    """The largest difference; raises :class:`Mismatch` unless structure, shapes, dtypes and values agree."""
    if got.keys() != want.keys():
        raise Mismatch(f"the results are {sorted(got)} instead of {sorted(want)}")
    largest = 0.0
    for name, w in want.items():
        largest = max(largest, _compare(name, got[name], w))
    return largest


def _compare(name: str, g: torch.Tensor, w: torch.Tensor) -> float:
    if g.shape != w.shape or g.dtype != w.dtype:
        raise Mismatch(f"{name} is {g.dtype} {list(g.shape)} instead of {w.dtype} {list(w.shape)}")
    if w.numel() == 0:
        return 0.0
    if not w.is_floating_point() and not w.is_complex():
        wrong = int((g != w).sum())
        if wrong:
            raise Mismatch(f"{name}: {wrong} of {w.numel()} integers differ")
        return 0.0
    finite = torch.isfinite(w)
    # Masked logits are -inf in the reference as well; they have to be the same infinities.
    if not torch.equal(torch.isfinite(g), finite) or not torch.equal(
        g[~finite].nan_to_num(), w[~finite].nan_to_num()
    ):
        raise Mismatch(f"{name} is not finite in the same {int(finite.sum())} of {w.numel()} places")
    difference = (g - w)[finite].abs()
    if difference.numel() == 0:
        return 0.0
    largest = float(difference.max())
    excess = difference - (ATOL + RTOL * w[finite].abs())
    if float(excess.max()) > 0:
        raise Mismatch(f"{name}: {int((excess > 0).sum())} of {w.numel()} differ, at most by {largest:.2g}")
    return largest


def same_tokens(got: torch.Tensor, want: torch.Tensor, logits: tuple[torch.Tensor, ...]) -> float | None:
    """Compare generated tokens (rows of ids); ``logits`` are the reference's, [rows, vocabulary] a new token.

    Returns None when they are equal, else the reference's widest top-2 gap where rows first part.

    Raises:
        Mismatch: when that gap is not below TOP2_GAP: the reference's choice was clear.
    """
    if got.shape != want.shape:
        raise Mismatch(f"generated {list(got.shape)} instead of {list(want.shape)} tokens")
    if torch.equal(got, want):
        return None
    start = want.shape[1] - len(logits)
    widest = 0.0
    for row in range(want.shape[0]):
        places = (got[row] != want[row]).nonzero()
        if len(places):
            step = int(places[0]) - start
            best = logits[step][row].topk(2).values if step >= 0 else torch.tensor([float("inf"), 0.0])
            widest = max(widest, float(best[0] - best[1]))
    if widest >= TOP2_GAP:
        raise Mismatch(f"a token differs where the reference's top-2 gap is {widest:.2g}")
    return widest


def compare_gradients(
    got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], exact: Callable[[], Any]
) -> dict[str, Any]:
    """Compare with the CPU's float32 gradients, and where these are too far off with those that ``exact`` computes
    in float64: where rounding decides, the device must be right, not off in the CPU's way.

    Returns the largest ``difference`` relative to its gradient's largest element, and where there are any the names
    ``settled_in_float64``.

    Raises:
        Mismatch: a gradient is beyond the bound, or other parameters have one.
    """
    if got.keys() != want.keys():
        only = sorted(got.keys() ^ want.keys())[:3]
        raise Mismatch(f"other parameters have gradients: {only}")
    scale_of_all = max((float(w.abs().max()) for w in want.values() if w.numel()), default=0.0)
    worst, settled, better = 0.0, [], None
    for name, w in want.items():
        if not w.numel():
            continue
        # What is zero but for rounding, such as a key bias under softmax, is measured against the others.
        scale = max(float(w.abs().max()), 1e-3 * scale_of_all, ATOL)
        error = float((got[name] - w).abs().max()) / scale
        if not error <= GRADIENT_RTOL:
            better = exact() if better is None else better
            closer = float((got[name] - better[name]).abs().max()) / scale if isinstance(better, dict) else error
            if not closer <= GRADIENT_RTOL:
                raise Mismatch(f"gradient of {name} differs by {error:.2g} of its largest element")
            error = closer
            settled.append(name)
        worst = max(worst, error)
    return {"difference": worst} | ({"settled_in_float64": settled} if settled else {})
