"""The training steps of `workloads.py` in plain JAX: forward, gradient and AdamW under one `jax.jit`."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import torch
from jax_layers import block, layer_norm, linear


def from_torch(model: torch.nn.Module) -> dict:
    """The trainable parameters of a torch model by name, as JAX arrays."""
    return {name: jnp.asarray(p.detach().cpu().numpy()) for name, p in model.named_parameters()}


def _cross_entropy(logits, classes):
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), classes[:, None], axis=1)
    return -picked.mean()


def character_loss(p: dict, inputs, targets, heads: int):
    """Mean cross entropy of `workloads.CharacterModel` for int (batch, length) inputs and targets."""
    x = p["characters.weight"][inputs] + p["places.weight"][: inputs.shape[1]]
    layers = 1 + max(int(name.split(".")[1]) for name in p if name.startswith("blocks."))
    for layer in range(layers):
        x = block(p, x, heads, f"blocks.{layer}.")
    logits = linear(p, "head", layer_norm(p, "norm", x))
    return _cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def _convolution(p, name, x):
    out = jax.lax.conv_general_dilated(x, p[f"{name}.weight"], (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
    return out + p[f"{name}.bias"][:, None, None]


def _batch_norm(p, name, x):
    mean = x.mean((0, 2, 3), keepdims=True)
    variance = ((x - mean) ** 2).mean((0, 2, 3), keepdims=True)
    weight, bias = p[f"{name}.weight"][:, None, None], p[f"{name}.bias"][:, None, None]
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * weight + bias


def _pool(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")


def digit_loss(p: dict, images, classes):
    """Mean cross entropy of `workloads.DigitClassifier` in training mode (running statistics are not kept)."""
    x = _pool(jax.nn.relu(_batch_norm(p, "norm1", _convolution(p, "first", images))))
    x = _pool(jax.nn.relu(_batch_norm(p, "norm2", _convolution(p, "second", x))))
    return _cross_entropy(linear(p, "head", x.reshape(len(x), -1)), classes)


def stepper(loss, rate: float):
    """``step(state, inputs, targets) -> (state, loss)`` with donated state, and ``start(params) -> state``."""

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state, inputs, targets):
        params, first, second, count = state
        value, grads = jax.value_and_grad(loss)(params, inputs, targets)
        count = count + 1
        size, root = rate / (1 - 0.9**count), jnp.sqrt(1 - 0.999**count)
        first = jax.tree.map(lambda m, g: m + 0.1 * (g - m), first, grads)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, second, grads)
        params = jax.tree.map(
            lambda p, m, v: p * (1 - rate * 0.01) - size * m / (jnp.sqrt(v) / root + 1e-8), params, first, second
        )
        return (params, first, second, count), value

    def start(params):
        zeros = jax.tree.map(jnp.zeros_like, params)
        return params, zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros((), jnp.float32)

    return step, start
