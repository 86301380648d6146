"""Grouped matrix products (mixtures of experts): every dtype, eager, compiled and backwards."""

from __future__ import annotations

import pytest
import torch


def product(x, weight, offs):
    return torch.nn.functional.grouped_mm(x, weight.transpose(-2, -1), offs=offs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_mm_is_that_of_the_cpu(dtype):
    """PyTorch's own meta kernel takes bfloat16 only, so float32 failed before it reached the lowering."""
    torch.manual_seed(0)
    x, weight = torch.randn(14, 32, dtype=dtype), torch.randn(4, 48, 32, dtype=dtype)
    offs = torch.tensor([3, 3, 7, 14], dtype=torch.int32)  # one group is empty
    results = {}
    for device in ("cpu", "tpu"):
        a, w = x.to(device).requires_grad_(), weight.to(device).requires_grad_()
        result = product(a, w, offs.to(device))
        result.sum().backward()
        results[device] = [t.detach().cpu() for t in (result, a.grad, w.grad)]
    torch.testing.assert_close(results["tpu"], results["cpu"])
    compiled = torch.compile(product, backend="tpu", fullgraph=True)(
        x.to("tpu"), weight.to("tpu"), offs.to("tpu")
    )
    torch.testing.assert_close(compiled.cpu(), results["cpu"][0])


def test_wrong_operands_are_refused():
    x, weight = torch.ones(4, 8, device="tpu"), torch.ones(2, 8, 8, device="tpu")
    with pytest.raises(RuntimeError, match="offs must be"):
        torch._grouped_mm(x, weight)
    with pytest.raises(RuntimeError, match="one floating-point dtype"):
        torch._grouped_mm(x, weight.to(torch.bfloat16), torch.tensor([2, 4], dtype=torch.int32, device="tpu"))
