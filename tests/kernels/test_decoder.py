"""The small pieces of a decoder layer against float64, at their edges, and their promise about bits."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import systolic.kernels
from systolic.kernels.cpu import build as cpu_build
from systolic.kernels.decoder import add_rms_norm, rms_norm, rotary, silu_and_mul

EPSILON = 1e-5
ULP = 2.0 ** -24  # largest relative error of one rounding to float32
BOTH = pytest.mark.parametrize("implementation", ["native", "reference"])
# Widths that are and are not whole vectors, and shorter than one.
WIDTHS = (1, 3, 16, 31, 64, 100, 576, 577)
CASES = [("native", width) for width in WIDTHS] + [("reference", width) for width in (3, 100)]
ACROSS = pytest.mark.parametrize("implementation, width", CASES)
# (head_size, rotary_dim)
HEADS = [(32, 32), (64, 64), (80, 80), (128, 128), (64, 16), (80, 32), (128, 96), (6, 4)]


def draw(*shape, seed=0, scale=1.0):
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(np.float32)


def run(function, *args, implementation="native", **static):
    with systolic.kernels.force(implementation):
        result = jax.jit(functools.partial(function, **static))(*args)
    return jax.tree.map(np.asarray, result)


def norm_oracle(x, weight, epsilon=EPSILON):
    x = x.astype(np.float64)
    normed = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon)
    return normed if weight is None else normed * weight.astype(np.float64)


def rotary_oracle(positions, x, cache, head_size, rotary_dim, neox):
    cos, sin = np.split(cache[positions].astype(np.float64), 2, axis=-1)
    cos, sin = cos[:, None], sin[:, None]
    heads = x.astype(np.float64).reshape(len(x), -1, head_size)
    half = rotary_dim // 2
    one = slice(0, half) if neox else slice(0, rotary_dim, 2)
    two = slice(half, rotary_dim) if neox else slice(1, rotary_dim, 2)
    out = heads.copy()
    out[..., one] = heads[..., one] * cos - heads[..., two] * sin
    out[..., two] = heads[..., two] * cos + heads[..., one] * sin
    return out.reshape(x.shape)


def silu_oracle(gate):
    gate = gate.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        return gate / (1 + np.exp(-gate))


def angles(rows, rotary_dim):
    frequencies = 10000.0 ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    turns = np.arange(rows)[:, None] * frequencies
    return np.concatenate([np.cos(turns), np.sin(turns)], -1).astype(np.float32)


# The mean of d squares, half of its relative error surviving the root, then five more roundings.
def norm_bound(width):
    return (width / 2 + 6) * ULP


@ACROSS
@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm_matches_float64(width, weighted, implementation):
    for leading in [(1,), (2, 3)] if width != 3 else [(7,), ()]:
        x, weight = draw(*leading, width), draw(width, seed=1) if weighted else None
        got = run(rms_norm, x, weight, epsilon=EPSILON, implementation=implementation)
        assert got.shape == x.shape and got.dtype == np.float32
        np.testing.assert_allclose(got, norm_oracle(x, weight), rtol=norm_bound(width))


@ACROSS
@pytest.mark.parametrize("weighted", [False, True])
def test_add_rms_norm_matches_float64(width, weighted, implementation):
    x, residual = draw(2, 5, width), draw(2, 5, width, seed=1, scale=30)
    weight = draw(width, seed=2) if weighted else None
    normed, total = run(add_rms_norm, x, residual, weight, epsilon=EPSILON, implementation=implementation)
    np.testing.assert_array_equal(total, x + residual)  # one addition: exactly rounded
    np.testing.assert_allclose(normed, norm_oracle(total, weight), rtol=norm_bound(width))


@BOTH
@pytest.mark.parametrize("neox", [False, True])
@pytest.mark.parametrize("head_size, rotary_dim", HEADS)
def test_rotary_matches_float64(head_size, rotary_dim, neox, implementation):
    sizes = dict(head_size=head_size, rotary_dim=rotary_dim, neox=neox)
    cache, positions = angles(50, rotary_dim), np.array([0, 49, 7, 7, 31], np.int32)
    for heads in (1, 3):
        x = draw(5, heads * head_size)
        got = run(rotary, positions, x, cache, implementation=implementation, **sizes)
        want = rotary_oracle(positions, x, cache, **sizes)
        # Two products and a sum of numbers no larger than max |x|.
        np.testing.assert_allclose(got, want, rtol=0, atol=3 * ULP * np.abs(x).max())
        rest = got.reshape(5, heads, head_size)[..., rotary_dim:]
        np.testing.assert_array_equal(rest, x.reshape(5, heads, head_size)[..., rotary_dim:])


@BOTH
def test_rotary_positions_out_of_range_and_int64(implementation):
    sizes = dict(head_size=32, rotary_dim=32, neox=True, implementation=implementation)
    x, cache = np.repeat(draw(1, 32), 7, 0), angles(10, 32)
    wanted = run(rotary, np.array([0, 9, 9, 0, 0, 9, 3], np.int32), x, cache, **sizes)
    got = run(rotary, np.array([-10, -1, 10, -11, -2 ** 31, 2 ** 31 - 1, 3], np.int32), x, cache, **sizes)
    np.testing.assert_array_equal(got, wanted)
    with jax.enable_x64(True):
        # XLA's gather narrows its indices to 32 bits, so the reference is not asked for wider ones.
        far = 2 ** 31 if implementation == "reference" else 2 ** 63
        wide = np.array([-10, -1, 10, -11, -far, far - 1, 3], np.int64)
        np.testing.assert_array_equal(run(rotary, wide, x, cache, **sizes), wanted)


@ACROSS
def test_silu_and_mul_matches_float64(width, implementation):
    for leading in [(1,), (2, 3)] if width != 3 else [(7,), ()]:
        x = draw(*leading, 2 * width, scale=4)
        got = run(silu_and_mul, x, implementation=implementation)
        gate, up = np.split(x, 2, -1)
        assert got.shape == gate.shape
        np.testing.assert_allclose(got, silu_oracle(gate) * up, rtol=12 * ULP)


def test_silu_error_is_within_the_stated_bound():
    gate = np.concatenate([np.linspace(-86.9, 90, 400_001), np.geomspace(1e-30, 1, 100_001),
                           -np.geomspace(1e-30, 1, 100_001)]).astype(np.float32)  # fmt: skip
    got = run(silu_and_mul, np.concatenate([gate, np.ones_like(gate)]))
    error = np.abs(got - silu_oracle(gate)) / np.abs(silu_oracle(gate))
    # 2 units in the last place (4 roundings) for the exponential; a sum, a quotient and a product.
    assert error.max() <= 7 * ULP


@BOTH
def test_silu_of_values_without_a_finite_exponential(implementation):
    gate = np.array([-np.inf, np.inf, np.nan, -1e38, 3e38, -89, 0.0, -0.0] * 3, np.float32)
    got = run(silu_and_mul, np.concatenate([gate, np.ones_like(gate)]), implementation=implementation)
    # -inf: PyTorch's silu is NaN there too.
    want = np.array([np.nan, np.inf, np.nan, 0, 3e38, 0, 0, 0] * 3, np.float32)
    np.testing.assert_array_equal(got, want)
    gate_and_up = np.array([1, 1, -2, np.nan, np.inf, np.nan, -np.inf, 2], np.float32)
    got = run(silu_and_mul, gate_and_up, implementation=implementation)
    np.testing.assert_array_equal(got, np.array([np.inf, np.nan, np.inf, np.nan], np.float32))


@BOTH
@pytest.mark.parametrize("width", [5, 100])
def test_norms_of_huge_infinite_and_missing_values(width, implementation):
    x = draw(5, width)
    x[0] *= 1e15  # squares are finite
    x[1, 3] = 1e30  # its square is infinite: the row is zero
    x[2, 3] = np.inf
    x[3, 4] = np.nan
    want = np.empty_like(x)
    want[[0, 4]] = norm_oracle(x[[0, 4]], None)
    want[1], want[2], want[3] = 0, 0, np.nan
    want[2, 3] = np.nan
    got = run(rms_norm, x, None, epsilon=EPSILON, implementation=implementation)
    nothing = np.zeros_like(x)
    normed, total = run(add_rms_norm, x, nothing, None, epsilon=EPSILON, implementation=implementation)
    for result in (got, normed):
        np.testing.assert_allclose(result, want, rtol=norm_bound(width))
    np.testing.assert_array_equal(total, x)


def test_rotary_keeps_infinities_and_nan_in_their_pairs():
    x, cache = draw(1, 128), angles(4, 64)
    x[0, 5], x[0, 70] = np.nan, np.inf
    got = run(rotary, np.array([3], np.int32), x, cache, head_size=64, rotary_dim=64, neox=True)[0]
    assert np.isnan(got[[5, 37]]).all() and np.isinf(got[[70, 102]]).all()
    assert np.isfinite(np.delete(got, [5, 37, 70, 102])).all()


def pieces(rows, width, seed=3):
    """(function of a slice of the rows -> results) for each operator, at one width."""
    x, residual, weight = draw(rows, width, seed=seed), draw(rows, width, seed=4), draw(width, seed=5)
    gates, cache = draw(rows, 2 * width, seed=6), angles(64, 32)
    positions = np.random.default_rng(7).integers(0, 64, rows).astype(np.int32)
    heads = np.ascontiguousarray(x[:, : width // 40 * 40])
    yield lambda s: (run(rms_norm, x[s], weight, epsilon=EPSILON),)
    yield lambda s: run(add_rms_norm, x[s], residual[s], weight, epsilon=EPSILON)
    for neox in (False, True):
        yield lambda s, neox=neox: (
            run(rotary, positions[s], heads[s], cache, head_size=40, rotary_dim=32, neox=neox),)
    yield lambda s: (run(silu_and_mul, gates[s]),)


@pytest.mark.parametrize("rows, width", [(40, 100), (400, 576)])
def test_company_does_not_change_a_bit(rows, width):
    # 400 rows of 576 are shared among threads, a few rows are not.
    for piece in pieces(rows, width):
        together = piece(slice(None))
        for part in (slice(0, 1), slice(rows - 1, rows), slice(0, 3), slice(7, rows - 10)):
            for alone, all_rows in zip(piece(part), together, strict=True):
                np.testing.assert_array_equal(alone.view(np.uint32), all_rows[part].view(np.uint32))


@BOTH
def test_no_rows(implementation):
    options = dict(implementation=implementation)
    sizes = dict(head_size=32, rotary_dim=32, neox=True)
    empty, weight = np.zeros((0, 64), np.float32), np.ones(64, np.float32)
    assert run(rms_norm, empty, weight, epsilon=EPSILON, **options).shape == (0, 64)
    normed, total = run(add_rms_norm, empty, empty, None, epsilon=EPSILON, **options)
    assert normed.shape == total.shape == (0, 64)
    assert run(rotary, np.zeros(0, np.int32), empty, angles(4, 32), **options, **sizes).shape == (0, 64)
    assert run(silu_and_mul, empty, **options).shape == (0, 32)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_other_dtypes_use_the_reference(dtype):
    x, weight, cache = (jnp.asarray(a, dtype) for a in (draw(4, 64), draw(64, seed=1), angles(9, 32)))
    positions, sizes = np.arange(4, dtype=np.int32), dict(head_size=32, rotary_dim=32, neox=True)
    for function, args, static in [(rms_norm, (x, weight), dict(epsilon=EPSILON)),
                                   (add_rms_norm, (x, x, weight), dict(epsilon=EPSILON)),
                                   (rotary, (positions, x, cache), sizes), (silu_and_mul, (x,), {})]:  # fmt: skip
        text = jax.jit(functools.partial(function, **static)).lower(*args).as_text()
        assert "systolic_" not in text
        result = run(function, *args, implementation=None, **static)
        assert all(a.dtype == dtype for a in jax.tree.leaves(result))
    got = run(rms_norm, x, weight, epsilon=EPSILON, implementation=None).astype(np.float64)
    want = norm_oracle(np.asarray(x, np.float64), np.asarray(weight, np.float64))
    # Two roundings to a dtype with at least 8 bits.
    np.testing.assert_allclose(got, want, rtol=2 * 2.0 ** -8)


def test_float32_is_one_custom_call_and_force_is_not_cached():
    x = draw(2, 64)
    for implementation, there in [(None, True), ("reference", False), ("native", True), ("reference", False)]:
        with systolic.kernels.force(implementation):
            text = jax.jit(lambda x: silu_and_mul(x)).lower(x).compile().as_text()
        assert ("systolic_silu_and_mul" in text) == there


def test_wrong_arguments_are_refused():
    x, cache, positions = draw(3, 64), angles(5, 32), np.zeros(3, np.int32)
    with pytest.raises(ValueError, match=r"weight has shape \(63,\)"):
        rms_norm(x, x[0, :63], epsilon=EPSILON)
    with pytest.raises(ValueError, match="residual has shape"):
        add_rms_norm(x, x[:2], None, epsilon=EPSILON)
    with pytest.raises(ValueError, match="63 columns"):
        silu_and_mul(x[:, :63])
    good = dict(head_size=32, rotary_dim=32, neox=True)
    for change, message in [(dict(head_size=48), "multiple of head_size 48"),
                            (dict(rotary_dim=31), "rotary_dim is 31"),
                            (dict(rotary_dim=30), "cos_sin_cache has shape")]:  # fmt: skip
        with pytest.raises(ValueError, match=message):
            rotary(positions, x, cache, **{**good, **change})
    with pytest.raises(ValueError, match="positions has shape"):
        rotary(positions[:2], x, cache, **good)


def test_a_changed_source_changes_the_library_name(monkeypatch, tmp_path):
    for path in cpu_build.SOURCES.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    before = cpu_build.library_name()
    monkeypatch.setattr(cpu_build, "SOURCES", tmp_path)
    assert cpu_build.library_name() == before
    with (tmp_path / "decoder.cc").open("a") as source:
        source.write("// one more line\n")
    assert cpu_build.library_name() != before
