"""The small linear layer against float64, and its promise about bits."""

import pathlib

import jax
import numpy as np
import pytest

import systolic.kernels
from systolic.kernels.cpu import build as cpu_build
from systolic.kernels.small_linear import small_linear

ROWS = (1, 2, 4, 5, 6, 7, 8, 13, 32, 64, 128)


def draw(m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
    return normal(m, k), normal(n, k), normal(n)


def run(*args, implementation="native"):
    with systolic.kernels.force(implementation):
        return np.asarray(jax.jit(small_linear)(*args))


@pytest.mark.parametrize("implementation", ["native", "reference"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("m", [1, 3, 8, 17, 128])
def test_matches_float64(m, with_bias, implementation):
    # Widths and depths that are and are not whole vectors, register blocks and tasks.
    for n, k in [(1, 1), (3, 5), (64, 16), (67, 100), (130, 576)]:
        x, w, b = draw(m, n, k)
        want = x.astype(np.float64) @ w.T.astype(np.float64) + (b if with_bias else 0)
        got = run(x, w, b if with_bias else None, implementation=implementation)
        # Rounding of a sum of k products grows at most like k * 2^-24 times the sum of magnitudes.
        bound = (k + 2) * 2.0 ** -24 * (np.abs(x) @ np.abs(w).T + np.abs(b))
        assert np.all(np.abs(got - want) <= bound)


@pytest.mark.parametrize("n, k", [(49, 576), (200, 1536), (67, 100)])
def test_company_does_not_change_a_bit(n, k):
    x, w, b = draw(max(ROWS), n, k, seed=1)
    alone = np.concatenate([run(x[i: i + 1], w, b) for i in range(max(ROWS))])
    for m in ROWS:
        np.testing.assert_array_equal(run(x[:m], w, b), alone[:m])
        np.testing.assert_array_equal(run(x[-m:], w, b), alone[-m:])


def test_not_a_number_stays_in_its_row():
    x, w, _ = draw(9, 40, 100)
    x[3, 7], x[5, 99] = np.nan, np.inf
    y = run(x, w)
    assert np.isnan(y[3]).all() and np.isinf(y[5]).all()
    np.testing.assert_array_equal(np.delete(y, [3, 5], 0), run(np.delete(x, [3, 5], 0), w))


def test_wrong_arguments_are_refused():
    x, w, b = draw(2, 3, 4)
    with pytest.raises(ValueError, match=r"\[M, K\]"):
        run(x, w[:, :3])
    with pytest.raises(ValueError, match="bias has shape"):
        run(x, w, b[:2])
    with pytest.raises(ValueError, match="weight has dtype"):
        run(x, w.astype(np.float16))


def test_missing_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(cpu_build.BuildError, match="'no-such-compiler' was not found.*g\\+\\+"):
        cpu_build.build(tmp_path)
    assert not list(tmp_path.iterdir())


def test_failed_compilation_shows_the_output(monkeypatch, tmp_path):
    source = tmp_path / "csrc"
    source.mkdir()
    (source / "broken.cc").write_text("int broken( {\n")
    monkeypatch.setattr(cpu_build, "SOURCES", pathlib.Path(source))
    with pytest.raises(cpu_build.BuildError, match="broken.cc"):
        cpu_build.build(tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
