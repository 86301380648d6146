"""Dense products that XLA:CPU is slow at: batches of matrices, and convolutions of images.

Public names: `batched_matmul`, `convolution_2d`. Elsewhere, and for other dtypes, they are XLA's own operations.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

from systolic.kernels.cpu.calls import batched_matmul_cpu, convolution_2d_cpu
from systolic.kernels.selection import dispatch

__all__ = ["batched_matmul", "convolution_2d"]

# XLA's own loops, which fuse with their neighbours, are as good below this many multiplications.
LEAST_WORK = 1 << 18


def batched_matmul(a, b, transposed: bool = False):
    """``a @ b`` for float32 a [B, M, K] and b [B, K, N]; returns [B, M, N].

    ``transposed`` says that b is the transpose of an array [B, N, K], which is then read as it is in memory.

    Raises:
        ValueError: a shape or a dtype is wrong.
    """
    if a.ndim != 3 or b.ndim != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise ValueError(f"a has shape {a.shape} and b {b.shape}; they must be [B, M, K] and [B, K, N]")
    _require_float32(a=a, b=b)
    if a.shape[0] * a.shape[1] * a.shape[2] * b.shape[2] < LEAST_WORK:
        return _batched_matmul_reference(a, b)
    native = functools.partial(batched_matmul_cpu, transposed=transposed)
    return dispatch((a, b), reference=_batched_matmul_reference, cpu=native)


def convolution_2d(x, weight, stride, padding, dilation):
    """Cross-correlation of float32 images x [N, C, H, W] with weight [O, C, KH, KW]; returns [N, O, OH, OW].

    Args:
        stride, padding, dilation: a pair each, for rows and columns; the padding is zeros on both sides.

    Raises:
        ValueError: a shape or a dtype is wrong.
    """
    if x.ndim != 4 or weight.ndim != 4 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"x has shape {x.shape} and weight {weight.shape}; they must be [N, C, H, W] and [O, C, KH, KW]")
    _require_float32(x=x, weight=weight)
    options = {"stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation)}
    reference = functools.partial(_convolution_reference, **options)
    result = jax.eval_shape(reference, x, weight)
    if result.size * weight[0].size < LEAST_WORK:
        return reference(x, weight)
    native = functools.partial(convolution_2d_cpu, result=result, **options)
    return dispatch((x, weight), reference=reference, cpu=native)


def _require_float32(**arrays) -> None:
    for name, array in arrays.items():
        if array.dtype != jnp.float32:
            raise ValueError(f"{name} has dtype {array.dtype}; it must be float32")


def _batched_matmul_reference(a, b):
    return lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,))), precision=lax.Precision.HIGHEST)


def _convolution_reference(x, weight, *, stride, padding, dilation):
    return lax.conv_general_dilated(
        x, weight, stride, [(p, p) for p in padding], rhs_dilation=dilation,
        dimension_numbers=("NCHW", "OIHW", "NCHW"), precision=lax.Precision.HIGHEST,
    )  # fmt: skip
