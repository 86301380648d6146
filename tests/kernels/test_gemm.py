"""The linear layer for many rows against float64, its promise about bits, and the choice of kernel."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import systolic.kernels
from systolic.kernels.small_linear import GEMM_ROWS, gemm, linear, small_linear


def draw(m, n, k, seed=0):
    rng = np.random.default_rng(seed)
    normal = lambda *shape: rng.normal(size=shape).astype(np.float32)
    return normal(m, k), normal(n, k), normal(n)


def run(*args, function=gemm):
    with systolic.kernels.force("native"):
        return np.asarray(jax.jit(function)(*args))


def check(x, w, b, got):
    """Every element lies within the rounding of a sum of k products, in any order, and one addition."""
    want = x.astype(np.float64) @ w.T.astype(np.float64)
    magnitude = np.abs(x).astype(np.float64) @ np.abs(w).T.astype(np.float64)
    if b is not None:
        want, magnitude = want + b, magnitude + np.abs(b)
    # The error of such a sum is at most about (k + 1) * 2^-24 times the sum of magnitudes.
    bound = (x.shape[1] + 2) * 2.0 ** -24 * magnitude
    assert got.shape == want.shape
    assert np.all(np.abs(got - want) <= bound)


# Rows: one vector or less, a whole panel of 32 (24 or 12 with narrower vectors) and around it, several
# panels. Outputs: below, at and beyond tiles of 4, 8 and 12 and strips of 48.
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("m", [1, 15, 16, 17, 24, 32, 33, 48, 100])
def test_matches_float64(m, with_bias):
    for n, k in [(1, 1), (3, 5), (4, 16), (7, 33), (12, 0), (13, 64), (49, 100), (131, 576)]:
        x, w, b = draw(m, n, k)
        b = b if with_bias else None
        check(x, w, b, run(x, w, b))


def test_matches_float64_over_several_blocks():
    # A block holds 2^17 floats of x: 2 blocks by rows at k = 576, one panel a block at k = 5000.
    for m, n, k in [(500, 100, 576), (70, 50, 5000)]:
        x, w, b = draw(m, n, k)
        check(x, w, b, run(x, w, b))


@pytest.mark.parametrize("n, k", [(49, 576), (200, 1536), (67, 101)])
def test_company_does_not_change_a_bit(n, k):
    x, w, b = draw(300, n, k, seed=1)
    whole = run(x, w, b)
    for m in (1, 2, 16, 31, 33, 64, 129, 256):
        np.testing.assert_array_equal(run(x[:m], w, b), whole[:m])
        np.testing.assert_array_equal(run(x[-m:], w, b), whole[-m:])


def test_outputs_do_not_depend_on_their_number():
    x, w, b = draw(64, 150, 100, seed=2)
    whole = run(x, w, b)
    for n in (1, 5, 12, 50, 149):
        np.testing.assert_array_equal(run(x, w[:n], b[:n]), whole[:, :n])


def test_a_later_call_does_not_see_the_block_of_an_earlier_one():
    x, w, b = draw(64, 48, 100, seed=3)
    program = jax.jit(lambda x, w, b: (gemm(x, w, b), gemm(x + 1, w, b), gemm(x, w, b)))
    with systolic.kernels.force("native"):
        first, second, third = map(np.asarray, program(x, w, b))
    np.testing.assert_array_equal(first, third)
    check(x + 1, w, b, second)


def test_not_a_number_and_infinity_stay_where_they_belong():
    x, w, _ = draw(70, 40, 100)
    x[3, 7], x[69, 99] = np.nan, np.inf
    y = run(x, w)
    assert np.isnan(y[3]).all() and np.isinf(y[69]).all()
    assert np.isfinite(np.delete(y, [3, 69], 0)).all()
    x, w, _ = draw(70, 41, 100)
    w[40, 0] = np.inf
    y = run(x, w)
    assert np.isinf(y[:, 40]).all() and np.isfinite(y[:, :40]).all()


def test_one_thread_gives_the_same_bits(tmp_path):
    x, w, b = draw(200, 150, 576, seed=4)
    want = run(x, w, b)
    np.savez(tmp_path / "in.npz", x=x, w=w, b=b)
    script = (
        "import sys, os, numpy as np\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "import jax, systolic.kernels\n"
        "from systolic.kernels.small_linear import gemm\n"
        "a = np.load(sys.argv[1])\n"
        "with systolic.kernels.force('native'):\n"
        "    np.save(sys.argv[2], jax.jit(gemm)(a['x'], a['w'], a['b']))\n"
    )
    # XLA takes the size of its pool from the processors that the process may use.
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path), JAX_PLATFORMS="cpu")
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "in.npz"), str(tmp_path / "out.npy")],
                   check=True, env=environment, timeout=120)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), want)


def test_linear_chooses_by_the_rows():
    # Sums in different orders differ in their last bits, which tells the two apart.
    _, w, b = draw(1, 64, 1000, seed=5)
    for m, chosen in [(1, small_linear), (GEMM_ROWS - 1, small_linear), (GEMM_ROWS, gemm), (65, small_linear),
                      (80, gemm), (128, gemm), (200, gemm)]:
        x = draw(m, 1, 1000, seed=m)[0]
        other = small_linear if chosen is gemm else gemm
        got = run(x, w, b, function=linear)
        np.testing.assert_array_equal(got, run(x, w, b, function=chosen))
        assert np.any(got != run(x, w, b, function=other))


def test_wrong_arguments_are_refused():
    x, w, b = draw(64, 3, 4)
    for function in (gemm, linear):
        with pytest.raises(ValueError, match=r"\[M, K\]"):
            run(x, w[:, :3], function=function)
        with pytest.raises(ValueError, match="bias has shape"):
            run(x, w, b[:2], function=function)
        with pytest.raises(ValueError, match="weight has dtype"):
            run(x, w.astype(np.float16), function=function)
