"""``torch.ops.systolic.bmm_transposed``: ``a @ b`` where b is the transpose of what lies in memory.

Graphs get it from :mod:`systolic.compile.passes`.
"""

from __future__ import annotations

import torch

from ...compile.interpreter import register_custom
from . import batched_matmul

_library = torch.library.Library("systolic", "FRAGMENT")
_library.define("bmm_transposed(Tensor a, Tensor b) -> Tensor")


@torch.library.register_fake("systolic::bmm_transposed", lib=_library)
def _fake(a, b):
    return a.new_empty(a.shape[0], a.shape[1], b.shape[2])


def _lower(a, b):
    """a: [B, M, K] float32; b: [B, K, N] float32.  Returns [B, M, N]."""
    return batched_matmul(a, b, transposed=True)


register_custom("systolic::bmm_transposed", _lower)
