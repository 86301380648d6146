"""``torch.ops.systolic.bmm_transposed``: ``a @ b`` where b is the transpose of what lies in memory.

Graphs get it from :mod:`systolic.compile.passes`.
"""

from __future__ import annotations

from systolic.kernels.dense import batched_matmul
from systolic.kernels.torch_library import define


def _fake(a, b):
    return a.new_empty(a.shape[0], a.shape[1], b.shape[2])


def _lower(a, b):
    """a: [B, M, K] float32; b: [B, K, N] float32.  Returns [B, M, N]."""
    return batched_matmul(a, b, transposed=True)


define("bmm_transposed(Tensor a, Tensor b) -> Tensor", _fake, _lower)
