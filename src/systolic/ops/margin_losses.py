"""Multi-class margin losses: gradients, and the multi-label loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .indexing import read_positions
from .losses import NONE, reduced
from .numerics import cast, opmath
from .registry import lower, out


def _multi_margin(x, target, p, margin, weight):
    """Loss ``[batch]`` of scores ``[batch, classes]``."""
    label = read_positions(target.reshape(-1, 1), x.shape[1])
    z = jnp.maximum(margin - jnp.take_along_axis(x, label, 1, mode="clip") + x, jnp.zeros((), x.dtype))
    z = z if p == 1 else z * z
    if weight is not None:
        z = z * weight.astype(x.dtype)[label]
    return jnp.mean(jnp.where(jnp.arange(x.shape[1]) != label, z, jnp.zeros((), x.dtype)), axis=1)


@lower("multi_margin_loss_backward", static_scalars=True)
def _multi_margin_backward(grad_output, self, target, p, margin, weight=None, reduction=1):
    if self.size == 0:
        return jnp.zeros(self.shape, self.dtype)
    x = self.astype(opmath(self.dtype)).reshape(-1, self.shape[-1] if self.ndim else 1)

    def loss(scores):
        value = reduced(_multi_margin(scores, target, p, cast(margin, x.dtype), weight), reduction)
        return value.reshape(grad_output.shape)

    return jax.vjp(loss, x)[1](grad_output.astype(x.dtype))[0].reshape(self.shape)


def _labels(target, classes: int):
    """(labels before the first -1, whether each counts, whether each class is a target)."""
    counts = jnp.cumprod((target >= 0).astype(jnp.int32), axis=1) > 0
    label = jnp.where(counts, target, classes).astype(jnp.int32)
    hit = jnp.zeros((target.shape[0], classes), bool)
    hit = hit.at[jnp.arange(target.shape[0])[:, None], label].set(True, mode="drop")
    return jnp.minimum(label, classes - 1), counts, hit


def _multilabel(x, target):
    label, counts, hit = _labels(target, x.shape[1])
    own = jnp.take_along_axis(x, label, 1, mode="clip")
    z = jnp.maximum(1 - own[:, :, None] + x[:, None, :], jnp.zeros((), x.dtype))
    z = jnp.where(counts[:, :, None] & ~hit[:, None, :], z, jnp.zeros((), x.dtype))
    return jnp.sum(z, axis=(1, 2)) / cast(x.shape[1], x.dtype), hit


def _as_rows(self, target):
    x = self.astype(opmath(self.dtype))
    return x.reshape(-1, x.shape[-1] if x.ndim else 1), target.reshape(-1, target.shape[-1] if target.ndim else 1)


@lower("multilabel_margin_loss_forward")
def _multilabel_forward(self, target, reduction):
    """(loss, is_target in the shape of ``target``)."""
    if self.size == 0:
        return jnp.zeros(out(0).shape, self.dtype), jnp.zeros(out(1).shape, self.dtype)
    loss, hit = _multilabel(*_as_rows(self, target))
    value = loss if reduction == NONE else reduced(loss, reduction)
    return value.reshape(out(0).shape), hit.reshape(out(1).shape)


@lower("multilabel_margin_loss_backward")
def _multilabel_backward(grad_output, self, target, reduction, is_target):
    if self.size == 0:
        return jnp.zeros(self.shape, self.dtype)
    x, labels = _as_rows(self, target)

    def loss(scores):
        return reduced(_multilabel(scores, labels)[0], reduction).reshape(grad_output.shape)

    return jax.vjp(loss, x)[1](grad_output.astype(x.dtype))[0].reshape(self.shape)
