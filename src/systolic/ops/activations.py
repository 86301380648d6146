"""Activation functions and their gradients.  16-bit floats are computed in float32."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .numerics import cast, compute, compute_float
from .registry import lower, out

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_GELU_CUBIC = 0.044715


def _wide(*tensors):
    """Tensors in one computing dtype."""
    return compute(*tensors)


def _numbers(x, *numbers):
    """Numbers (or run-time scalars) in the dtype of ``x``."""
    return tuple(cast(number, x.dtype) for number in numbers)


@lower("relu")
def relu(self):
    return jnp.maximum(self, jnp.zeros_like(self))


@lower("threshold_backward")
def threshold_backward(grad_output, self, threshold):
    """Gradient of relu and threshold: 0 where ``self <= threshold``."""
    return jnp.where(self <= cast(threshold, self.dtype), jnp.zeros_like(grad_output), grad_output)


@lower("sigmoid")
def sigmoid(self):
    return lax.logistic(compute_float(self)[0])


@lower("sigmoid_backward")
def sigmoid_backward(grad_output, output):
    grad, y = _wide(grad_output, output)
    return grad * jnp.conj((1 - y) * y)


@lower("tanh_backward")
def tanh_backward(grad_output, output):
    grad, y = _wide(grad_output, output)
    return grad * jnp.conj(1 - y * y)


@lower("silu")
def silu(self):
    (x,) = compute_float(self)
    return x * lax.logistic(x)


@lower("silu_backward")
def silu_backward(grad_output, self):
    grad, x = _wide(grad_output, self)
    s = lax.logistic(x)
    return grad * s * (1 + x * (1 - s))


def _gelu_inner(x):
    return _SQRT_2_OVER_PI * (x + _GELU_CUBIC * x * x * x)


@lower("gelu")
def gelu(self, approximate="none"):
    """Gaussian error linear unit; ``approximate="tanh"`` is the cubic tanh form."""
    (x,) = _wide(self)
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(_gelu_inner(x)))
    return 0.5 * x * (1 + lax.erf(x * _SQRT_HALF))


@lower("gelu_backward")
def gelu_backward(grad_output, self, approximate="none"):
    grad, x = _wide(grad_output, self)
    if approximate == "tanh":
        t = jnp.tanh(_gelu_inner(x))
        slope = (1 - t * t) * _SQRT_2_OVER_PI * (1 + 3 * _GELU_CUBIC * x * x)
        return grad * (0.5 * (1 + t) + 0.5 * x * slope)
    cdf = 0.5 * (1 + lax.erf(x * _SQRT_HALF))
    pdf = jnp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return grad * (cdf + x * pdf)


@lower("hardsigmoid")
def hardsigmoid(self):
    (x,) = _wide(self)
    return jnp.clip(x + 3, 0, 6) / 6


@lower("hardsigmoid_backward")
def hardsigmoid_backward(grad_output, self):
    grad, x = _wide(grad_output, self)
    return jnp.where((x > -3) & (x < 3), grad / 6, jnp.zeros_like(grad))


@lower("hardswish")
def hardswish(self):
    (x,) = _wide(self)
    return x * jnp.clip(x + 3, 0, 6) / 6


@lower("hardswish_backward")
def hardswish_backward(grad_output, self):
    grad, x = _wide(grad_output, self)
    middle = jnp.where(x < 3, grad * (x / 3 + 0.5), grad)
    return jnp.where(x <= -3, jnp.zeros_like(grad), middle)


@lower("hardtanh")
def hardtanh(self, min_val=-1, max_val=1):
    low, high = _numbers(self, min_val, max_val)
    return jnp.minimum(jnp.maximum(self, low), high)


@lower("hardtanh_backward")
def hardtanh_backward(grad_output, self, min_val, max_val):
    low, high = _numbers(self, min_val, max_val)
    return jnp.where((self <= low) | (self >= high), jnp.zeros_like(grad_output), grad_output)


@lower("elu")
def elu(self, alpha=1, scale=1, input_scale=1):
    (x,) = _wide(self)
    alpha, scale, input_scale = _numbers(x, alpha, scale, input_scale)
    return jnp.where(x <= 0, jnp.expm1(x * input_scale) * alpha * scale, x * scale)


@lower("elu_backward")
def elu_backward(grad_output, alpha, scale, input_scale, is_result, self_or_result):
    """Gradient of elu, from its input or, with ``is_result``, from its output."""
    grad, x = _wide(grad_output, self_or_result)
    alpha, scale, input_scale = _numbers(x, alpha, scale, input_scale)
    if is_result:
        negative = grad * input_scale * (x + alpha * scale)
    else:
        negative = grad * input_scale * alpha * scale * jnp.exp(x * input_scale)
    return jnp.where(x <= 0, negative, grad * scale)


@lower("celu")
def celu(self, alpha=1.0):
    (x,) = _wide(self)
    (alpha,) = _numbers(x, alpha)
    return jnp.where(x <= 0, jnp.expm1(x / alpha) * alpha, x)


@lower("leaky_relu")
def leaky_relu(self, negative_slope=0.01):
    (x,) = _wide(self)
    return jnp.where(x > 0, x, x * cast(negative_slope, x.dtype))


@lower("leaky_relu_backward")
def leaky_relu_backward(grad_output, self, negative_slope, self_is_result):
    # The sign of the result is the sign of the input, so self_is_result changes nothing.
    grad, x = _wide(grad_output, self)
    return jnp.where(x > 0, grad, grad * cast(negative_slope, x.dtype))


@lower("_prelu_kernel")
def prelu(self, weight):
    x, w = _wide(self, weight)
    return jnp.where(x > 0, x, w * x)


@lower("_prelu_kernel_backward")
def prelu_backward(grad_output, self, weight):
    """Gradients of input and weight, both in the shape of ``self``."""
    grad, x, w = _wide(grad_output, self, weight)
    return jnp.where(x > 0, grad, w * grad), jnp.where(x > 0, jnp.zeros_like(grad), x * grad)


@lower("softplus")
def softplus(self, beta=1, threshold=20):
    """``log1p(exp(beta * x)) / beta``, and x itself where ``beta * x`` exceeds ``threshold``."""
    (x,) = _wide(self)
    beta, threshold = _numbers(x, beta, threshold)
    scaled = x * beta
    return jnp.where(scaled > threshold, x, jnp.log1p(jnp.exp(scaled)) / beta)


@lower("softplus_backward")
def softplus_backward(grad_output, self, beta, threshold):
    grad, x = _wide(grad_output, self)
    beta, threshold = _numbers(x, beta, threshold)
    scaled = x * beta
    return jnp.where(scaled > threshold, grad, grad * lax.logistic(scaled))


@lower("mish")
def mish(self):
    (x,) = _wide(self)
    return x * jnp.tanh(jax.nn.softplus(x))


@lower("mish_backward")
def mish_backward(grad_output, self):
    grad, x = _wide(grad_output, self)
    t = jnp.tanh(jax.nn.softplus(x))
    return grad * (t + x * lax.logistic(x) * (1 - t * t))


@lower("log_sigmoid_forward")
def log_sigmoid_forward(self):
    """Log of the sigmoid, and ``exp(-|x|)`` for the gradient (an empty buffer on some devices)."""
    (x,) = _wide(self)
    z = jnp.exp(-jnp.abs(x))
    buffer = z if out(1).shape == self.shape else jnp.zeros(out(1).shape, x.dtype)
    return jnp.minimum(x, jnp.zeros_like(x)) - jnp.log1p(z), buffer


@lower("log_sigmoid_backward")
def log_sigmoid_backward(grad_output, self, buffer):
    # The buffer is not needed: XLA computes the exponential again more cheaply than it loads it.
    grad, x = _wide(grad_output, self)
    return grad * lax.logistic(-x)


@lower("glu")
def glu(self, dim=-1):
    """First half along ``dim`` times the sigmoid of the second half."""
    (x,) = _wide(self)
    a, b = jnp.split(x, 2, axis=dim)
    return a * lax.logistic(b)


@lower("glu_backward")
def glu_backward(grad_output, self, dim):
    grad, x = _wide(grad_output, self)
    a, b = jnp.split(x, 2, axis=dim)
    s = lax.logistic(b)
    return jnp.concatenate([grad * s, grad * a * s * (1 - s)], axis=dim)


@lower("glu_jvp")
def glu_jvp(glu, x, dx, dim):
    y, x, dx = _wide(glu, x, dx)
    _, b = jnp.split(x, 2, axis=dim)
    da, db = jnp.split(dx, 2, axis=dim)
    s = lax.logistic(b)
    return da * s + db * y * (1 - s)


@lower("glu_backward_jvp")
def glu_backward_jvp(grad_x, grad_glu, x, dgrad_glu, dx, dim):
    grad, x, dgrad, dx = _wide(grad_glu, x, dgrad_glu, dx)
    return jax.jvp(lambda g, t: glu_backward(g, t, dim), (grad, x), (dgrad, dx))[1]


def _inside(x, lambd):
    """Whether ``-lambd <= x <= lambd`` (false for NaN)."""
    return (x >= -lambd) & (x <= lambd)


@lower("hardshrink")
def hardshrink(self, lambd=0.5):
    return jnp.where(_inside(self, cast(lambd, self.dtype)), jnp.zeros_like(self), self)


@lower("softshrink")
def softshrink(self, lambd=0.5):
    (x,) = _wide(self)
    lambd = cast(lambd, x.dtype)
    return jnp.where(_inside(x, lambd), jnp.zeros_like(x), x - jnp.copysign(lambd, x))


@lower("hardshrink_backward")
def hardshrink_backward(grad_out, self, lambd):
    return jnp.where(_inside(self, cast(lambd, self.dtype)), jnp.zeros_like(grad_out), grad_out)


@lower("softshrink_backward")
def softshrink_backward(grad_output, self, lambd):
    return jnp.where(_inside(self, cast(lambd, self.dtype)), jnp.zeros_like(grad_output), grad_output)


@lower("logit")
def logit(self, eps=None):
    """``log(x / (1 - x))``, with x limited to [eps, 1 - eps] when ``eps`` is given."""
    (x,) = compute_float(self)
    if eps is not None:
        x = jnp.clip(x, np.asarray(eps, x.dtype), np.asarray(1 - eps, x.dtype))
    return jnp.log(x / (1 - x))


@lower("logit_backward")
def logit_backward(grad_output, self, eps=None):
    """Outside the domain the gradient is NaN without ``eps``, and 0 with it."""
    grad, x = _wide(grad_output, self)
    low, high, outside = (0.0, 1.0, np.nan) if eps is None else (eps, 1 - eps, 0.0)
    return jnp.where((x < low) | (x > high), jnp.full_like(grad, outside), grad / (x * (1 - x)))
