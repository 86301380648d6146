"""Softmax, log-softmax and their gradients; 16-bit floats are computed in float32."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from .numerics import cast, compute, opmath
from .registry import lower, out


def _prepare(x, dtype):
    """The tensor in its computing dtype, at least 1-d."""
    x = cast(x, opmath(dtype))
    return x.reshape(1) if x.ndim == 0 else x


def normalize(x, dim):
    """Softmax over ``dim`` in x's own dtype."""
    weights = jnp.exp(x - jnp.max(x, axis=dim, keepdims=True))
    return weights / jnp.sum(weights, axis=dim, keepdims=True)


@lower("_softmax")
def softmax(self, dim, half_to_float=False):
    """Softmax over ``dim``; a row of only -inf is NaN."""
    if self.size == 0:
        return self
    return normalize(_prepare(self, out(0).dtype), dim).reshape(self.shape)


@lower("_safe_softmax")
def safe_softmax(self, dim, dtype=None):
    """Softmax over ``dim``; a row of only -inf is 0."""
    if self.size == 0:
        return self
    x = _prepare(self, out(0).dtype)
    masked = jnp.all(x == -np.inf, axis=dim, keepdims=True)
    return jnp.where(masked, jnp.zeros_like(x), normalize(x, dim)).reshape(self.shape)


@lower("_log_softmax")
def log_softmax(self, dim, half_to_float=False):
    """Log of the softmax over ``dim``; a row of only -inf is NaN."""
    if self.size == 0:
        return self
    x = _prepare(self, out(0).dtype)
    shifted = x - jnp.max(x, axis=dim, keepdims=True)
    return (shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=dim, keepdims=True))).reshape(self.shape)


def _gradient_operands(grad_output, output):
    grad, y = compute(grad_output, output)
    return (grad.reshape(1), y.reshape(1)) if grad.ndim == 0 else (grad, y)


@lower("_softmax_backward_data")
def softmax_backward(grad_output, output, dim, input_dtype=None):
    grad, y = _gradient_operands(grad_output, output)
    return (y * (grad - jnp.sum(grad * y, axis=dim, keepdims=True))).reshape(output.shape)


@lower("_log_softmax_backward_data")
def log_softmax_backward(grad_output, output, dim, input_dtype=None):
    grad, y = _gradient_operands(grad_output, output)
    return (grad - jnp.exp(y) * jnp.sum(grad, axis=dim, keepdims=True)).reshape(output.shape)


def _mask_for(mask, x, mask_type):
    """The mask in a shape that broadcasts over scores [batch, heads, queries, keys].

    Type 0 is [queries, keys], type 1 is [batch, keys], type 2 (the default) the shape of the scores.
    """
    if mask_type == 1 and mask.ndim == 2 and x.ndim == 4:
        return mask[:, None, None, :]
    return mask


def over_kept(x, mask, mask_type, dim):
    """Softmax over what ``mask`` leaves (true means left out) in x's own dtype; NaN where it leaves nothing."""
    return normalize(jnp.where(_mask_for(mask, x, mask_type), -np.inf, x), dim)


@lower("_masked_softmax")
def masked_softmax(self, mask, dim=None, mask_type=None):
    """Softmax over what ``mask`` leaves (true means left out); NaN where it leaves nothing."""
    x = _prepare(self, out(0).dtype)
    return over_kept(x, mask, mask_type, -1 if dim is None else dim).reshape(self.shape)


@lower("_masked_softmax_backward")
def masked_softmax_backward(grad_output, output, mask, dim=None):
    grad, y = _gradient_operands(grad_output, output)
    kept = jnp.where(mask, jnp.zeros_like(y), y)
    total = jnp.sum(grad * kept, axis=-1 if dim is None else dim, keepdims=True)
    return (kept * (grad - total)).reshape(output.shape)
