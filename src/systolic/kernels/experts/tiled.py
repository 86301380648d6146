"""Mixture-of-experts over tiles of tokens that share an expert: static shapes, work only for chosen experts."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from systolic.kernels.experts.reference import activate

MAX_TILE = 64  # rows; from there on a tile's product is bound by arithmetic, and larger tiles only pad more


def tile_rows(tokens: int, k: int, count: int) -> int:
    """Rows of a tile: about twice the mean load of an expert, so that most read their weights once."""
    load = max(1, -(-2 * tokens * k // count))
    return min(_power_of_two(load), _power_of_two(tokens), MAX_TILE)


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def tile_count(tokens: int, k: int, count: int, rows: int) -> int:
    """The most tiles that any choice of experts can need."""
    assigned = tokens * k
    return (assigned + min(count, assigned) * (rows - 1)) // rows


def _sum_before(values):
    """Exclusive cumulative sum of a short vector: a masked reduction compiles faster than a scan."""
    position = jnp.arange(values.shape[0], dtype=jnp.int32)
    return jnp.sum(jnp.where(position[None, :] < position[:, None], values[None, :], 0), axis=1, dtype=jnp.int32)


def experts_tiled(x, w13, w2, ids, weights, *, activation: str):
    """Same arguments and result as `experts`.

    The assignments (token, choice) are sorted by expert, and each expert's run starts on a new tile. A
    loop over the tiles skips those that no run reached. The result of a token is summed in the order of
    its choices, so it does not depend on where its tiles lie.
    """
    tokens, k = ids.shape
    count = w13.shape[0]
    rows = tile_rows(tokens, k, count)
    tiles = tile_count(tokens, k, count, rows)
    flat = ids.reshape(-1)
    index = jnp.arange(tokens * k, dtype=jnp.int32)
    # One sort of one integer array: the index in the low part keeps it stable, and is what is wanted.
    order = jax.lax.sort(flat * (tokens * k) + index) % (tokens * k)
    load = jnp.zeros((count,), jnp.int32).at[flat].add(1)
    needed = (load + rows - 1) // rows
    first, tile_first = _sum_before(load), _sum_before(needed)
    sorted_ids = flat[order]
    slot = tile_first[sorted_ids] * rows + index - first[sorted_ids]  # a run fills all its tiles but the last
    source = jnp.full((tiles * rows,), tokens, jnp.int32).at[slot].set(order // k)
    gathered = jnp.take(x, source, axis=0, mode="fill", fill_value=0).reshape(tiles, rows, x.shape[1])
    past = jnp.arange(tiles, dtype=jnp.int32)[:, None] >= (tile_first + needed)[None, :]
    expert = jnp.sum(past, axis=1, dtype=jnp.int32)  # `count` for tiles that no run reached
    options = dict(precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32)

    def tile(inputs):
        number, block = inputs

        def compute():
            up = jax.lax.dynamic_index_in_dim(w13, number, keepdims=False)
            down = jax.lax.dynamic_index_in_dim(w2, number, keepdims=False)
            hidden = activate(jnp.einsum("rh,ih->ri", block, up, **options), activation)
            return jnp.einsum("ri,hi->rh", hidden.astype(down.dtype), down, **options)

        return jax.lax.cond(number < count, compute, lambda: jnp.zeros((rows, x.shape[1]), jnp.float32))

    out = jax.lax.map(tile, (expert, gathered)).reshape(tiles * rows, x.shape[1])
    place = jnp.zeros((tokens * k,), jnp.int32).at[order].set(slot).reshape(tokens, k)
    return jnp.sum(out[place] * weights[:, :, None].astype(jnp.float32), axis=1).astype(x.dtype)
