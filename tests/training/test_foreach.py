"""Operators on lists of tensors: one launch for a list, with the values of the single operators."""

from __future__ import annotations

import pytest
import torch

SHAPES = [(3,), (2, 4), (), (1, 2, 3)]


def tensors(device: str, seed: int = 0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [(torch.rand(s, generator=generator) + 0.5).to(dtype).to(device) for s in SHAPES]


CALLS = {
    "add scalar": lambda f, d: f._foreach_add(tensors(d), 1.5),
    "add list": lambda f, d: f._foreach_add(tensors(d), tensors(d, 1), alpha=2),
    "add scalars": lambda f, d: f._foreach_add(tensors(d), [1.0, 2.0, 3.0, 4.0]),
    "add tensor": lambda f, d: f._foreach_add(tensors(d), torch.tensor(2.0, device=d), alpha=3),
    "sub": lambda f, d: f._foreach_sub(tensors(d), tensors(d, 1)),
    "mul tensor": lambda f, d: f._foreach_mul(tensors(d), torch.tensor(2.0)),
    "div scalars": lambda f, d: f._foreach_div(tensors(d), [1.0, 2.0, 3.0, 4.0]),
    "integers": lambda f, d: f._foreach_div(tensors(d, dtype=torch.int64), 2),
    "maximum": lambda f, d: f._foreach_maximum(tensors(d), 1.0),
    "minimum": lambda f, d: f._foreach_minimum(tensors(d), tensors(d, 1)),
    "clamp_min": lambda f, d: f._foreach_clamp_min(tensors(d), 0.8),
    "clamp_max": lambda f, d: f._foreach_clamp_max(tensors(d), [0.8, 0.9, 1.0, 1.1]),
    "lerp": lambda f, d: f._foreach_lerp(tensors(d), tensors(d, 1), 0.3),
    "lerp list": lambda f, d: f._foreach_lerp(tensors(d), tensors(d, 1), tensors(d, 2)),
    "addcmul": lambda f, d: f._foreach_addcmul(tensors(d), tensors(d, 1), tensors(d, 2), 0.5),
    "addcdiv scalars": lambda f, d: f._foreach_addcdiv(tensors(d), tensors(d, 1), tensors(d, 2), [1.0, 2.0, 3.0, 4.0]),
    "addcdiv tensor": lambda f, d: f._foreach_addcdiv(tensors(d), tensors(d, 1), tensors(d, 2), torch.ones(4)),
    "pow": lambda f, d: f._foreach_pow(tensors(d), 2),
    "pow scalar base": lambda f, d: f._foreach_pow(0.9, tensors(d)),
    "sqrt": lambda f, d: f._foreach_sqrt(tensors(d)),
    "reciprocal": lambda f, d: f._foreach_reciprocal(tensors(d)),
    "sign": lambda f, d: f._foreach_sign(tensors(d)),
    "max": lambda f, d: f._foreach_max(tensors(d)),
    "clone": lambda f, d: f._foreach_clone(tensors(d)),
    "norm": lambda f, d: f._foreach_norm(tensors(d)),
    "norm inf": lambda f, d: f._foreach_norm(tensors(d), float("inf")),
    "norm half": lambda f, d: f._foreach_norm(tensors(d, dtype=torch.float16), 2, dtype=torch.float32),
    "powsum": lambda f, d: f._foreach_powsum(tensors(d), 3),
}


@pytest.mark.parametrize("name", CALLS)
def test_values(name):
    before = torch.tpu.fallbacks()
    for found, expected in zip(CALLS[name](torch, "tpu"), CALLS[name](torch, "cpu"), strict=True):
        # Elementwise float32; pow, norms and division may round the last bit otherwise.
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-6, atol=1e-6)
    assert torch.tpu.fallbacks() == before


def test_in_place_on_views_and_one_launch():
    base = torch.zeros(4, 6, device="tpu")
    rows = [base[i] for i in range(4)]
    torch._foreach_add_(rows, [1.0, 2.0, 3.0, 4.0])
    assert base[:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]
    many = [torch.zeros(3, device="tpu") for _ in range(30)]
    torch._foreach_add_(many, 1)
    before = torch.tpu._C.launches()
    torch._foreach_add_(many, 1)
    torch._foreach_zero_(many[:5])
    assert torch.tpu._C.launches() - before <= 3
    assert many[0].sum().item() == 0 and many[29].tolist() == [2.0, 2.0, 2.0]


def test_copies_across_devices():
    target = [torch.zeros(3, device="tpu"), torch.zeros(2, device="tpu", dtype=torch.bfloat16)]
    torch._foreach_copy_(target, [torch.ones(3), torch.ones(2)])
    assert target[0].tolist() == [1.0] * 3 and target[1].dtype == torch.bfloat16 and target[1].sum().item() == 2


def test_errors_have_the_words_of_the_cpu():
    with pytest.raises(RuntimeError, match="(?i)same (number|length)|equal"):
        torch._foreach_add([torch.ones(2, device="tpu")], [torch.ones(2, device="tpu")] * 2)
    with pytest.raises(RuntimeError, match="cast"):
        torch._foreach_add_([torch.ones(2, dtype=torch.int64, device="tpu")], 0.5)


def test_gradients():
    xs = [t.requires_grad_() for t in tensors("tpu")]
    total = sum(t.sum() for t in torch._foreach_mul(xs, xs))
    total.backward()
    for x in xs:
        torch.testing.assert_close(x.grad, 2 * x.detach())
