"""Distances of vectors: between two sets (``cdist``) and within one (``pdist``), with gradients."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from .registry import lower, out


def _norm(delta, p: float):
    """The p-norm of the last dimension."""
    size = jnp.abs(delta)
    if p == 0:
        return jnp.sum(size != 0, axis=-1).astype(delta.dtype)
    if p == 1:
        return jnp.sum(size, axis=-1)
    if p == float("inf"):
        return jnp.max(size, axis=-1)
    if p == 2:
        return jnp.sqrt(jnp.sum(size * size, axis=-1))
    return jnp.sum(size**p, axis=-1) ** (1.0 / p)


def _norm_gradient(delta, distance, grad, p: float):
    """The gradient of :func:`_norm` for ``delta``."""
    grad, distance = grad[..., None], distance[..., None]
    if p == 0:
        return jnp.zeros_like(delta)
    if p == 1:
        return jnp.sign(delta) * grad
    if p == float("inf"):
        return jnp.where(jnp.abs(delta) == distance, jnp.sign(delta), 0) * grad
    # A zero distance has a zero gradient; the safe divisor keeps NaN out of the unused branch.
    divisor = jnp.where(distance == 0, 1, distance)
    part = jnp.sign(delta) * (jnp.abs(delta) / divisor) ** (p - 1) * grad
    return jnp.where((distance == 0) | (delta == 0), 0, part)


def _difference(x1, x2):
    return jnp.expand_dims(x1, -2) - jnp.expand_dims(x2, -3)


@lower("_cdist_forward")
def _cdist(x1, x2, p, compute_mode=None):
    delta = _difference(x1, x2)
    return _norm(delta, p) if delta.size else jnp.zeros(out().shape, x1.dtype)


@lower("_cdist_backward")
def _cdist_backward(grad, x1, x2, p, cdist):
    total = jnp.sum(_norm_gradient(_difference(x1, x2), cdist, grad, p), axis=-2)
    while total.ndim > len(out().shape):
        total = total.sum(0)
    return total.astype(x1.dtype)


@lower("_pdist_forward")
def _pdist(self, p=2.0):
    """Distances of the pairs (i, j), i < j, of the rows of ``self``, in row-major order."""
    first, second = np.triu_indices(self.shape[0], 1)
    if not first.size or not self.shape[1]:
        return jnp.zeros(out().shape, self.dtype)
    return _norm(self[first] - self[second], p)


@lower("_pdist_backward")
def _pdist_backward(grad, self, p, pdist):
    first, second = np.triu_indices(self.shape[0], 1)
    if not first.size or not self.shape[1]:
        return jnp.zeros(self.shape, self.dtype)
    part = _norm_gradient(self[first] - self[second], pdist, grad, p)
    return jnp.zeros_like(self).at[first].add(part).at[second].add(-part)
