"""Operators without a lowering run on the CPU: they warn once and are counted by name."""

import subprocess
import sys

import torch


# An operator that only the CPU has, and that no lowering will take away from this test.
UNLOWERED = """
import torch
library = torch.library.Library("unlowered", "FRAGMENT")
library.define("twice(Tensor x) -> Tensor")
library.define("twice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
library.impl("twice", lambda x: x * 2, "CPU")
library.impl("twice.out", lambda x, *, out: out.copy_(x * 2), "CPU")
library.impl("twice", lambda x: torch.empty_like(x), "Meta")
"""


def counted(function):
    before = torch.tpu.fallbacks()
    function()
    return {k: v - before.get(k, 0) for k, v in torch.tpu.fallbacks().items() if v != before.get(k, 0)}


def test_fallback_is_right_counted_and_warns_once():
    code = UNLOWERED + (
        "import warnings\n"
        "x = torch.linspace(1, 3, 5)\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    for _ in range(3):\n"
        "        y = torch.ops.unlowered.twice(x.tpu())\n"
        "assert y.device.type == 'tpu' and torch.equal(y.cpu(), x * 2)\n"
        "print(torch.tpu.fallbacks())\n"
        "print([str(w.message) for w in seen])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts, messages = map(eval, done.stdout.strip().splitlines())
    assert counts == {"unlowered::twice": 3}
    assert len(messages) == 1
    assert "unlowered::twice" in messages[0] and "torch.tpu.fallbacks()" in messages[0]


def test_fallback_writes_in_place_and_out():
    space = {}
    exec(UNLOWERED, space)
    out = torch.empty(2, device="tpu")
    torch.ops.unlowered.twice.out(torch.tensor([1.0, 2.0], device="tpu"), out=out)
    assert out.tolist() == [2.0, 4.0]
    space["library"]._destroy()


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
        (
            x.nonzero(),
            x[x > 1],
            x.masked_select(x > 1),
            torch.unique(x, return_counts=True, return_inverse=True),
        )
        torch.unique(x.view(2, 2), dim=0), torch.unique_consecutive(x), torch.bincount(x)
        torch.repeat_interleave(x), torch.repeat_interleave(x, x), torch.equal(x, x), torch.allclose(x, x)
        torch.argwhere(x), torch.where(x > 0)
        y = x.clone()
        y[x > 1] = 0
        y[x == 0] = torch.tensor([7], device="tpu")

    assert counted(dynamic) == {}
