"""Why a pair does not pass, in one line: written by hand where the message of the failure does not say it."""

from __future__ import annotations

import re

# (pattern of "database/name/dtype/mode", reason); the first that fits is used
REASONS: list[tuple[str, str]] = [
    (r"operator/addcdiv/(bfloat16|float16)/compiled",
     "Dynamo takes addcdiv with a value apart before any backend sees it: three roundings instead of one"),
    (r"operator/(amax|amin|aminmax)/float32/eager", "an error input has 65 dimensions; XLA arrays have at most 64"),
    (r"operator/(chalf|complex)/", "XLA has no complex32"),
    (r"operator/.*batch_norm.*/(bfloat16|float16)/",
     "saved statistics are float32, as PyTorch's meta kernel and CUDA have them; the CPU keeps them in 16 bits"),
    (r"operator/_native_batch_norm_legit/float32/",
     "out of training the CPU returns empty statistics; PyTorch's meta kernel, which gives ours, full ones"),
    (r"operator/(gather|scatter.*|index_.*)/float32/eager",
     "an index out of range raises in debug mode only; otherwise it reads the nearest row and writes nothing"),
    (r"operator/_upsample_bilinear2d_aa/uint8/|operator/nn.functional.(interpolate|upsample).*/uint8/",
     "the CPU rounds to uint8 between two passes with fixed-point weights; the device rounds once"),
    (r"operator/native_layer_norm/(bfloat16|float16)/",
     "saved statistics are float32, as PyTorch's meta kernel and CUDA have them; the CPU keeps them in 16 bits"),
    (r"operator/native_batch_norm/float32/",
     "out of training the CPU returns empty statistics; PyTorch's meta kernel, which gives ours, full ones"),
    (r"operator/logcumsumexp/", "the gradient subtracts results in the thousands: the CPU is off by 2e-3 as well"),
    (r"operator/matrix_exp/float64/", "the second gradient of samples with norm 40 has a condition that costs 8 digits"),
    (r"operator/linalg.householder_product/", "the gradient solves with reflectors of norm 100: 1e-5 of it is lost"),
    (r"operator/linalg.ldl_factor", "LDL factors depend on the choice of pivots"),
    (r"operator/msort/", "which of equal values gets the gradient is open: in 16 bits most of 8,000 values are equal"),
    (r"operator/special\.(bessel_j0|bessel_y1|airy_ai)/float64/",
     "the CPU kernel is off by up to 5e-7 beyond |x| = 2; the device agrees with tabulated values"),
    (r"operator/(sparse\.|to_sparse)", "the device has no sparse layouts"),
    (r"operator/tensor_split/float64/eager", "PyTorch wants these indices on the CPU, whatever the device"),
    (r"operator/view_as_complex/(float32|float64)/eager",
     "the test's strided input has a last dimension that no complex number can be seen in; the CPU refuses it too"),
    (r"operator/view_as_complex/float16/", "XLA has no complex32"),
    (r"operator/uniform/float32/eager", "bounds are run-time inputs, and nothing looks at them before they are used"),
    (r"optimizer/(Adam|AdamW)/float64/compiled",
     "under torch.compile PyTorch counts steps in float32: the CPU compiled differs from itself by 3e-7 as well"),
    (r"optimizer/Muon/float64/compiled", "Muon works in bfloat16 inside: one rounding there is 1e-5 of the result"),
    (r"optimizer/NAdam/.*/compiled",
     "Dynamo moves NAdam's step to the device and leaves its mu_product on the CPU; capturable=True avoids it"),
    (r"optimizer/SparseAdam/", "SparseAdam takes sparse gradients only; the device has no sparse layouts"),
]


def reason(outcome) -> str:
    """The reason of an outcome that did not pass."""
    if outcome.state == "failed":
        for pattern, text in REASONS:
            if re.search(pattern, str(outcome.case)):
                return text
    return outcome.reason
