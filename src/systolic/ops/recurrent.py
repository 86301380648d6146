"""The cells behind torch.nn.LSTM and GRU: gates from one product each, and their gradients.

The workspace holds the activated gates, in the order of the weights.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from .numerics import opmath
from .registry import lower

_meta = torch.library.Library("aten", "IMPL")  # the registrations live as long as this object


def _gates(gates, bias):
    gates = gates.astype(opmath(gates.dtype))
    return gates if bias is None else gates + bias.astype(gates.dtype)


def _split(gates, parts: int):
    return jnp.split(gates.astype(opmath(gates.dtype)), parts, axis=1)


def _slope(sigmoid):
    return sigmoid * (1 - sigmoid)


@lower("_thnn_fused_lstm_cell")
def _lstm_cell(input_gates, hidden_gates, cx, input_bias=None, hidden_bias=None):
    gates = _gates(input_gates, input_bias) + _gates(hidden_gates, hidden_bias)
    i, f, g, o = jnp.split(gates, 4, axis=1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cy = f * cx.astype(f.dtype) + i * g
    return o * jnp.tanh(cy), cy, jnp.concatenate([i, f, g, o], axis=1)


@lower("_thnn_fused_lstm_cell_backward_impl")
def _lstm_cell_backward(grad_hy, grad_cy, cx, cy, workspace, has_bias):
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = _split(workspace, 4)
    tanh = jnp.tanh(cy.astype(i.dtype))
    grad_o = jnp.zeros_like(o)
    grad_c = jnp.zeros_like(o) if grad_cy is None else grad_cy.astype(o.dtype)
    if grad_hy is not None:
        grad_h = grad_hy.astype(o.dtype)
        grad_o = grad_h * tanh * _slope(o)
        grad_c = grad_c + grad_h * o * (1 - tanh * tanh)
    grad_i, grad_f = grad_c * g * _slope(i), grad_c * cx.astype(i.dtype) * _slope(f)
    gates = jnp.concatenate([grad_i, grad_f, grad_c * i * (1 - g * g), grad_o], axis=1)
    return gates, grad_c * f, gates.sum(0) if has_bias else None


@lower("_thnn_fused_gru_cell")
def _gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    ir, iz, i_new = jnp.split(_gates(input_gates, input_bias), 3, axis=1)
    hr, hz, h_new = jnp.split(_gates(hidden_gates, hidden_bias), 3, axis=1)
    r, z = jax.nn.sigmoid(ir + hr), jax.nn.sigmoid(iz + hz)
    n = jnp.tanh(i_new + r * h_new)
    h = hx.astype(n.dtype)
    return n + z * (h - n), jnp.concatenate([r, z, n, h, h_new], axis=1)


@lower("_thnn_fused_gru_cell_backward")
def _gru_cell_backward(grad_hy, workspace, has_bias):
    r, z, n, h, h_new = _split(workspace, 5)
    grad = grad_hy.astype(r.dtype)
    grad_n = grad * (1 - z) * (1 - n * n)
    grad_r, grad_z = grad_n * h_new * _slope(r), grad * (h - n) * _slope(z)
    of_input = jnp.concatenate([grad_r, grad_z, grad_n], axis=1)
    of_hidden = jnp.concatenate([grad_r, grad_z, grad_n * r], axis=1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, grad * z, *biases


def _gru_cell_meta(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
    return torch.empty_like(hx), hx.new_empty(hx.shape[0], 5 * hx.shape[1])


def _gru_cell_backward_meta(grad_hy, workspace, has_bias):
    gates = grad_hy.new_empty(grad_hy.shape[0], 3 * grad_hy.shape[1])
    bias = gates.new_empty(gates.shape[1]) if has_bias else None
    return (
        gates,
        torch.empty_like(gates),
        torch.empty_like(grad_hy),
        bias,
        None if bias is None else torch.empty_like(bias),
    )


# PyTorch has shapes for the LSTM's cell only.
_meta.impl("_thnn_fused_gru_cell", _gru_cell_meta, "Meta")
_meta.impl("_thnn_fused_gru_cell_backward", _gru_cell_backward_meta, "Meta")
