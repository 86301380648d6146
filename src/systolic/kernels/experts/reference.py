"""Mixture-of-experts in plain jax.numpy: every expert on every token, unchosen ones weighted by zero."""

from __future__ import annotations

from typing import Callable, NamedTuple

import jax
import jax.numpy as jnp


class Activation(NamedTuple):
    """gated: the projection is [gate, up] and function(gate) * up is used; else function(projection)."""

    gated: bool
    function: Callable


def _gelu(x):
    return jax.nn.gelu(x, approximate=False)


def _gelu_tanh(x):
    return jax.nn.gelu(x, approximate=True)


def _relu2(x):
    return jnp.square(jax.nn.relu(x))


# Names as in vLLM's MoEActivation.
ACTIVATIONS = {
    "silu": Activation(True, jax.nn.silu),
    "gelu": Activation(True, _gelu),
    "gelu_tanh": Activation(True, _gelu_tanh),
    "silu_no_mul": Activation(False, jax.nn.silu),
    "gelu_no_mul": Activation(False, _gelu),
    "gelu_tanh_no_mul": Activation(False, _gelu_tanh),
    "relu2_no_mul": Activation(False, _relu2),
}


def activate(projected, activation: str):
    """The activation applied over the last dimension of float32 `projected`."""
    gated, function = ACTIVATIONS[activation]
    if not gated:
        return function(projected)
    gate, up = jnp.split(projected, 2, axis=-1)
    return function(gate) * up


def experts_reference(x, w13, w2, ids, weights, *, activation: str):
    """Same arguments and result as `experts`."""
    count = w13.shape[0]
    chosen = ids[:, :, None] == jnp.arange(count, dtype=ids.dtype)
    share = jnp.sum(jnp.where(chosen, weights[:, :, None].astype(jnp.float32), 0.0), axis=1)  # [tokens, experts]
    options = dict(precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)
    hidden = activate(jnp.einsum("th,eih->tei", x, w13, **options), activation)
    out = jnp.einsum("tei,ehi->teh", hidden.astype(w2.dtype), w2, **options)
    return jnp.einsum("teh,te->th", out, share, precision=jax.lax.Precision.HIGHEST).astype(x.dtype)
