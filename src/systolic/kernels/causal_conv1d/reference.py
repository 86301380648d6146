"""Short causal convolution over ragged sequences in plain jax.numpy: of all rows at once, then mended at the starts."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def causal_conv1d_reference(x, weight, bias, state, slots, starts, resumed, *, silu: bool):
    """Same arguments and results as `causal_conv1d`."""
    tokens, before, width = x.shape[0], weight.shape[1] - 1, weight.shape[1]
    with jax.enable_x64(False):
        x32, taps = x.astype(jnp.float32), weight.astype(jnp.float32).T
        first, sizes = starts[:-1], starts[1:] - starts[:-1]
        held = jnp.where(resumed[:, None, None], state[slots].astype(jnp.float32), 0.0)
        token = jnp.arange(tokens, dtype=jnp.int32)
        begin = first[jnp.clip(jnp.searchsorted(starts, token, side="right") - 1, 0, slots.shape[0] - 1)]
        out = bias.astype(jnp.float32) + taps[before] * x32
        for back in range(1, width):
            shifted = jnp.pad(x32, ((back, 0), (0, 0)))[:tokens]
            out = out + taps[before - back] * jnp.where((token - back >= begin)[:, None], shifted, 0.0)
        # The first tokens also see the state; rows out of range are dropped.
        for offset in range(before):
            seen = sum(taps[before - back] * held[:, before + offset - back] for back in range(offset + 1, width))
            out = out.at[jnp.where(offset < sizes, first + offset, tokens)].add(seen, mode="drop")
        out = jax.nn.silu(out) if silu else out
        out = jnp.where((token < starts[-1])[:, None], out, 0.0)
        place = sizes[:, None] - before + jnp.arange(before, dtype=jnp.int32)
        recent = x32[jnp.clip(first[:, None] + place, 0, tokens - 1)]
        earlier = jnp.take_along_axis(held, jnp.clip(place + before, 0, before - 1)[:, :, None], axis=1)
        new = jnp.where((place >= 0)[:, :, None], recent, earlier)
        at = jnp.where(sizes > 0, slots, state.shape[0])
        return out.astype(x.dtype), state.at[at].set(new.astype(state.dtype), mode="drop")
