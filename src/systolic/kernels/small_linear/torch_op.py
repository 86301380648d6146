"""``torch.ops.systolic.linear``: ``x @ weight.T + bias`` with the weight kept as stored, [N, K].

Graphs get it from :mod:`systolic.compile.passes`, which recognises a product with a transposed weight.
"""

from __future__ import annotations

import torch

from ...compile.interpreter import register_custom

_library = torch.library.Library("systolic", "FRAGMENT")
_library.define("linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor")


@torch.library.register_fake("systolic::linear", lib=_library)
def _fake(x, weight, bias):
    return x.new_empty(x.shape[0], weight.shape[0])


def _lower(x, weight, bias=None):
    """x: [M, K]; weight: [N, K]; bias: [N] or None.  Returns [M, N] in x's dtype."""
    import jax
    import jax.numpy as jnp

    from ...device import client
    from . import linear

    if client.is_cpu() and x.dtype == weight.dtype == jnp.float32 and x.shape[0] > 0 and x.shape[1] > 0:
        return linear(x, weight, bias)
    out = jax.lax.dot_general(
        x, weight, (((1,), (1,)), ((), ())), precision=jax.lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32 if x.dtype in (jnp.bfloat16, jnp.float16) else x.dtype,
    )  # fmt: skip
    if bias is not None:
        out = out + bias.astype(out.dtype)
    return out.astype(x.dtype)


register_custom("systolic::linear", _lower)
