"""Convolutions of one to three spatial dimensions, plain and transposed, with their gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ..kernels.dense import convolution_2d
from .matmul import FULL
from .numerics import cast, opmath
from .registry import lower, out
from .spatial import per_dim


def _convolve(x, weight, stride, padding, dilation, transposed, output_padding, groups, dtype=None):
    """``x`` [N, C, ...], ``weight`` [O, C/groups, ...] or, transposed, [C, O/groups, ...]."""
    n = x.ndim - 2
    stride, padding, dilation = (per_dim(v, n) for v in (stride, padding, dilation))
    kernel = weight.shape[2:]
    input_dilation = (1,) * n
    edges = [(p, p) for p in padding]
    if transposed:
        c, o = weight.shape[:2]
        weight = weight.reshape((groups, c // groups, o, *kernel)).swapaxes(1, 2)
        weight = lax.rev(weight.reshape((groups * o, c // groups, *kernel)), tuple(range(2, n + 2)))
        reach = [d * (k - 1) for d, k in zip(dilation, kernel)]
        extra = per_dim(output_padding, n)
        edges = [(r - p, r - p + e) for r, p, e in zip(reach, padding, extra)]
        input_dilation, stride = stride, (1,) * n
    spatial = "DHW"[3 - n :]
    return lax.conv_general_dilated(
        x,
        weight,
        window_strides=stride,
        padding=edges,
        lhs_dilation=input_dilation,
        rhs_dilation=dilation,
        dimension_numbers=(f"NC{spatial}", f"OI{spatial}", f"NC{spatial}"),
        feature_group_count=groups,
        precision=FULL,
        preferred_element_type=dtype,
    )


@lower("convolution", "_convolution", "convolution_overrideable")
def _convolution(
    input, weight, bias=None, stride=1, padding=0, dilation=1,
    transposed=False, output_padding=0, groups=1, **_,
):
    spec = out()
    acc = opmath(spec.dtype)
    if input.size == 0 or weight.size == 0:
        result = jnp.zeros(spec.shape, acc)
    elif input.ndim == 4 and input.dtype == weight.dtype == jnp.float32 and groups == 1 and not transposed:
        result = convolution_2d(input, weight, *(per_dim(v, 2) for v in (stride, padding, dilation)))
    else:
        result = _convolve(input, weight, stride, padding, dilation, transposed, output_padding, groups, acc)
    if bias is not None:
        result = result + cast(bias, acc).reshape((-1,) + (1,) * (result.ndim - 2))
    return result


@lower("convolution_backward", "convolution_backward_overrideable")
def _convolution_backward(
    grad_output, input, weight, stride, padding, dilation,
    transposed, output_padding, groups, output_mask, bias_sizes=None,
):
    def forward(x, w):
        return _convolve(x, w, stride, padding, dilation, transposed, output_padding, groups)

    grad_input = grad_weight = grad_bias = None
    if output_mask[0] or output_mask[1]:
        if input.size == 0 or weight.size == 0 or grad_output.size == 0:
            grad_input, grad_weight = jnp.zeros_like(input), jnp.zeros_like(weight)
        else:
            grad_input, grad_weight = jax.vjp(forward, input, weight)[1](grad_output)
    if output_mask[2]:
        dims = (0, *range(2, grad_output.ndim))
        grad_bias = jnp.sum(grad_output.astype(opmath(grad_output.dtype)), axis=dims)
    results = (grad_input, grad_weight, grad_bias)
    return tuple(r if wanted else None for r, wanted in zip(results, output_mask))
