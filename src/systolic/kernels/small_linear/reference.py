"""The linear layer in plain jax.numpy."""

import jax
import jax.numpy as jnp


def small_linear_reference(x, weight, bias):
    """x [M, K] times weight [N, K] transposed, plus bias [N] unless it has shape [0]; float32."""
    y = jax.lax.dot_general(x, weight, (((1,), (1,)), ((), ())), precision=jax.lax.Precision.HIGHEST,
                            preferred_element_type=jnp.float32)
    return y if bias.size == 0 else y + bias
