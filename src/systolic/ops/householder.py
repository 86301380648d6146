"""Householder vectors: the QR factorization in LAPACK's compact form, and products with its Q."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import linalg as xla

from .registry import lower, out


def _reflect(a, count: int):
    """(R above the vectors, their factors) of one matrix."""
    rows = jnp.arange(a.shape[0])
    columns = jnp.arange(a.shape[1])

    def step(k, state):
        a, factors = state
        column, head = a[:, k], a[k, k]
        tail = jnp.where(rows > k, column, 0)
        rest = jnp.sum(jnp.abs(tail) ** 2)
        length = jnp.sqrt(rest + jnp.abs(head) ** 2)
        beta = jnp.where(head.real < 0, length, -length).astype(a.dtype)
        nothing = (rest == 0) & (head.imag == 0)
        factor = jnp.where(nothing, 0, (beta - head) / jnp.where(nothing, 1, beta))
        vector = jnp.where(rows == k, 1, tail / jnp.where(nothing, 1, head - beta)).astype(a.dtype)
        update = jnp.outer(vector * jnp.conj(factor), jnp.conj(vector) @ a)
        a = jnp.where(columns > k, a - update, a)
        below = jnp.where(rows > k, vector, jnp.where(rows == k, jnp.where(nothing, head, beta), column))
        return a.at[:, k].set(below), factors.at[k].set(factor)

    return lax.fori_loop(0, count, step, (a, jnp.zeros((count,), a.dtype)))


@lower("geqrf")
def _geqrf(self):
    """(R above the Householder vectors, their factors ``[..., min(m, n)]``)."""
    if self.size == 0:
        return jnp.zeros(out(0).shape, self.dtype), jnp.zeros(out(1).shape, self.dtype)
    one = jax.vmap(lambda a: _reflect(a, min(self.shape[-2:])))
    packed, factors = one(self.reshape(-1, *self.shape[-2:]))
    return packed.reshape(out(0).shape), factors.reshape(out(1).shape)


@lower("ormqr")
def _ormqr(self, input2, input3, left=True, transpose=False):
    """The product of Q, given by vectors ``self`` and factors ``input2``, with ``input3``."""
    if input3.size == 0 or input2.size == 0:
        return jnp.broadcast_to(input3, out().shape)
    return xla.ormqr(self, input2, input3, left=left, transpose=transpose)


@lower("linalg_householder_product")
def _householder_product(input, tau):
    return xla.householder_product(input, tau)
