"""Normalization layers and dropout, with their gradients.

Statistics are computed in float32 for 16-bit inputs.  Batch norm never writes its running
statistics: ``_native_batch_norm_legit_functional`` returns the new ones as results 3 and 4, and a
caller of a mutating form copies them back.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import lax

from .numerics import cast, opmath
from .registry import lower, out


def _moments(x, axes):
    """(mean, biased variance), dimensions kept."""
    mean = jnp.mean(x, axis=axes, keepdims=True)
    return mean, jnp.mean(jnp.square(x - mean), axis=axes, keepdims=True)


def _scaled(x, weight, bias):
    if weight is not None:
        x = x * weight.astype(x.dtype)
    return x if bias is None else x + bias.astype(x.dtype)


def layer_norm(input, dims, weight, bias, eps):
    """(result, mean, 1 / standard deviation) over the last ``dims`` dimensions, in the dtype of the sums."""
    x = input.astype(opmath(input.dtype))
    mean, var = _moments(x, tuple(range(x.ndim - dims, x.ndim)))
    rstd = lax.rsqrt(var + cast(eps, x.dtype))
    return _scaled((x - mean) * rstd, weight, bias), mean, rstd


@lower("native_layer_norm")
def _layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    y, mean, rstd = layer_norm(input, len(normalized_shape), weight, bias, eps)
    return y, mean.reshape(out(1).shape), rstd.reshape(out(2).shape)


@lower("native_layer_norm_backward")
def _layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, output_mask, weight=None, bias=None):
    dtype = opmath(input.dtype)
    x, g, mean, rstd = (v.astype(dtype) for v in (input, grad_out, mean, rstd))
    inner = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    outer = tuple(range(x.ndim - len(normalized_shape)))
    unit = (x - mean) * rstd
    gw = g if weight is None else g * weight.astype(dtype)
    grad_input = rstd * (
        gw - jnp.mean(gw, axis=inner, keepdims=True) - unit * jnp.mean(gw * unit, axis=inner, keepdims=True)
    )
    return grad_input, jnp.sum(g * unit, axis=outer), jnp.sum(g, axis=outer)


@lower("_fused_rms_norm", view=True)
def _rms_norm(input, normalized_shape, weight=None, eps=None):
    x = input.astype(opmath(input.dtype))
    eps = float(jnp.finfo(x.dtype).eps) if eps is None else eps
    axes = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    rstd = lax.rsqrt(jnp.mean(jnp.square(x), axis=axes, keepdims=True) + cast(eps, x.dtype))
    return _scaled(x * rstd, weight, None), rstd


@lower("_fused_rms_norm_backward")
def _rms_norm_backward(grad_out, input, normalized_shape, rstd, output_mask, weight=None):
    dtype = opmath(input.dtype)
    x, g, rstd = (v.astype(dtype) for v in (input, grad_out, rstd))
    inner = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    unit = x * rstd
    gw = g if weight is None else g * weight.astype(dtype)
    grad_input = rstd * (gw - unit * jnp.mean(gw * unit, axis=inner, keepdims=True))
    return grad_input, jnp.sum(g * unit, axis=tuple(range(x.ndim - len(normalized_shape))))


def _channels(v, ndim: int, dtype):
    """A per-channel vector broadcastable to ``[N, C, ...]``."""
    return v.astype(dtype).reshape((-1,) + (1,) * (ndim - 2))


@lower("native_group_norm")
def _group_norm(input, N, C, HxW, group, eps, weight=None, bias=None):
    x = input.astype(opmath(input.dtype)).reshape(N, group, C // group * HxW)
    mean, var = _moments(x, (2,))
    rstd = lax.rsqrt(var + cast(eps, x.dtype))
    y = ((x - mean) * rstd).reshape(input.shape)
    if weight is not None:
        y = y * _channels(weight, y.ndim, y.dtype)
    if bias is not None:
        y = y + _channels(bias, y.ndim, y.dtype)
    return y, mean.reshape(N, group), rstd.reshape(N, group)


@lower("native_group_norm_backward")
def _group_norm_backward(grad_out, input, mean, rstd, N, C, HxW, group, output_mask, weight=None):
    dtype = opmath(input.dtype)
    shape = (N, group, C // group, HxW)
    x, g = input.astype(dtype).reshape(shape), grad_out.astype(dtype).reshape(shape)
    mean, rstd = (v.astype(dtype).reshape(N, group, 1, 1) for v in (mean, rstd))
    unit = (x - mean) * rstd
    gw = g if weight is None else g * weight.astype(dtype).reshape(1, group, C // group, 1)
    grad_input = rstd * (
        gw - jnp.mean(gw, axis=(2, 3), keepdims=True) - unit * jnp.mean(gw * unit, axis=(2, 3), keepdims=True)
    )
    grad_weight, grad_bias = jnp.sum(g * unit, axis=(0, 3)), jnp.sum(g, axis=(0, 3))
    return grad_input.reshape(input.shape), grad_weight.reshape(C), grad_bias.reshape(C)


def _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps):
    """(y, mean, rstd, new running mean, new running variance); vectors are ``[C]``."""
    x = input.astype(opmath(input.dtype))
    axes = (0, *range(2, x.ndim))
    if training:
        mean, var = (v.reshape(-1) for v in _moments(x, axes))
        count = math.prod(x.shape) // max(x.shape[1], 1)
        if running_mean is not None:
            running_mean = running_mean + (mean.astype(running_mean.dtype) - running_mean) * cast(
                momentum, running_mean.dtype
            )
        if running_var is not None:
            unbiased = (var * cast(count / max(count - 1, 1), var.dtype)).astype(running_var.dtype)
            running_var = running_var + (unbiased - running_var) * cast(momentum, running_var.dtype)
    else:
        mean, var = running_mean.astype(x.dtype), running_var.astype(x.dtype)
    rstd = lax.rsqrt(var + cast(eps, x.dtype))
    y = (x - _channels(mean, x.ndim, x.dtype)) * _channels(rstd, x.ndim, x.dtype)
    if weight is not None:
        y = y * _channels(weight, x.ndim, x.dtype)
    if bias is not None:
        y = y + _channels(bias, x.ndim, x.dtype)
    return y, mean, rstd, running_mean, running_var


def _saved(index: int, value):
    """A saved statistic, or the empty tensor that inference gives in its place."""
    return value if value.shape == out(index).shape else jnp.zeros(out(index).shape, value.dtype)


@lower("native_batch_norm", "_native_batch_norm_legit")
def _native_batch_norm(
    input, training, momentum, eps, weight=None, bias=None, running_mean=None, running_var=None
):
    y, mean, rstd, _, _ = _batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps)
    return y, _saved(1, mean), _saved(2, rstd)


@lower("_native_batch_norm_legit_functional")
def _batch_norm_functional(input, running_mean, running_var, training, momentum, eps, weight=None, bias=None):
    y, mean, rstd, new_mean, new_var = _batch_norm(
        input, weight, bias, running_mean, running_var, training, momentum, eps
    )
    return y, _saved(1, mean), _saved(2, rstd), new_mean, new_var


@lower("_native_batch_norm_legit_no_training")
def _batch_norm_inference(input, running_mean, running_var, momentum, eps, weight=None, bias=None):
    y, mean, rstd, _, _ = _batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)
    return y, _saved(1, mean), _saved(2, rstd)


# The form that writes the statistics returns the first four; its new statistics go to what it writes.
@lower("_batch_norm_with_update_functional", "_batch_norm_with_update")
def _batch_norm_with_update(input, running_mean, running_var, momentum, eps, weight=None, bias=None):
    y, mean, rstd, new_mean, new_var = _batch_norm(
        input, weight, bias, running_mean, running_var, True, momentum, eps
    )
    return y, mean, rstd, jnp.zeros(out(3).shape, out(3).dtype), new_mean, new_var


@lower("_batch_norm_no_update")
def _batch_norm_no_update(input, momentum, eps, weight=None, bias=None, running_mean=None, running_var=None):
    y, mean, rstd, _, _ = _batch_norm(
        input, weight, bias, running_mean, running_var, running_mean is None, momentum, eps
    )
    return y, _saved(1, mean), _saved(2, rstd), jnp.zeros(out(3).shape, out(3).dtype)


@lower("native_batch_norm_backward")
def _batch_norm_backward(
    grad_out, input, train, eps, output_mask,
    weight=None, running_mean=None, running_var=None, save_mean=None, save_invstd=None,
):
    dtype = opmath(input.dtype)
    x, g = input.astype(dtype), grad_out.astype(dtype)
    if train:
        mean, rstd = save_mean, save_invstd
    else:
        mean, rstd = running_mean, lax.rsqrt(running_var.astype(dtype) + cast(eps, dtype))
    mean, rstd = _channels(mean, x.ndim, dtype), _channels(rstd, x.ndim, dtype)
    axes = (0, *range(2, x.ndim))
    unit = (x - mean) * rstd
    grad_bias, grad_weight = jnp.sum(g, axis=axes), jnp.sum(g * unit, axis=axes)
    scale = rstd if weight is None else rstd * _channels(weight, x.ndim, dtype)
    if train:
        count = max(math.prod(x.shape) // max(x.shape[1], 1), 1)
        average = _channels(grad_bias, x.ndim, dtype) + unit * _channels(grad_weight, x.ndim, dtype)
        g = g - average / cast(count, dtype)
    return g * scale, grad_weight, grad_bias


@lower("batch_norm_backward")
def _batch_norm_backward_with_reserve(
    grad_out, input, weight, update, eps, output_mask, reserve, save_var=None, **statistics
):
    statistics["save_invstd"] = save_var
    return _batch_norm_backward(grad_out, input, update, eps, output_mask, weight=weight, **statistics)


@lower("native_dropout_backward")
def _native_dropout_backward(grad_output, mask, scale):
    dtype = opmath(grad_output.dtype)
    return grad_output.astype(dtype) * (mask.astype(dtype) * cast(scale, dtype))


@lower("_weight_norm_interface_backward")
def _weight_norm_backward(grad_w, saved_v, saved_g, saved_norms, dim):
    """Gradients of the direction and of the length of a normalized weight."""
    dtype = opmath(saved_norms.dtype)
    grad, v, g, norm = (t.astype(dtype) for t in (grad_w, saved_v, saved_g, saved_norms))
    others = tuple(d for d in range(v.ndim) if d != dim % v.ndim)
    along = jnp.sum(grad * v, axis=others, keepdims=True)
    return g / norm * (grad - v * along / (norm * norm)), along / norm
