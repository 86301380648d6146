"""Operators without a lowering run on the CPU: they warn once and are counted by name."""

import subprocess
import sys

import torch


def counted(function):
    before = torch.tpu.fallbacks()
    function()
    return {k: v - before.get(k, 0) for k, v in torch.tpu.fallbacks().items() if v != before.get(k, 0)}


def test_fallback_is_right_counted_and_warns_once():
    code = (
        "import warnings, torch\n"
        "x = torch.linspace(1, 3, 5)\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    for _ in range(3):\n"
        "        y = torch.special.airy_ai(x.tpu())\n"
        "assert y.device.type == 'tpu' and torch.allclose(y.cpu(), torch.special.airy_ai(x))\n"
        "print(torch.tpu.fallbacks())\n"
        "print([str(w.message) for w in seen])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts, messages = map(eval, done.stdout.strip().splitlines())
    assert list(counts.values()) == [3] and "aten::special_airy_ai" in next(iter(counts))
    assert len(messages) == 1
    assert "special_airy_ai" in messages[0] and "torch.tpu.fallbacks()" in messages[0]


def test_fallback_writes_in_place_and_out():
    x = torch.tensor([1.0, 2.0], device="tpu")
    out = torch.empty(2, device="tpu")
    torch.special.airy_ai(x, out=out)
    assert torch.allclose(out.cpu(), torch.special.airy_ai(x.cpu()))


def test_lowered_operators_do_not_fall_back():
    x = torch.randn(4, 4, device="tpu")
    index = torch.tensor([2, 0, 2], device="tpu")

    def common():
        y = (x @ x).softmax(-1).sum() + x.max(1).values.sum() + x[index].mean() + x.t().contiguous().norm()
        torch.cat([x, x]).sort(0)
        torch.where(x > 0, x, 0).cumsum(0)
        torch.nn.functional.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])
        return y.item()

    assert counted(common) == {}


def test_data_dependent_operators_do_not_fall_back():
    x = torch.tensor([3, 1, 3, 0], device="tpu")

    def dynamic():
        x.nonzero(), x[x > 1], x.masked_select(x > 1), torch.unique(x, return_counts=True, return_inverse=True)
        torch.unique(x.view(2, 2), dim=0), torch.unique_consecutive(x), torch.bincount(x)
        torch.repeat_interleave(x), torch.repeat_interleave(x, x), torch.equal(x, x), torch.allclose(x, x)
        torch.argwhere(x), torch.where(x > 0)
        y = x.clone()
        y[x > 1] = 0
        y[x == 0] = torch.tensor([7], device="tpu")

    assert counted(dynamic) == {}
