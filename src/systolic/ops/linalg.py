"""Dense linear algebra: factorizations, solves, determinants.

A failed factorization does not raise inside a program: its ``info`` result is 1 (LAPACK would
give the number of the pivot that failed) and the factor is NaN.
"""

from __future__ import annotations

import jax.numpy as jnp
import jax.scipy.linalg as jsl
from jax.lax import linalg as xla

from .registry import lower, out


def _adjoint(x):
    return jnp.conj(jnp.swapaxes(x, -1, -2))


def _identity_like(a):
    return jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)


def _lower_factor(a, upper: bool):
    """The Cholesky factor in the wanted half; only that half of ``a`` is read."""
    if a.size == 0:
        return a
    if upper:
        a = _adjoint(a)
    factor = jnp.tril(xla.cholesky(a, symmetrize_input=False))
    return _adjoint(factor) if upper else factor


@lower("cholesky")
def _cholesky(self, upper=False):
    return _lower_factor(self, upper)


@lower("linalg_cholesky_ex")
def _cholesky_ex(self, upper=False, check_errors=False):
    factor = _lower_factor(self, upper)
    failed = jnp.any(jnp.isnan(factor), axis=(-2, -1)) & ~jnp.any(jnp.isnan(self), axis=(-2, -1))
    return factor, failed.astype(jnp.int32)


@lower("cholesky_inverse")
def _cholesky_inverse(self, upper=False):
    return _cholesky_apply(_identity_like(self), self, upper)


def _cholesky_apply(b, factor, upper: bool):
    if b.size == 0:
        return b
    lower_ = _adjoint(factor) if upper else factor
    half = xla.triangular_solve(lower_, b, left_side=True, lower=True)
    return xla.triangular_solve(lower_, half, left_side=True, lower=True, transpose_a=True, conjugate_a=True)


@lower("_cholesky_solve_helper")
def _cholesky_solve_helper(self, A, upper):
    return _cholesky_apply(self, A, upper)


def _batched(a, b):
    """Both operands with the same batch dimensions."""
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return jnp.broadcast_to(a, batch + a.shape[-2:]), jnp.broadcast_to(b, batch + b.shape[-2:])


@lower("linalg_solve_triangular")
def _solve_triangular(self, B, upper, left=True, unitriangular=False):
    a, b = _batched(self, B)
    if b.size == 0:
        return jnp.zeros(out().shape, b.dtype)
    return xla.triangular_solve(a, b, left_side=left, lower=not upper, unit_diagonal=unitriangular)


@lower("triangular_solve")
def _triangular_solve(self, A, upper=True, transpose=False, unitriangular=False):
    a, b = _batched(A, self)
    if b.size == 0:
        return jnp.zeros(out(0).shape, b.dtype), a
    solution = xla.triangular_solve(
        a, b, left_side=True, lower=not upper, transpose_a=transpose, unit_diagonal=unitriangular
    )
    return solution, a


def _lu(a):
    """(LU, 1-based int32 pivots, int32 info) of square or rectangular matrices."""
    if a.size == 0:
        rank = min(a.shape[-2:])
        return a, jnp.zeros(a.shape[:-2] + (rank,), jnp.int32), jnp.zeros(a.shape[:-2], jnp.int32)
    lu, pivots, _ = xla.lu(a)
    zero = jnp.diagonal(lu, axis1=-2, axis2=-1) == 0
    info = jnp.where(jnp.any(zero, -1), jnp.argmax(zero, -1) + 1, 0)
    return lu, pivots.astype(jnp.int32) + 1, info.astype(jnp.int32)


def _permutation(pivots, rows: int):
    """Row order (int32 ``[..., rows]``) that 1-based LAPACK ``pivots`` stand for."""
    return xla.lu_pivots_to_permutation(pivots.astype(jnp.int32) - 1, rows)


@lower("linalg_lu_factor_ex")
def _lu_factor_ex(A, pivot=True, check_errors=False):
    if not pivot:
        raise NotImplementedError("linalg.lu_factor without pivoting is not lowered; use pivot=True")
    return _lu(A)


def _unpacked(lu, pivots):
    rows, columns = lu.shape[-2:]
    rank = min(rows, columns)
    unit = jnp.eye(rows, rank, dtype=lu.dtype)
    lower_ = jnp.tril(lu[..., :, :rank], -1) + unit
    upper = jnp.triu(lu[..., :rank, :])
    order = _permutation(pivots, rows)
    p = jnp.swapaxes(jnp.eye(rows, dtype=lu.dtype)[order], -1, -2)
    return p, lower_, upper


@lower("linalg_lu")
def _linalg_lu(A, pivot=True):
    if not pivot:
        raise NotImplementedError("linalg.lu without pivoting is not lowered; use pivot=True")
    lu, pivots, _ = _lu(A)
    return _unpacked(lu, pivots)


@lower("lu_unpack")
def _lu_unpack(LU_data, LU_pivots, unpack_data=True, unpack_pivots=True):
    results = _unpacked(LU_data, LU_pivots)
    shapes = [out(i).shape for i in range(3)]  # a part that was not asked for is empty
    return tuple(r if r.shape == shape else jnp.zeros(shape, r.dtype) for r, shape in zip(results, shapes))


def _lu_apply(lu, pivots, b, left=True, adjoint=False):
    """Solve ``A x = b`` (or ``x A = b``; with ``adjoint`` the conjugate transpose of A)."""
    if not left:
        return _adjoint(_lu_apply(lu, pivots, _adjoint(b), adjoint=not adjoint))
    lu, b = _batched(lu, b)
    order = _permutation(pivots, lu.shape[-1])
    order = jnp.broadcast_to(order, lu.shape[:-1])[..., None]
    if not adjoint:
        b = jnp.take_along_axis(b, order, axis=-2)
        b = xla.triangular_solve(lu, b, left_side=True, lower=True, unit_diagonal=True)
        return xla.triangular_solve(lu, b, left_side=True, lower=False)
    b = xla.triangular_solve(lu, b, left_side=True, lower=False, transpose_a=True, conjugate_a=True)
    b = xla.triangular_solve(
        lu, b, left_side=True, lower=True, transpose_a=True, conjugate_a=True, unit_diagonal=True
    )
    return jnp.take_along_axis(b, jnp.argsort(order, axis=-2), axis=-2)


@lower("linalg_lu_solve")
def _linalg_lu_solve(LU, pivots, B, left=True, adjoint=False):
    return _lu_apply(LU, pivots, B, left, adjoint) if B.size else jnp.zeros(out().shape, B.dtype)


@lower("_linalg_solve_ex")
def _solve_ex(A, B, left=True, check_errors=False):
    lu, pivots, info = _lu(A)
    vector = len(out(0).shape) == A.ndim - 1
    b = B[..., None] if vector else B
    if not left and vector:
        b = jnp.swapaxes(b, -1, -2)
    result = _lu_apply(lu, pivots, b, left) if b.size and A.size else jnp.zeros(out(0).shape, A.dtype)
    return result.reshape(out(0).shape), lu, pivots, info


@lower("linalg_inv_ex")
def _inv_ex(A, check_errors=False):
    lu, pivots, info = _lu(A)
    return (_lu_apply(lu, pivots, _identity_like(A)) if A.size else A), info


def _lu_for_det(a):
    """LU as PyTorch's determinants keep it: of the transpose for a real row-major matrix."""
    lu, pivots, _ = _lu(a if jnp.issubdtype(a.dtype, jnp.complexfloating) else jnp.swapaxes(a, -1, -2))
    swaps = jnp.sum(pivots != jnp.arange(1, pivots.shape[-1] + 1), axis=-1)
    sign = jnp.where(swaps % 2 == 1, -1, 1).astype(a.dtype)
    return lu, pivots, jnp.diagonal(lu, axis1=-2, axis2=-1), sign


@lower("_linalg_det")
def _det(A):
    lu, pivots, diagonal, sign = _lu_for_det(A)
    return jnp.prod(diagonal, axis=-1) * sign, lu, pivots


@lower("_linalg_slogdet")
def _slogdet(A):
    lu, pivots, diagonal, sign = _lu_for_det(A)
    size = jnp.abs(diagonal)
    unit = jnp.sign(diagonal)
    return jnp.prod(unit, axis=-1) * sign, jnp.sum(jnp.log(size), axis=-1), lu, pivots


@lower("linalg_qr")
def _qr(A, mode="reduced"):
    if mode == "r":
        return jnp.zeros(out(0).shape, A.dtype), jnp.linalg.qr(A, mode="r")
    return tuple(jnp.linalg.qr(A, mode=mode))


@lower("_linalg_svd")
def _svd(A, full_matrices=False, compute_uv=True, driver=None):
    if compute_uv:
        return tuple(jnp.linalg.svd(A, full_matrices=full_matrices))
    values = jnp.linalg.svd(A, compute_uv=False)
    return jnp.zeros(out(0).shape, A.dtype), values, jnp.zeros(out(2).shape, A.dtype)


@lower("_linalg_eigh")
def _eigh(A, UPLO="L", compute_v=True):
    if A.size == 0:
        return tuple(jnp.zeros(out(i).shape, out(i).dtype) for i in range(2))
    a = A if UPLO.upper() == "L" else _adjoint(A)
    vectors, values = xla.eigh(a, lower=True, symmetrize_input=False)
    return values, vectors if compute_v else jnp.zeros(out(1).shape, A.dtype)


@lower("linalg_eig")
def _eig(self):
    return tuple(jnp.linalg.eig(self))


@lower("_linalg_eigvals", "linalg_eigvals")
def _eigvals(self):
    return jnp.linalg.eigvals(self) if self.size else jnp.zeros(out().shape, out().dtype)


@lower("linalg_matrix_exp")
def _matrix_exp(self):
    if not self.size:
        return self
    # Squaring loses digits in proportion to the norm, so it is done in double precision; 16 squarings, JAX's
    # default, give NaN from a norm of about 200,000 on.
    wide = jnp.complex128 if jnp.issubdtype(self.dtype, jnp.complexfloating) else jnp.float64
    return jsl.expm(self.astype(wide), max_squarings=64).astype(self.dtype)


@lower("linalg_cross")
def _cross(self, other, dim=-1):
    a, b = jnp.broadcast_arrays(self, other)

    def turned(x, by):
        return jnp.roll(x, -by, axis=dim)

    return turned(a, 1) * turned(b, 2) - turned(a, 2) * turned(b, 1)
