"""The tiled mixture-of-experts against a float64 loop over tokens, and its promise about companions."""

import jax
import numpy as np
import pytest

import systolic.kernels
from systolic.kernels.experts import ACTIVATIONS, experts
from systolic.kernels.experts.tiled import tile_count, tile_rows

SIZES = [(1, 2, 4), (1, 4, 64), (3, 1, 8), (17, 2, 4), (40, 2, 16), (130, 8, 8)]  # tokens, k, experts


def draw(tokens, k, count, activation="silu", hidden=24, inner=20, seed=0, skew=0.0):
    """Random inputs; with `skew` the first experts are chosen more often."""
    rng = np.random.default_rng(seed)
    width = 2 * inner if ACTIVATIONS[activation].gated else inner
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
    order = np.argsort(rng.random((tokens, count)) + skew * np.arange(count), axis=1)
    return (normal(tokens, hidden), normal(count, width, hidden) * 0.2, normal(count, hidden, inner) * 0.2,
            order[:, :k].astype(np.int32), rng.random((tokens, k)).astype(np.float32))  # fmt: skip


def exact(x, w13, w2, ids, weights, activation):
    gated, function = ACTIVATIONS[activation]
    out = np.zeros(x.shape)
    for token, row in enumerate(x.astype(np.float64)):
        for expert, weight in zip(ids[token], weights[token].astype(np.float64)):
            hidden = w13[expert].astype(np.float64) @ row
            gate, up = np.split(hidden, 2) if gated else (hidden, 1.0)
            with jax.enable_x64(True):
                hidden = np.asarray(function(gate)) * up
            out[token] += weight * (w2[expert].astype(np.float64) @ hidden)
    return out


def run(args, activation, implementation=None):
    with systolic.kernels.force(implementation):
        return np.asarray(jax.jit(lambda *a: experts(*a, activation=activation))(*args))


@pytest.mark.parametrize("implementation", [None, "reference"])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_activations(activation, implementation):
    args = draw(17, 2, 4, activation)
    # Sums of about 20 float32 products of size one: rounding stays below a hundred units in the last place.
    np.testing.assert_allclose(run(args, activation, implementation), exact(*args, activation), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("skew", [0.0, 10.0])
@pytest.mark.parametrize("tokens,k,count", SIZES)
def test_every_load(tokens, k, count, skew):
    args = draw(tokens, k, count, skew=skew, seed=tokens)
    np.testing.assert_allclose(run(args, "silu"), exact(*args, "silu"), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("tokens,k,count", SIZES)
def test_tiles_suffice(tokens, k, count):
    """The bound on tiles holds for the worst choice: as many experts as possible with one row too many."""
    rows = tile_rows(tokens, k, count)
    tiles = tile_count(tokens, k, count, rows)
    for seed in range(20):
        ids = draw(tokens, k, count, seed=seed, skew=seed % 3)[3]
        load = np.bincount(ids.reshape(-1), minlength=count)
        assert np.sum(-(-load // rows)) <= tiles
    assert tiles <= tokens * k


def test_a_token_does_not_depend_on_its_companions():
    args = draw(40, 2, 16)
    x, w13, w2, ids, weights = args
    changed = x.copy()
    changed[1:] = -x[1:]
    other = ids.copy()
    other[1:] = np.roll(ids[1:], 1, axis=0)
    assert np.array_equal(run(args, "silu")[0], run((changed, w13, w2, other, weights), "silu")[0])


@pytest.mark.parametrize(
    "change,message",
    [
        (dict(activation="tanh"), "must be one of"),
        (dict(w2=np.zeros((4, 24, 21), np.float32)), "must be"),
        (dict(ids=np.zeros((3, 2), np.int32)), "ids and weights"),
    ],
)
def test_wrong_arguments_are_named(change, message):
    x, w13, w2, ids, weights = draw(17, 2, 4)
    given = dict(x=x, w13=w13, w2=w2, ids=ids, weights=weights, activation="silu") | change
    with pytest.raises(ValueError, match=message):
        experts(**given)


@pytest.mark.parametrize("tokens, k, count, activation", [(1, 2, 4, "silu"), (17, 2, 4, "relu2_no_mul")])
def test_the_form_for_tpu_in_the_interpreter(tokens, k, count, activation):
    args = draw(tokens, k, count, activation, skew=0.1)
    got = run(args, activation, "interpret")
    np.testing.assert_allclose(got, exact(*args, activation), rtol=1e-4, atol=1e-5)
