"""Connectionist temporal classification loss: the forward recursion over time, and its gradient."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from .numerics import opmath
from .registry import lower, out

# Stands for log 0: finite, so that gradients of sums of it are zero and not NaN.
_NEVER = -1e30


def _padded(targets, target_lengths):
    """Targets ``[batch, longest]`` from that shape or from the concatenated form."""
    longest = max(target_lengths, default=0)
    if targets.ndim == 2:
        return targets[:, :longest]
    starts = np.cumsum([0, *target_lengths[:-1]])
    places = starts[:, None] + np.arange(longest)
    return targets[np.minimum(places, max(targets.shape[0] - 1, 0))] if targets.shape[0] else jnp.zeros(
        places.shape, targets.dtype
    )


def _log_sum(*terms):
    largest = jax.lax.stop_gradient(jnp.stack(terms).max(0))
    return largest + jnp.log(sum(jnp.exp(t - largest) for t in terms))


def _recursion(log_probs, targets, input_lengths, target_lengths, blank: int):
    """(loss ``[batch]``, log alpha ``[batch, time, 2 * longest + 1]``) of ``[time, batch, classes]``."""
    time, batch, _ = log_probs.shape
    targets = _padded(targets, target_lengths)
    states = 2 * targets.shape[1] + 1
    labels = jnp.full((batch, states), blank, targets.dtype).at[:, 1::2].set(targets)
    # A label may be reached from two states back unless that is the same label.
    skips = jnp.zeros((batch, states), bool).at[:, 2:].set(labels[:, 2:] != labels[:, :-2])
    skips = skips & (labels != blank)
    ends = 2 * np.asarray(target_lengths, np.int64) + 1
    inside = jnp.asarray(np.arange(states) < ends[:, None])
    never = jnp.asarray(_NEVER, log_probs.dtype)
    emitted = jnp.take_along_axis(log_probs, jnp.broadcast_to(labels, (time, *labels.shape)), axis=2, mode="clip")
    emitted = jnp.maximum(emitted, never)  # classes of probability zero
    first = jnp.where(jnp.arange(states) < 2, emitted[0], never) if time else None

    def shifted(alpha, by):
        return jnp.pad(alpha, ((0, 0), (by, 0)), constant_values=_NEVER)[:, :states]

    def step(alpha, now):
        total = _log_sum(alpha, shifted(alpha, 1), jnp.where(skips, shifted(alpha, 2), never)) + now
        total = jnp.maximum(total, never)
        return total, total

    if not time:
        loss = jnp.where(jnp.asarray(ends) == 1, 0.0, np.inf).astype(log_probs.dtype)
        return loss, jnp.zeros((batch, 0, states), log_probs.dtype)
    first = jnp.where(inside, first, never)
    _, rest = jax.lax.scan(lambda a, now: step(a, jnp.where(inside, now, never)), first, emitted[1:])
    alphas = jnp.moveaxis(jnp.concatenate([first[None], rest]), 0, 1)
    last = np.maximum(np.asarray(input_lengths, np.int64) - 1, 0)
    final = alphas[np.arange(batch), last]
    blank_end = jnp.take_along_axis(final, jnp.asarray(ends - 1)[:, None], 1)[:, 0]
    label_end = jnp.take_along_axis(final, jnp.asarray(np.maximum(ends - 2, 0))[:, None], 1)[:, 0]
    label_end = jnp.where(jnp.asarray(ends) > 1, label_end, never)
    loss = -_log_sum(blank_end, label_end)
    no_input = np.asarray(input_lengths) == 0
    loss = jnp.where(no_input, jnp.where(jnp.asarray(ends) == 1, 0.0, -_NEVER).astype(loss.dtype), loss)
    return loss, alphas


def _batched(log_probs, targets, input_lengths, target_lengths):
    """Arguments with a batch dimension; a 1-d target of an unbatched input is one sequence."""
    if log_probs.ndim == 3:
        return log_probs, targets
    return log_probs[:, None], targets.reshape(1, -1)


_IMPOSSIBLE = -_NEVER / 10


@lower("_ctc_loss")
def _ctc_loss(log_probs, targets, input_lengths, target_lengths, blank=0, zero_infinity=False):
    """(negative log-likelihood ``[batch]``, log alpha ``[batch, time, 2 * longest + 1]``)."""
    x, labels = _batched(log_probs.astype(opmath(log_probs.dtype)), targets, input_lengths, target_lengths)
    loss, alphas = _recursion(x, labels, input_lengths, target_lengths, blank)
    infinite = jnp.zeros((), x.dtype) if zero_infinity else jnp.asarray(np.inf, x.dtype)
    loss = jnp.where(loss >= _IMPOSSIBLE, infinite, loss)
    alphas = jnp.where(alphas <= -_IMPOSSIBLE, -np.inf, alphas)
    alphas = jnp.pad(alphas, ((0, 0), (0, 0), (0, out(1).shape[-1] - alphas.shape[-1])), constant_values=-np.inf)
    return loss.reshape(out(0).shape), alphas.reshape(out(1).shape)


@lower("_ctc_loss_backward")
def _ctc_loss_backward(
    grad, log_probs, targets, input_lengths, target_lengths, neg_log_likelihood, log_alpha, blank,
    zero_infinity=False,
):  # fmt: skip
    """The gradient as PyTorch defines it: through the log_softmax that made ``log_probs``."""
    x, labels = _batched(log_probs.astype(opmath(log_probs.dtype)), targets, input_lengths, target_lengths)
    if x.size == 0:
        return jnp.zeros(log_probs.shape, x.dtype)

    def total(values):
        loss, _ = _recursion(values, labels, input_lengths, target_lengths, blank)
        return jnp.sum(loss), loss

    (_, loss), occupied = jax.value_and_grad(total, has_aux=True)(x)
    result = jnp.exp(x) + occupied
    infinite = loss >= _IMPOSSIBLE
    result = jnp.where(infinite[:, None], 0 if zero_infinity else np.nan, result)
    result = result * grad.astype(x.dtype).reshape(-1)[:, None]
    running = np.arange(x.shape[0])[:, None] < np.asarray(input_lengths)
    return jnp.where(jnp.asarray(running)[..., None], result, jnp.zeros((), x.dtype)).reshape(log_probs.shape)
