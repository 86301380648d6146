"""Matrix, convolution, linear algebra, layer and random lowerings agree with PyTorch's CPU kernels."""

import importlib
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from lowering_harness import Call, capture, check, check_all, run
from systolic.ops import registry
from torch.testing._internal.common_methods_invocations import op_db

NAMES = ("matmul", "convolution", "linalg", "nn", "losses", "pooling", "resampling", "random")
MODULES = {f"systolic.ops.{n}" for n in NAMES}
for module in MODULES:
    importlib.import_module(module)

F = "nn.functional."
FAMILIES = {
    "matmul": "mm bmm addmm baddbmm addbmm addmv mv dot vdot addr inner nn.functional.bilinear matmul",
    "convolution": " ".join(f"{F}conv{t}{d}d" for t in ("", "_transpose") for d in (1, 2, 3)),
    "linalg": "cholesky cholesky_inverse linalg.cholesky_ex triangular_solve linalg.solve_triangular "
    "linalg.inv_ex linalg.det linalg.slogdet linalg.solve_ex linalg.lu_factor_ex linalg.lu linalg.lu_solve "
    "lu_unpack linalg.qr cdist linalg.cross linalg.matrix_exp cholesky_solve",
    "nn": f"native_layer_norm {F}layer_norm {F}group_norm {F}batch_norm {F}rms_norm native_batch_norm",
    "losses": f"{F}nll_loss {F}cross_entropy {F}mse_loss {F}smooth_l1_loss {F}huber_loss "
    f"{F}binary_cross_entropy {F}binary_cross_entropy_with_logits",
    "pooling": " ".join(
        [f"{F}{kind}_pool{d}d" for kind in ("max", "avg", "adaptive_avg") for d in (1, 2, 3)]
        + [f"{F}adaptive_max_pool2d"]
    ),
    "resampling": f"{F}interpolate {F}upsample_nearest {F}upsample_bilinear {F}grid_sample",
}
# Long float32 sums (matrix products, gradients of weights) are added in another order than PyTorch's.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


def ours(call: Call) -> bool:
    record = call.record()
    if record is None or record.fn.__module__ not in MODULES or record.rng:
        return False
    # In inference the CPU leaves the saved statistics empty; the meta kernel, which we follow, does not.
    inference = "batch_norm" in str(call.op) and "backward" not in str(call.op) and call.args[5] is False
    return not inference


def sampled(names: str) -> list[Call]:
    """Up to two distinct calls for each operator overload and OpInfo, in float32."""
    kept, counts = [], {}
    for opinfo in op_db:
        if opinfo.name not in names.split():
            continue
        found = capture(opinfo, torch.float32, samples=6, backward=opinfo.supports_autograd, keep=ours)
        for call in found:
            if any(t.numel() > 5000 for t in call.args if isinstance(t, torch.Tensor)):
                continue
            key = (str(call.op), opinfo.full_name)
            counts[key] = counts.get(key, 0) + 1
            if counts[key] <= 2:
                kept.append(call)
    return kept


@pytest.mark.long  # the default tests run such samples through the device: tests/conformance
@pytest.mark.parametrize("family", FAMILIES)
def test_opinfo_samples(family):
    calls = sampled(FAMILIES[family])
    reached = {str(c.op).split(".")[1] for c in calls}
    assert len(reached) >= 2, f"the samples reach only {sorted(reached)}"
    failures = check_all(calls, **TOLERANCE)
    assert not failures, "\n".join(failures)


def test_integer_and_narrow_products():
    a, b = torch.randint(-100, 100, (5, 7)), torch.randint(-100, 100, (7, 3))
    check("aten::mm", a, b)
    check("aten::addmm", a[:, :3], a, b, beta=2, alpha=3)
    check("aten::_int_mm", a.to(torch.int8)[:, :4].repeat(4, 2), b.to(torch.int8)[:8].repeat(2, 3)[:8, :8])


def test_16_bit_products_accumulate_in_float32():
    # 2048 ones: a bfloat16 running sum would stop at 256.
    ones = torch.ones(1, 2048, dtype=torch.bfloat16)
    assert run(Call("aten::mm", (ones, ones.t())))[0].item() == 2048
    x = torch.ones(1, 2048, 1, dtype=torch.bfloat16)
    args = (x, torch.ones(1, 2048, 1, dtype=torch.bfloat16), None, [1], [0], [1], False, [0], 1)
    assert run(Call("aten::convolution", args))[0].item() == 2048


def test_beta_zero_ignores_a_nan():
    nan = torch.full((2, 2), math.nan)
    check("aten::addmm", nan, torch.ones(2, 3), torch.ones(3, 2), beta=0)
    check("aten::baddbmm", nan[None], torch.ones(1, 2, 3), torch.ones(1, 3, 2), beta=0)


def test_grouped_products_follow_their_offsets():
    torch.manual_seed(0)
    ends = [3, 3, 7]
    offs = torch.tensor(ends, dtype=torch.int32)
    x, w = torch.randn(7, 4), torch.randn(3, 4, 5)
    parts = [(0, 3), (3, 3), (3, 7)]
    rows = torch.cat([x[a:b] @ w[g] for g, (a, b) in enumerate(parts)])
    inner = torch.stack([x[a:b].t() @ rows[a:b] for a, b in parts])
    columns = torch.cat([w[g] @ torch.ones(5, b - a) for g, (a, b) in enumerate(parts)], 1)
    record = registry.find("_grouped_mm")

    def product(a, b, want):
        spec = registry.Spec(tuple(want.shape), np.dtype(np.float32))
        got = registry.call(record, [spec], {"self": a.numpy(), "mat2": b.numpy(), "offs": offs.numpy()})[0]
        torch.testing.assert_close(torch.from_numpy(np.array(got)), want)

    with jax.enable_x64(True):
        product(x, w, rows)
        product(x.t().contiguous(), rows, inner)
        product(w, torch.ones(5, 7), columns)


@pytest.mark.parametrize("shape", [(4, 4), (3, 5), (2, 5, 3)])
def test_svd_rebuilds_its_input(shape):
    torch.manual_seed(1)
    a = torch.randn(shape)
    u, s, vh = run(Call("aten::_linalg_svd", (a, False)))
    # Singular vectors are free in sign, so the product is compared, not the factors.
    torch.testing.assert_close(u @ torch.diag_embed(s) @ vh, a, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(s, torch.linalg.svdvals(a), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("half", ["L", "U"])
def test_eigh_reads_one_half_and_rebuilds_it(half):
    torch.manual_seed(2)
    a = torch.randn(5, 5)
    full = a.tril() + a.tril(-1).t() if half == "L" else a.triu() + a.triu(1).t()
    values, vectors = run(Call("aten::_linalg_eigh", (a, half)))
    torch.testing.assert_close(vectors @ values.diag() @ vectors.t(), full, rtol=1e-4, atol=1e-4)
    assert (values.diff() >= 0).all()


def test_failed_factorizations_set_info():
    bad = torch.tensor([[1.0, 2.0], [2.0, 1.0]])
    assert run(Call("aten::linalg_cholesky_ex", (bad,)))[1].item() > 0
    assert run(Call("aten::linalg_inv_ex", (torch.ones(2, 2),)))[1].item() == 2


def test_max_pool_ties_nan_and_large_windows():
    nan = math.nan
    x = torch.tensor([[[[1.0, 1, nan, 0], [1, 1, 2, nan], [-math.inf] * 4, [-math.inf] * 4]]])
    check("aten::max_pool2d_with_indices", x, [2, 2])
    check("aten::max_pool2d_with_indices", x, [3, 3], [2, 2], [1, 1], [1, 1], True)
    torch.manual_seed(3)
    big = torch.randn(2, 12, 13)
    check("aten::max_pool2d_with_indices", big, [9, 9], [3, 2], [4, 4])
    check("aten::max_pool2d_with_indices", torch.full((1, 10, 10), -math.inf), [9, 9], [1, 1], [4, 4])


def test_labels_that_are_ignored():
    scores = torch.log_softmax(torch.randn(4, 3), -1)
    target = torch.tensor([0, -100, 2, 1])
    for reduction in (0, 1, 2):
        check("aten::nll_loss_forward", scores, target, torch.tensor([1.0, 2.0, 0.5]), reduction, -100)
        check("aten::nll_loss_forward", scores, torch.full((4,), -100), None, reduction, -100)
    check("aten::nll_loss_forward", scores[0], torch.tensor(1), None, 0, -100)


def test_batch_norm_returns_new_running_statistics():
    torch.manual_seed(4)
    x, mean, var = torch.randn(4, 3, 5), torch.randn(3), torch.rand(3)
    args = (x, torch.ones(3), torch.zeros(3), mean, var, True, 0.1, 1e-5)
    check("aten::_native_batch_norm_legit_functional", *args)


def test_rms_norm_and_its_gradient():
    torch.manual_seed(5)
    x, w, g = torch.randn(3, 8), torch.randn(8), torch.randn(3, 8)
    check("aten::_fused_rms_norm", x, [8], w, 1e-6)
    leaf, weight = x.clone().requires_grad_(), w.clone().requires_grad_()
    torch.nn.functional.rms_norm(leaf, [8], weight, 1e-6).backward(g)
    rstd = (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    got = run(Call("aten::_fused_rms_norm_backward", (g, x, [8], rstd, w, [True, True])))
    torch.testing.assert_close(got[0], leaf.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got[1], weight.grad, rtol=1e-4, atol=1e-5)


N = 20000


def draw(name, overload="", shape=(N,), dtype=np.float32, seed=7, results=1, **arguments):
    """The first result of a random lowering, as a NumPy array."""
    record = registry.find(name, overload)
    assert record.rng
    specs = [registry.Spec(shape, np.dtype(dtype))] + [registry.Spec(shape, np.dtype(bool))] * (results - 1)
    with jax.enable_x64(True):
        tensors = {k: jnp.asarray(v) for k, v in arguments.items() if isinstance(v, np.ndarray)}
        tensors["key"] = jnp.asarray(np.array([0, seed], np.uint32))
        program = jax.jit(lambda given: registry.call(record, specs, {**arguments, **given})[0])
        return np.asarray(program(tensors))


ONES = np.ones(N, np.float32)
# name, overload, arguments, mean, variance of the distribution
MOMENTS = [
    ("uniform_", "", {"from_": -1.0, "to": 3.0}, 1.0, 16 / 12),
    ("rand", "", {"size": [N]}, 0.5, 1 / 12),
    ("randn", "", {"size": [N]}, 0.0, 1.0),
    ("normal_", "", {"mean": 2.0, "std": 3.0}, 2.0, 9.0),
    ("normal", "Tensor_Tensor", {"mean": 5 * ONES, "std": 2 * ONES}, 5.0, 4.0),
    ("normal", "float_Tensor", {"mean": 1.0, "std": 2 * ONES}, 1.0, 4.0),
    ("exponential_", "", {"lambd": 2.0}, 0.5, 0.25),
    ("geometric_", "", {"p": 0.25}, 4.0, 12.0),
    ("log_normal_", "", {"mean": 0.0, "std": 0.5}, math.exp(0.125), (math.exp(0.25) - 1) * math.exp(0.25)),
    ("bernoulli_", "float", {"self": ONES, "p": 0.3}, 0.3, 0.21),
    ("bernoulli", "", {"self": 0.3 * ONES}, 0.3, 0.21),
    ("bernoulli", "Tensor", {"self": ONES, "p": 0.9 * ONES}, 0.9, 0.09),
    ("poisson", "", {"self": 3 * ONES}, 3.0, 3.0),
    ("randint", "low", {"low": -3, "high": 5, "size": [N]}, 0.5, 63 / 12),
    ("random_", "from", {"from_": -3, "to": 5}, 0.5, 63 / 12),
    ("native_dropout", "", {"input": ONES, "p": 0.25, "train": True, "results": 2}, 1.0, 1 / 3),
]


@pytest.mark.parametrize("name,overload,arguments,mean,var", MOMENTS, ids=[f"{m[0]}.{m[1]}" for m in MOMENTS])
def test_moments(name, overload, arguments, mean, var):
    x = draw(name, overload, **arguments).astype(np.float64)
    # Five standard errors of the mean; the variance of these samples is within 10 % at N = 20000.
    assert abs(x.mean() - mean) < 5 * math.sqrt(var / N)
    assert abs(x.var() - var) < 0.1 * var


def test_a_key_reproduces_and_another_differs():
    first, again, other = draw("randn"), draw("randn"), draw("randn", seed=8)
    assert np.array_equal(first, again)
    assert abs(np.corrcoef(first, other)[0, 1]) < 5 / math.sqrt(N)


def test_ranges_are_kept():
    u = draw("rand", shape=(200000,))
    assert 0 <= u.min() and u.max() < 1
    assert draw("exponential_", shape=(200000,)).min() > 0
    assert set(draw("randint", "low", dtype=np.int64, low=-3, high=5)) == set(range(-3, 5))
    wide = draw("random_", "from", dtype=np.int64, from_=-(2**63), to=None)
    assert wide.min() < -(2**62) and wide.max() > 2**62
    assert draw("random_", dtype=np.int8).min() >= 0 and draw("random_", dtype=np.int8).max() == 127
    assert set(draw("random_", dtype=np.bool_)) == {False, True}
    assert not draw("bernoulli_", "float", self=ONES, p=0.0).any()
    assert draw("bernoulli_", "float", self=ONES, p=1.0).all()


def test_cauchy_quartiles():
    x = draw("cauchy_", median=1.0, sigma=2.0)
    low, middle, high = np.quantile(x, [0.25, 0.5, 0.75])
    # The quartiles are median -/+ sigma; 0.2 is over five standard errors (pi*sigma/(2*sqrt(N)) = 0.022).
    assert abs(low + 1) < 0.2 and abs(middle - 1) < 0.2 and abs(high - 3) < 0.2


def test_randperm_is_a_permutation():
    x = draw("randperm", shape=(1000,), dtype=np.int64, n=1000)
    assert sorted(x) == list(range(1000)) and list(x) != list(range(1000))


@pytest.mark.parametrize("replacement", [True, False])
def test_multinomial_follows_the_weights(replacement):
    weights = np.tile(np.array([[0.0, 1.0, 3.0, 0.0]], np.float32), (N, 1))
    x = draw("multinomial", shape=(N, 2), dtype=np.int64, self=weights, num_samples=2, replacement=replacement)
    assert set(x.ravel()) == {1, 2}
    assert abs((x[:, 0] == 2).mean() - 0.75) < 5 * math.sqrt(0.75 * 0.25 / N)  # five standard errors
    if not replacement:
        assert (x[:, 0] != x[:, 1]).all()


def test_dropout_edges():
    x = np.array([1.0, math.inf, 3.0], np.float32)
    assert draw("native_dropout", shape=(3,), results=2, input=x, p=1.0, train=True).tolist() == [0, 0, 0]
    assert draw("native_dropout", shape=(3,), results=2, input=x, p=0.5, train=False).tolist() == x.tolist()
