"""LDL factorization of symmetric matrices with Bunch-Kaufman pivoting, in LAPACK's format, and solving with it.

Pivots are 1-based; a negative pair of equal ones marks a block of two rows.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .registry import lower, out

_GROWTH = (1 + math.sqrt(17)) / 8  # the bound that makes one- and two-row blocks grow alike


def _exchange(x, i, j):
    """Rows ``i`` and ``j`` of ``x`` exchanged."""
    order = jnp.arange(x.shape[0])
    return x[order.at[i].set(j).at[j].set(i)]


def _choose(a, k):
    """(pivot row, whether the block has two rows, whether the column is zero) at column ``k``."""
    rows = jnp.arange(a.shape[0])
    size = jnp.abs(a)
    below = jnp.where(rows > k, size[:, k], -1)
    row, largest = jnp.argmax(below), jnp.maximum(jnp.max(below), 0)
    others = jnp.max(jnp.where((rows >= k) & (rows != row), size[row], 0))
    own = size[k, k]
    zero = jnp.maximum(own, largest) == 0
    safe = jnp.where(others == 0, 1, others)
    stay = zero | (own >= _GROWTH * largest) | (own * safe >= _GROWTH * largest * largest)
    two = ~stay & (size[row, row] < _GROWTH * others)
    return jnp.where(stay, k, row), two, zero


def _factor(a, hermitian: bool):
    """(LD, pivots, info) of one matrix whose lower half is read."""
    n = a.shape[0]
    turn = jnp.conj if hermitian else (lambda x: x)
    rows = jnp.arange(n)
    a = jnp.tril(a) + turn(jnp.tril(a, -1)).T

    def step(state):
        a, k, pivots, info = state
        row, two, zero = _choose(a, k)
        last = k + two.astype(k.dtype)
        # Rows and columns of what is left; the columns of L that are done keep their order.
        left = (rows >= k)[None, :]
        a = jnp.where(left, _exchange(a, last, row), a)
        a = jnp.where(left.T, _exchange(a.T, last, row).T, a)
        following = jnp.minimum(k + 1, n - 1)
        column, beside = a[:, k], a[:, following]
        d, c, e = a[k, k], a[following, k], a[following, following]
        tail = rows > last
        single = jnp.where(tail, column / jnp.where(zero, 1, d), 0)
        determinant = jnp.where(two, d * e - c * turn(c), 1)
        first = jnp.where(tail, (column * e - beside * c) / determinant, 0)
        second = jnp.where(tail, (beside * d - column * turn(c)) / determinant, 0)
        by_one = jnp.outer(single, turn(jnp.where(tail, column, 0)))
        by_two = jnp.outer(first, turn(jnp.where(tail, column, 0))) + jnp.outer(
            second, turn(jnp.where(tail, beside, 0))
        )
        a = a - jnp.where(two, by_two, jnp.where(zero, 0, by_one))
        a = a.at[:, k].set(jnp.where(tail, jnp.where(two, first, single), a[:, k]))
        a = a.at[:, following].set(jnp.where(tail & two, second, a[:, following]))
        mark = jnp.where(two, -(row + 1), row + 1).astype(np.int32)
        pivots = pivots.at[k].set(mark).at[following].set(jnp.where(two, mark, pivots[following]))
        pivots = pivots.at[k].set(mark)
        info = jnp.where((info == 0) & zero, k + 1, info)
        return a, last + 1, pivots, info

    start = (a, jnp.zeros((), np.int32), jnp.zeros((n,), np.int32), jnp.zeros((), np.int32))
    a, _, pivots, info = lax.while_loop(lambda state: state[1] < n, step, start)
    return jnp.tril(a), pivots, info


@lower("linalg_ldl_factor_ex")
def _ldl_factor(self, hermitian=False, check_errors=False):
    if self.size == 0:
        return tuple(jnp.zeros(out(i).shape, out(i).dtype) for i in range(3))
    one = jax.vmap(lambda a: _factor(a, hermitian and jnp.iscomplexobj(a)))
    parts = one(self.reshape(-1, *self.shape[-2:]))
    return tuple(p.reshape(out(i).shape) for i, p in enumerate(parts))


def _solve(ld, pivots, b, hermitian: bool):
    n = ld.shape[0]
    turn = jnp.conj if hermitian else (lambda x: x)
    rows = jnp.arange(n)
    below = jnp.where(rows[:, None] > rows, ld, 0)

    def forward(state):
        k, b = state
        two = pivots[k] < 0
        last = k + two.astype(k.dtype)
        following = jnp.minimum(k + 1, n - 1)
        b = _exchange(b, last, jnp.abs(pivots[k]) - 1)
        tail = (rows > last)[:, None]
        done = jnp.outer(below[:, k], b[k]) + jnp.where(two, jnp.outer(below[:, following], b[following]), 0)
        b = jnp.where(tail, b - done, b)
        d, c, e = ld[k, k], ld[following, k], ld[following, following]
        determinant = jnp.where(two, d * e - c * turn(c), 1)
        top = jnp.where(two, (e * b[k] - turn(c) * b[following]) / determinant, b[k] / jnp.where(two, 1, d))
        bottom = (d * b[following] - c * b[k]) / determinant
        b = b.at[following].set(jnp.where(two, bottom, b[following]))
        return last + 1, b.at[k].set(top)

    def backward(state):
        k, b = state
        two = pivots[k] < 0
        first = k - two.astype(k.dtype)
        tail = jnp.where((rows > k)[:, None], b, 0)
        b = b.at[k].add(-turn(below[:, k]) @ tail)
        b = b.at[first].add(jnp.where(two, -turn(below[:, first]) @ tail, 0))
        return first - 1, _exchange(b, k, jnp.abs(pivots[k]) - 1)

    _, b = lax.while_loop(lambda state: state[0] < n, forward, (jnp.zeros((), np.int32), b))
    _, b = lax.while_loop(lambda state: state[0] >= 0, backward, (jnp.asarray(n - 1, np.int32), b))
    return b


@lower("linalg_ldl_solve")
def _ldl_solve(LD, pivots, B, hermitian=False):
    if B.size == 0 or LD.size == 0:
        return jnp.zeros(out().shape, B.dtype)
    shape = out().shape
    batch = shape[:-2]
    ld = jnp.broadcast_to(LD, batch + LD.shape[-2:]).reshape(-1, *LD.shape[-2:])
    marks = jnp.broadcast_to(pivots, batch + pivots.shape[-1:]).reshape(-1, pivots.shape[-1])
    b = jnp.broadcast_to(B, shape).reshape(-1, *shape[-2:])
    one = jax.vmap(lambda l, p, r: _solve(l, p, r, hermitian and jnp.iscomplexobj(l)))
    return one(ld, marks, b).reshape(shape)
