"""Sampling of tokens with temperature, top-k, top-p and min-p in one pass over the vocabulary, without a sort.

Public names: `sample_tokens`, `sample_tokens_reference`.
"""

from __future__ import annotations

import jax.numpy as jnp

from systolic.kernels.sampling.reference import sample_tokens_reference
from systolic.kernels.selection import dispatch

__all__ = ["sample_tokens", "sample_tokens_reference"]


def sample_tokens(logits, noise, temperature, top_k, top_p, min_p):
    """The token with the largest logit / temperature + noise among those that the filters keep, for each row.

    With noise of the standard Gumbel distribution that is a draw from the filtered softmax.  Filters in vLLM's order:
    min-p keeps probabilities of at least min_p times the largest; top-k the k largest; top-p the fewest of what is left
    whose share of its mass is at least p.  Tokens as likely as the last one kept are kept too.

    Args:
        logits: [R, V] float32; -inf excludes a token.
        noise: [R, V] float32.
        temperature: [R] float32; 0 gives the largest logit, without filters and noise.
        top_k: [R] int32; 0 for no limit.
        top_p: [R] float32; 1 for no limit.
        min_p: [R] float32; 0 for none.

    Returns:
        [R] int32; the first one where several are the largest.

    Raises:
        ValueError: a shape or a dtype is wrong.
    """
    if logits.ndim != 2 or logits.shape[1] == 0 or logits.dtype != jnp.float32:
        raise ValueError(f"logits is {logits.dtype}{logits.shape}; it must be float32 [R, V] with V > 0")
    if noise.shape != logits.shape or noise.dtype != jnp.float32:
        raise ValueError(f"noise is {noise.dtype}{noise.shape}; it must be float32 {logits.shape}")
    rows = logits.shape[0]
    for name, array, dtype in (("temperature", temperature, jnp.float32), ("top_k", top_k, jnp.int32),
                               ("top_p", top_p, jnp.float32), ("min_p", min_p, jnp.float32)):  # fmt: skip
        if array.shape != (rows,) or array.dtype != dtype:
            raise ValueError(f"{name} is {array.dtype}{array.shape}; it must be {jnp.dtype(dtype).name} ({rows},)")
    if rows == 0:
        return jnp.zeros((0,), jnp.int32)
    return dispatch((logits, noise, temperature, top_k, top_p, min_p), reference=sample_tokens_reference,
                    tpu=_tuned_pallas)  # fmt: skip


def _tuned_pallas(logits, *rest, interpret):
    from systolic.kernels.sampling.kernel import sample_tokens_pallas
    from systolic.kernels.sampling.tuning import tuned

    return sample_tokens_pallas(logits, *rest, tuning=tuned(logits), interpret=interpret)
