"""Matrix products.

float32 uses full precision (no bfloat16 passes on a TPU); 16-bit floats accumulate in float32;
integers accumulate in the result's type.  ``linear`` and friends that PyTorch splits into smaller
operators in eager mode (so that autograd works) are marked ``view=True``: graphs only.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from ..kernels.dense import batched_matmul
from .numerics import cast, opmath
from .registry import lower, out

FULL = lax.Precision.HIGHEST


def dot_general(a, b, contract, batch=((), ()), dtype=None):
    """``lax.dot_general`` with the accumulation rule of this module.

    ``dtype`` is the accumulator's type; by default float32 for 16-bit floats, else the operands'.
    """
    dtype = opmath(a.dtype) if dtype is None else dtype
    return lax.dot_general(a, b, (contract, batch), precision=FULL, preferred_element_type=dtype)


def product(a, b, dtype=None):
    """``[M, K] @ [K, N]``, or ``[B, M, K] @ [B, K, N]``."""
    if a.ndim == 2:
        return dot_general(a, b, ((1,), (0,)), dtype=dtype)
    if a.dtype == b.dtype == jnp.float32 and dtype in (None, jnp.float32):
        return batched_matmul(a, b)
    return dot_general(a, b, ((2,), (1,)), ((0,), (0,)), dtype=dtype)


def _added(self, result, beta, alpha):
    """``beta * self + alpha * result``; ``beta == 0`` ignores ``self``, NaN and all."""
    dtype = result.dtype
    if alpha != 1:
        result = result * cast(alpha, dtype)
    if beta == 0:
        return result
    self = cast(self, dtype)
    return result + (self if beta == 1 else self * cast(beta, dtype))


@lower("mm")
def _mm(self, mat2, out_dtype=None):
    return product(self, mat2)


@lower("bmm")
def _bmm(self, mat2, out_dtype=None):
    return product(self, mat2)


@lower("addmm", static_scalars=True)
def _addmm(self, mat1, mat2, beta=1, alpha=1, out_dtype=None):
    return _added(self, product(mat1, mat2), beta, alpha)


@lower("_addmm_activation", static_scalars=True)
def _addmm_activation(self, mat1, mat2, beta=1, alpha=1, use_gelu=False):
    x = _added(self, product(mat1, mat2), beta, alpha)
    if not use_gelu:
        return jnp.maximum(x, jnp.zeros((), x.dtype))
    inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return 0.5 * x * (1 + jnp.tanh(inner))


@lower("baddbmm", static_scalars=True)
def _baddbmm(self, batch1, batch2, beta=1, alpha=1, out_dtype=None):
    return _added(self, product(batch1, batch2), beta, alpha)


@lower("addbmm", static_scalars=True)
def _addbmm(self, batch1, batch2, beta=1, alpha=1):
    return _added(self, dot_general(batch1, batch2, ((0, 2), (0, 1))), beta, alpha)


@lower("mv")
def _mv(self, vec):
    return dot_general(self, vec, ((1,), (0,)))


@lower("addmv", static_scalars=True)
def _addmv(self, mat, vec, beta=1, alpha=1):
    return _added(self, dot_general(mat, vec, ((1,), (0,))), beta, alpha)


@lower("dot")
def _dot(self, tensor):
    return dot_general(self, tensor, ((0,), (0,)))


@lower("vdot")
def _vdot(self, other):
    return dot_general(jnp.conj(self), other, ((0,), (0,)))


@lower("addr", static_scalars=True)
def _addr(self, vec1, vec2, beta=1, alpha=1):
    dtype = out().dtype
    vec1, vec2 = cast(vec1, dtype), cast(vec2, dtype)
    if dtype == jnp.bool_:
        outer = (vec1[:, None] & vec2) & bool(alpha)
        return outer | (cast(self, dtype) & bool(beta))
    acc = opmath(dtype)
    return _added(self, vec1.astype(acc)[:, None] * vec2.astype(acc), beta, alpha)


@lower("linear", view=True)
def linear(input, weight, bias=None):
    result = dot_general(input, weight, ((input.ndim - 1,), (1,)))
    return result if bias is None else result + cast(bias, result.dtype)


@lower("matmul", view=True)
def _matmul(self, other):
    return jnp.matmul(self, other, precision=FULL, preferred_element_type=opmath(self.dtype))


@lower("_trilinear")
def _trilinear(i1, i2, i3, expand1, expand2, expand3, sumdim, unroll_dim=1):
    total = 1
    for x, dims in ((i1, expand1), (i2, expand2), (i3, expand3)):
        total = total * jnp.expand_dims(x.astype(opmath(x.dtype)), tuple(dims))
    return jnp.sum(total, axis=tuple(sumdim)) if sumdim else total


@lower("_int_mm")
def _int_mm(self, mat2):
    return product(self, mat2, dtype=jnp.int32)


@lower("_weight_int8pack_mm")
def _weight_int8pack_mm(self, mat2, scales):
    result = dot_general(self, mat2.astype(self.dtype), ((1,), (1,)))
    return result * scales.astype(result.dtype)


@lower("_scaled_mm")
def _scaled_mm(self, mat2, scale_a, scale_b, bias=None, scale_result=None, **_):
    if scale_a.size not in (1, self.shape[0]) or scale_b.size not in (1, mat2.shape[1]):
        raise NotImplementedError(
            f"_scaled_mm takes one scale a tensor or one a row, got {scale_a.shape} and {scale_b.shape} "
            f"for {self.shape} @ {mat2.shape}; scale in blocks before the product instead"
        )
    result = product(self.astype(jnp.float32), mat2.astype(jnp.float32))
    result = result * scale_a.reshape(-1, 1) * scale_b.reshape(1, -1)
    if bias is not None:
        result = result + bias.astype(jnp.float32)
    return result if scale_result is None else result * scale_result


def _group_sizes(offsets):
    ends = offsets.astype(jnp.int32)
    return jnp.diff(ends, prepend=jnp.zeros((1,), jnp.int32))


@lower("_grouped_mm")
def _grouped_mm(self, mat2, offs=None, bias=None, out_dtype=None):
    """One matrix product a group; ``offs`` are the ends of the groups in the shared dimension.

    ``[T, K] @ [G, K, N]`` groups rows, ``[M, T] @ [T, N]`` groups the contraction,
    ``[G, M, K] @ [K, T]`` groups columns and 3-d by 3-d is a batched product.
    """
    acc = opmath(self.dtype)
    if offs is None or (self.ndim == 3 and mat2.ndim == 3):
        result = product(self, mat2)
    elif self.ndim == 2 and mat2.ndim == 3:
        result = lax.ragged_dot(self, mat2, _group_sizes(offs), precision=FULL, preferred_element_type=acc)
    elif self.ndim == 3:
        result = lax.ragged_dot(
            mat2.T, jnp.swapaxes(self, 1, 2), _group_sizes(offs), precision=FULL, preferred_element_type=acc
        ).T
    else:
        groups = lax.RaggedDotDimensionNumbers(
            dot_dimension_numbers=(((1,), (0,)), ((), ())), lhs_ragged_dimensions=[1], rhs_group_dimensions=[]
        )
        result = lax.ragged_dot_general(
            self, mat2, _group_sizes(offs), groups, precision=FULL, preferred_element_type=acc
        )
    return result if bias is None else result + bias.astype(result.dtype)
