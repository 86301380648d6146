"""Attention and encoder layers that PyTorch runs as one operator when no gradient is asked for."""

from __future__ import annotations

import math

import jax.numpy as jnp

from .activations import gelu
from .matmul import FULL, linear
from .nn import layer_norm
from .registry import lower
from .softmax import normalize, over_kept


def _attention(query, key, value, heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type):
    """(output [batch, queries, width], weights [batch, heads, queries, keys]).

    ``mask`` is true, or any other number than zero, where a key is left out; ``mask_type`` is 0 for [queries, keys],
    1 for [batch, keys], 2 for [batch, heads, queries, keys]. Where it leaves no key the weights are NaN.
    """
    if mask is not None and mask_type is None:
        raise RuntimeError("Mask Type should be defined")
    q, k, v = (
        linear(x, w, b).reshape(*x.shape[:2], heads, -1)
        for x, w, b in zip((query, key, value), jnp.split(qkv_weight, 3), jnp.split(qkv_bias, 3))
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", q / math.sqrt(q.shape[-1]), k, precision=FULL)
    weights = normalize(scores, -1) if mask is None else over_kept(scores, mask.astype(jnp.bool_), mask_type, -1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, v, precision=FULL)
    return linear(mixed.reshape(query.shape).astype(query.dtype), proj_weight, proj_bias), weights


@lower("_native_multi_head_attention")
def _native_multi_head_attention(
    query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask=None,
    need_weights=True, average_attn_weights=True, mask_type=None,
):  # fmt: skip
    output, weights = _attention(
        query, key, value, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type
    )
    if not need_weights:
        return output, None
    return output, weights.mean(1) if average_attn_weights else weights


@lower("_transformer_encoder_layer_fwd")
def _transformer_encoder_layer(
    src, embed_dim, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, use_gelu, norm_first, eps, norm_weight_1,
    norm_bias_1, norm_weight_2, norm_bias_2, ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2, mask=None,
    mask_type=None,
):  # fmt: skip
    def attend(x):
        return _attention(x, x, x, num_heads, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type)[0]

    def feed_forward(x):
        inner = linear(x, ffn_weight_1, ffn_bias_1)
        inner = gelu(inner) if use_gelu else jnp.maximum(inner, 0)
        return linear(inner.astype(x.dtype), ffn_weight_2, ffn_bias_2)

    def norm(x, weight, bias):
        return layer_norm(x, 1, weight, bias, eps)[0].astype(src.dtype)

    x = src
    for part, weight, bias in ((attend, norm_weight_1, norm_bias_1), (feed_forward, norm_weight_2, norm_bias_2)):
        if norm_first:
            x = x + part(norm(x, weight, bias)).astype(x.dtype)
        else:
            x = norm(x + part(x).astype(x.dtype), weight, bias)
    return x
