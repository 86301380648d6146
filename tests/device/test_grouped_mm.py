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
    x, weight = torch.randn(14, 32).to(dtype), torch.randn(4, 48, 32).div(32**0.5).to(dtype)
    offs = torch.tensor([3, 3, 7, 14], dtype=torch.int32)  # one group is empty
    results = {}
    for device in ("cpu", "tpu"):
        a, w = (t.detach().to(device).requires_grad_() for t in (x, weight))
        result = product(a, w, offs.to(device))
        result.square().sum().backward()  # the CPU refuses the expanded gradient of a plain sum
        results[device] = [t.detach().cpu() for t in (result, a.grad, w.grad)]
    torch.testing.assert_close(results["tpu"], results["cpu"])
    compiled = torch.compile(product, backend="tpu", fullgraph=True)(
        x.to("tpu"), weight.to("tpu"), offs.to("tpu")
    )
    torch.testing.assert_close(compiled.cpu(), results["cpu"][0])


def test_wrong_operands_are_refused():
    x, weight = torch.ones(4, 8, device="tpu"), torch.ones(2, 8, 8, device="tpu")
    with pytest.raises(RuntimeError, match="offsets"):
        torch._grouped_mm(x, weight)
    offs = torch.tensor([2, 4], dtype=torch.int32, device="tpu")
    with pytest.raises(RuntimeError, match="one floating-point dtype, got torch.float32 and torch.bfloat16"):
        torch.ops.aten._grouped_mm(x.to("meta"), weight.to("meta", torch.bfloat16), offs.to("meta"))
    with pytest.raises(RuntimeError, match=r"batch sizes have to match, got \[2, 3\]"):
        torch.ops.aten._grouped_mm(x.to("meta"), torch.ones(3, 8, 8, device="meta"), offs.to("meta"))
