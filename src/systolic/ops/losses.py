"""Loss functions and their gradients.  ``reduction``: 0 none, 1 mean, 2 sum.

Class labels outside ``[0, C)`` follow the rule of ``indexing``: the nearest class is read, and
the gradient of that row is zero.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from .indexing import read_positions
from .numerics import cast, opmath
from .registry import lower

NONE, MEAN, SUM = 0, 1, 2


def reduced(loss, reduction: int):
    """``loss`` after PyTorch's reduction number."""
    if reduction == NONE:
        return loss
    return jnp.mean(loss) if reduction == MEAN else jnp.sum(loss)


def _pair(self, target):
    dtype = opmath(jnp.promote_types(self.dtype, target.dtype) if self.dtype != target.dtype else self.dtype)
    return jnp.broadcast_arrays(self.astype(dtype), target.astype(dtype))


def _shared(grad_output, x, reduction: int):
    """The gradient that reaches each element of ``x`` through the reduction."""
    g = grad_output.astype(x.dtype)
    return g / cast(max(x.size, 1), x.dtype) if reduction == MEAN else g


@lower("mse_loss")
def _mse(self, target, reduction=MEAN):
    x, t = _pair(self, target)
    return reduced(jnp.square(x - t), reduction)


@lower("mse_loss_backward")
def _mse_backward(grad_output, self, target, reduction):
    x, t = _pair(self, target)
    return (x - t) * 2 * _shared(grad_output, x, reduction)


@lower("smooth_l1_loss")
def _smooth_l1(self, target, reduction=MEAN, beta=1.0):
    x, t = _pair(self, target)
    size, beta_ = jnp.abs(x - t), cast(beta, x.dtype)
    loss = size if beta == 0 else jnp.where(size < beta_, 0.5 * size * size / beta_, size - 0.5 * beta_)
    return reduced(loss, reduction)


@lower("smooth_l1_loss_backward")
def _smooth_l1_backward(grad_output, self, target, reduction, beta):
    x, t = _pair(self, target)
    delta = x - t
    slope = jnp.sign(delta)
    if beta:
        slope = jnp.where(jnp.abs(delta) < cast(beta, x.dtype), delta / cast(beta, x.dtype), slope)
    return slope * _shared(grad_output, x, reduction)


@lower("huber_loss")
def _huber(self, target, reduction=MEAN, delta=1.0):
    x, t = _pair(self, target)
    size, limit = jnp.abs(x - t), cast(delta, x.dtype)
    return reduced(jnp.where(size < limit, 0.5 * size * size, limit * (size - 0.5 * limit)), reduction)


@lower("huber_loss_backward")
def _huber_backward(grad_output, self, target, reduction, delta):
    x, t = _pair(self, target)
    limit = cast(delta, x.dtype)
    return jnp.clip(x - t, -limit, limit) * _shared(grad_output, x, reduction)


@lower("binary_cross_entropy")
def _bce(self, target, weight=None, reduction=MEAN):
    x, t = _pair(self, target)
    floor = cast(-100.0, x.dtype)  # PyTorch bounds each logarithm
    loss = (t - 1) * jnp.maximum(jnp.log1p(-x), floor) - t * jnp.maximum(jnp.log(x), floor)
    return reduced(loss if weight is None else loss * weight.astype(x.dtype), reduction)


@lower("binary_cross_entropy_backward")
def _bce_backward(grad_output, self, target, weight=None, reduction=MEAN):
    x, t = _pair(self, target)
    grad = _shared(grad_output, x, reduction) * (x - t) / jnp.maximum((1 - x) * x, cast(1e-12, x.dtype))
    return grad if weight is None else grad * weight.astype(x.dtype)


@lower("binary_cross_entropy_with_logits")
def _bce_with_logits(self, target, weight=None, pos_weight=None, reduction=MEAN):
    x, t = _pair(self, target)
    log_sigmoid = jax.nn.log_sigmoid(x)
    if pos_weight is not None:
        log_sigmoid = log_sigmoid * ((pos_weight.astype(x.dtype) - 1) * t + 1)
    loss = (1 - t) * x - log_sigmoid
    return reduced(loss if weight is None else loss * weight.astype(x.dtype), reduction)


def _class_weights(weight, target, ignore_index: int, dtype):
    """Weight of each label; 0 where the label is ``ignore_index``."""
    used = target != ignore_index
    if weight is None:
        return used.astype(dtype)
    chosen = weight.astype(dtype)[read_positions(jnp.where(used, target, 0), weight.shape[0])]
    return jnp.where(used, chosen, jnp.zeros((), dtype))


def _nll(scores, target, weight, reduction: int, ignore_index: int):
    """``scores`` ``[..., C]`` of log-probabilities, ``target`` ``[...]``."""
    dtype = opmath(scores.dtype)
    amount = _class_weights(weight, target, ignore_index, dtype)
    used = target != ignore_index
    label = read_positions(jnp.where(used, target, 0), scores.shape[-1])
    picked = jnp.take_along_axis(scores, label[..., None], axis=-1, mode="clip")[..., 0].astype(dtype)
    loss = jnp.where(used, -picked * amount, jnp.zeros((), dtype))
    total = jnp.sum(amount)
    if reduction == NONE:
        return loss, jnp.zeros((), dtype)
    return (jnp.sum(loss) / total if reduction == MEAN else jnp.sum(loss)), total


@lower("nll_loss_forward")
def _nll_forward(self, target, weight=None, reduction=MEAN, ignore_index=-100):
    loss, total = _nll(self, target.reshape(self.shape[:-1]), weight, reduction, ignore_index)
    if reduction == NONE and self.ndim == 1:
        total = _class_weights(weight, target.reshape(()), ignore_index, loss.dtype)
    return loss, total


@lower("nll_loss2d_forward")
def _nll2d_forward(self, target, weight=None, reduction=MEAN, ignore_index=-100):
    return _nll(jnp.moveaxis(self, 1, -1), target, weight, reduction, ignore_index)


def _nll_gradient(grad_output, scores, target, weight, reduction, ignore_index, total_weight):
    dtype = opmath(scores.dtype)
    amount = _class_weights(weight, target, ignore_index, dtype) * grad_output.astype(dtype)
    if reduction == MEAN:
        amount = amount / total_weight.astype(dtype)
    hit = (target[..., None] == jnp.arange(scores.shape[-1])) & (target != ignore_index)[..., None]
    return jnp.where(hit, -amount[..., None], jnp.zeros((), dtype))


@lower("nll_loss_backward")
def _nll_backward(grad_output, self, target, reduction, ignore_index, total_weight, weight=None):
    target = target.reshape(self.shape[:-1])
    return _nll_gradient(grad_output, self, target, weight, reduction, ignore_index, total_weight)


@lower("nll_loss2d_backward")
def _nll2d_backward(grad_output, self, target, reduction, ignore_index, total_weight, weight=None):
    scores = jnp.moveaxis(self, 1, -1)
    gradient = _nll_gradient(grad_output, scores, target, weight, reduction, ignore_index, total_weight)
    return jnp.moveaxis(gradient, -1, 1)
