"""A stratified sample of PyTorch's own operator tests: the device against the CPU, in values, dtypes and shapes.

The sample is every n-th operator of the sorted list, by dtype.  `KNOWN_FAILURES` may only shrink: an entry that
passes fails the test.
"""

import warnings

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_map

# dtype -> every how many operators one is taken
STRIDE = {torch.float32: 6, torch.int64: 11, torch.bool: 14}
SAMPLES = 2

# Results are random or undefined, so they cannot equal the CPU's.
NOT_COMPARABLE = (
    "bernoulli", "cauchy", "dropout", "empty", "exponential", "geometric", "log_normal", "multinomial",
    "normal", "rand", "uniform", "rrelu", "fractional_max_pool", "pca_lowrank", "svd_lowrank", "resize_",
    "linalg.eig", "linalg.svd", "linalg.lstsq", "linalg.qr", "geqrf", "ormqr", "to_sparse", "sparse", "jiterator",
)  # fmt: skip

# (name, dtype) -> reason
KNOWN_FAILURES: dict[tuple[str, torch.dtype], str] = {
    ("chalf", torch.float32): "XLA has no complex32",
    ("_native_batch_norm_legit", torch.float32): "out of training the CPU kernel returns empty saved statistics, "
    "PyTorch's meta kernel, which gives the device's shapes, full ones",
}


def _full_name(info):
    return info.name + ("." + info.variant_test_name if info.variant_test_name else "")


def _pairs():
    for dtype, stride in STRIDE.items():
        infos = [
            i for i in op_db if dtype in i.supported_dtypes("cpu") and not any(w in i.name for w in NOT_COMPARABLE)
        ]
        infos.sort(key=_full_name)
        for info in infos[::stride]:
            key = (_full_name(info), dtype)
            marks = [pytest.mark.xfail(reason=KNOWN_FAILURES[key], strict=True)] if key in KNOWN_FAILURES else []
            yield pytest.param(info, dtype, id=f"{key[0]}-{str(dtype).removeprefix('torch.')}", marks=marks)


def _move(value):
    return tree_map(lambda t: t.detach().to("tpu") if isinstance(t, torch.Tensor) else t, value)


@pytest.mark.parametrize("info,dtype", _pairs())
def test_equals_the_cpu(info, dtype):
    compared = 0
    for _, sample in zip(range(SAMPLES), info.sample_inputs("cpu", dtype, requires_grad=False)):
        arguments, keywords = (sample.input, *sample.args), sample.kwargs
        given, given_keywords = _move(arguments), _move(keywords)
        if "device" in given_keywords:
            given_keywords["device"] = "tpu"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            want = info.op(*arguments, **keywords)
            got = info.op(*given, **given_keywords)
        wanted, _ = tree_flatten(want)
        results, _ = tree_flatten(got)
        assert len(wanted) == len(results)
        for w, g in zip(wanted, results):
            if not isinstance(w, torch.Tensor):
                assert g == w
                continue
            if w.device.type == "cpu" and keywords.get("device") != "cpu":
                assert g.device.type == "tpu"
            # Other orders of float32 sums and other approximations of transcendental functions.
            torch.testing.assert_close(g.cpu().resolve_conj(), w.resolve_conj(), rtol=5e-5, atol=5e-5, equal_nan=True)
        compared += 1
    assert compared or not list(info.sample_inputs("cpu", dtype, requires_grad=False))
