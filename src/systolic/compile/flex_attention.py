"""``torch.nn.attention.flex_attention``: the score and mask functions are traced into the program.

Queries are taken in blocks, so that scores never need more than ``_SCORES`` elements at a time.  Block masks give
their mask function; blocks that a mask leaves out are computed and masked, as PyTorch's own reference does.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import torch

from ..ops.matmul import FULL
from .custom import register_custom
from .higher_order import Call, lower

# Elements of the scores of one block of queries (256 MiB in float32).
_SCORES = 1 << 26


class _Problem:
    """What the forward and the backward operator share: sizes, and scores of a block of queries.

    query ``[B, Hq, L, E]``; key ``[B or 1, Hkv, S, E]``; value ``[B or 1, Hkv, S, Ev]``.
    """

    def __init__(self, call: Call, query, key, value, block_mask, scale, score_buffers, mask_buffers):
        self.walk = call.walk
        self.scale, self.mask_graph = scale, block_mask[-1]
        self.score_buffers, self.mask_buffers = list(score_buffers), list(mask_buffers)
        self.batch, self.heads, self.length, _ = query.shape
        self.key_batch, self.key_heads, self.keys, _ = key.shape
        self.groups = self.heads // self.key_heads
        self.working = jnp.float64 if query.dtype == jnp.float64 else jnp.float32
        self.key, self.value = self._for_queries(key), self._for_queries(value)
        per_query = max(1, self.batch * self.heads * self.keys)
        self.block = max(1, min(self.length, _SCORES // per_query))
        self.blocks = -(-self.length // self.block)

    def _for_queries(self, tensor):
        """``[B, Hq, S, E]``: each key head for its group of query heads."""
        tensor = jnp.broadcast_to(tensor, (self.batch, *tensor.shape[1:]))
        return jnp.repeat(tensor, self.groups, axis=1) if self.groups > 1 else tensor

    def of_keys(self, gradient):
        """The gradient ``[B, Hq, S, E]`` of :meth:`_for_queries`, summed where keys were shared."""
        shape = (self.batch, self.key_heads, self.groups, *gradient.shape[2:])
        gradient = gradient.reshape(shape).sum(2)
        return gradient.sum(0, keepdims=True) if self.key_batch != self.batch else gradient

    def blocked(self, tensor):
        """``[blocks, B, Hq, block, ...]`` of ``[B, Hq, L, ...]``, zeros after the end."""
        padding = [(0, 0)] * tensor.ndim
        padding[2] = (0, self.blocks * self.block - self.length)
        tensor = jnp.pad(tensor, padding)
        return jnp.moveaxis(tensor.reshape(*tensor.shape[:2], self.blocks, self.block, *tensor.shape[3:]), 2, 0)

    def unblocked(self, tensor):
        """The reverse of :meth:`blocked`."""
        tensor = jnp.moveaxis(tensor, 0, 2)
        return tensor.reshape(*tensor.shape[:2], -1, *tensor.shape[4:])[:, :, : self.length]

    def over_positions(self, function, number, *dense):
        """``function(*dense elements, b, h, q, kv)`` at all positions of block ``number``; dense ``[B, Hq, block, S]``."""
        index = [jnp.arange(n, dtype=jnp.int32) for n in (self.batch, self.heads, self.block, self.keys)]
        index[2] = jnp.minimum(index[2] + number * self.block, self.length - 1)
        for axis in (3, 2, 1, 0):
            axes = [0 if i == axis else None for i in range(4)]
            function = jax.vmap(function, in_axes=(*[0] * len(dense), *axes))
        return function(*dense, *index)

    def mask(self, number):
        def inside(b, h, q, kv):
            return self.walk(self.mask_graph, [b, h, q, kv, *self.mask_buffers])[0]

        allowed = self.over_positions(inside, number)
        return jnp.broadcast_to(allowed, (self.batch, self.heads, self.block, self.keys)).astype(bool)

    def product(self, equation, a, b):
        return jnp.einsum(equation, a, b, precision=FULL, preferred_element_type=self.working)

    def scores(self, query):
        """``[B, Hq, block, S]`` before the score function."""
        return self.product("bhqe,bhke->bhqk", query, self.key) * self.scale

    def modified(self, graph, scores, number):
        """The score function of ``graph``, with the mask's -inf."""

        def change(score, b, h, q, kv):
            return self.walk(graph, [score, b, h, q, kv, *self.score_buffers])[0]

        changed = self.over_positions(change, number, scores).astype(self.working)
        return jnp.where(self.mask(number), changed, -jnp.inf)


@lower("flex_attention")
def _forward(call: Call):
    """Returns (output ``[B, Hq, L, Ev]``, log2 of the sum of exponentials, largest score / ln 2), both ``[B, Hq, L]``."""
    query, key, value, graph, block_mask, scale, _, *buffers = call.args
    problem = _Problem(call, query, key, value, block_mask, scale, *_both(buffers))

    def attend(item):
        number, part = item
        scores = problem.modified(graph, problem.scores(part), number)
        largest = scores.max(-1, initial=-jnp.inf)
        base = jnp.where(largest == -jnp.inf, 0, largest)
        weights = jnp.exp(scores - base[..., None])
        total = weights.sum(-1)
        weights = (weights / jnp.where(total == 0, 1, total)[..., None]).astype(query.dtype)
        result = problem.product("bhqk,bhke->bhqe", weights, problem.value.astype(query.dtype))
        return result.astype(query.dtype), base + jnp.log(total), largest

    parts = jax.lax.map(attend, (jnp.arange(problem.blocks), problem.blocked(query)))
    result, logsumexp, largest = map(problem.unblocked, parts)
    return result, logsumexp / math.log(2), largest / math.log(2)


@lower("flex_attention_backward")
def _backward(call: Call):
    """Returns the gradients of query, key, value and of the score function's buffers (None for those without)."""
    query, key, value, result, logsumexp, grad, grad_logsumexp, graph, joint, block_mask, scale, _, *buffers = call.args
    problem = _Problem(call, query, key, value, block_mask, scale, *_both(buffers))
    working = problem.working
    grad = jnp.zeros_like(result) if grad is None else grad
    grad_logsumexp = jnp.zeros_like(logsumexp) if grad_logsumexp is None else grad_logsumexp
    natural = logsumexp.astype(working) * math.log(2)
    through = (result.astype(working) * grad.astype(working)).sum(-1) - grad_logsumexp.astype(working) / math.log(2)
    wanted = [i for i, fake in enumerate(call.result[3]) if isinstance(fake, torch.Tensor)]

    def step(sums, item):
        number, query, grad, natural, through = item
        scores = problem.scores(query)
        rows = (jnp.arange(problem.block) + number * problem.block < problem.length)[:, None]
        lost = (natural == -jnp.inf)[..., None] | ~rows
        weights = jnp.exp(problem.modified(graph, scores, number) - jnp.where(lost, 0, natural[..., None]))
        weights = jnp.where(lost, 0, weights)
        to_weights = problem.product("bhqe,bhke->bhqk", grad, problem.value)
        to_modified = weights * (to_weights - through[..., None])
        allowed = problem.mask(number)
        to_modified = jnp.where(allowed, to_modified, 0)
        to_scores = _through_score_function(problem, joint, scores, to_modified, number)
        to_scores = (jnp.where(allowed, to_scores, 0) * scale).astype(query.dtype)
        new = [
            problem.product("bhqk,bhqe->bhke", to_scores, query),
            problem.product("bhqk,bhqe->bhke", weights.astype(grad.dtype), grad),
            *_to_buffers(problem, graph, wanted, scores, to_modified, number),
        ]
        sums = [total + part.astype(total.dtype) for total, part in zip(sums, new)]
        return sums, problem.product("bhqk,bhke->bhqe", to_scores, problem.key)

    start = [jnp.zeros(t.shape, working) for t in (problem.key, problem.value)]
    start += [jnp.zeros(problem.score_buffers[i].shape, problem.score_buffers[i].dtype) for i in wanted]
    items = (jnp.arange(problem.blocks), *map(problem.blocked, (query, grad, natural, through)))
    (to_key, to_value, *to_buffers), to_query = jax.lax.scan(step, start, items)
    gradients = [None] * len(call.result[3])
    for position, gradient in zip(wanted, to_buffers):
        gradients[position] = gradient
    return (
        problem.unblocked(to_query).astype(query.dtype),
        problem.of_keys(to_key).astype(key.dtype),
        problem.of_keys(to_value).astype(value.dtype),
        gradients,
    )


def _both(buffers) -> tuple[list, list]:
    """(buffers of the score function, those of the mask function); a graph leaves empty ones out."""
    return (*buffers, [], [])[:2]


def _through_score_function(problem: _Problem, joint, scores, gradient, number):
    """The gradient of the scores before the score function, by PyTorch's own derivative of it."""

    def change(score, gradient, b, h, q, kv):
        return problem.walk(joint, [score, b, h, q, kv, gradient, *problem.score_buffers])[0]

    given = gradient.astype(scores.dtype)
    return jnp.broadcast_to(problem.over_positions(change, number, scores, given), scores.shape)


def _to_buffers(problem: _Problem, graph, wanted: list[int], scores, gradient, number) -> list:
    """Gradients of the score function's buffers, summed over all positions.

    PyTorch's derivative gives one tensor a position for each buffer, so JAX's is used.
    """
    if not wanted:
        return []

    def total(*chosen):
        given = list(problem.score_buffers)
        for position, buffer in zip(wanted, chosen):
            given[position] = buffer

        def change(score, b, h, q, kv):
            return problem.walk(graph, [score, b, h, q, kv, *given])[0]

        return problem.over_positions(change, number, scores)

    changed, pull = jax.vjp(total, *(problem.score_buffers[i] for i in wanted))
    return list(pull(jnp.broadcast_to(gradient, changed.shape).astype(changed.dtype)))


def _zeros_and_scatter(shape, indices, vals):
    """``flex_lib::zeros_and_scatter`` at one position; only traced, since :func:`_to_buffers` gives these gradients."""
    return jnp.zeros(tuple(shape), vals.dtype).at[tuple(indices)].add(vals)


register_custom("flex_lib::zeros_and_scatter", _zeros_and_scatter)
