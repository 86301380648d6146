"""Mixture-of-experts feed-forward: each token goes through the experts that the router chose for it.

Public names: `experts`, `experts_reference`, `ACTIVATIONS`.
"""

from __future__ import annotations

import jax.numpy as jnp

from systolic.kernels.experts.grouped import experts_grouped
from systolic.kernels.experts.reference import ACTIVATIONS, experts_reference
from systolic.kernels.experts.tiled import experts_tiled
from systolic.kernels.selection import forced, pallas_chosen

__all__ = ["ACTIVATIONS", "experts", "experts_reference"]


def experts(x, w13, w2, ids, weights, *, activation: str):
    """sum_j weights[t, j] * w2[e] act(w13[e] x[t]) with e = ids[t, j], for each token t.

    Args:
        x: [tokens, hidden] floating point.
        w13: [experts, width, hidden]; width is 2 * inner for a gated activation (gate rows, then up
            rows), else inner.
        w2: [experts, hidden, inner].
        ids: [tokens, k] int, distinct in a row.
        weights: [tokens, k] floating point.
        activation: a key of `ACTIVATIONS`.

    Returns:
        [tokens, hidden] in x's dtype; sums are float32.

    Raises:
        ValueError: a shape or the activation's name is wrong.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}; it must be one of {sorted(ACTIVATIONS)}")
    if x.ndim != 2 or w13.ndim != 3 or w2.ndim != 3:
        raise ValueError(f"x, w13 and w2 have shapes {x.shape}, {w13.shape}, {w2.shape}; they must have 2, 3, 3 dims")
    inner = w2.shape[2]
    width = 2 * inner if ACTIVATIONS[activation].gated else inner
    if w13.shape[1:] != (width, x.shape[1]) or w2.shape[:2] != (w13.shape[0], x.shape[1]):
        raise ValueError(
            f"w13 and w2 have shapes {w13.shape} and {w2.shape}; with x {x.shape} and {activation} they must be "
            f"[experts, {width}, {x.shape[1]}] and [experts, {x.shape[1]}, {inner}]"
        )
    if ids.shape != weights.shape or ids.ndim != 2 or ids.shape[0] != x.shape[0]:
        raise ValueError(f"ids and weights have shapes {ids.shape}, {weights.shape}; they must be [{x.shape[0]}, k]")
    if pallas_chosen():
        implementation = experts_grouped
    else:
        implementation = experts_reference if forced() == "reference" else experts_tiled
    return implementation(x, w13, w2, ids.astype(jnp.int32), weights, activation=activation)
