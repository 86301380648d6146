"""scaled_dot_product_attention compiled, forward and backward, with every form of mask."""

import pytest
import torch
from graph_checks import check
from torch.nn import functional as F

# float32 softmax and products in another order
TOLERANCE = dict(rtol=1e-4, atol=1e-5)
N = 9


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def inputs(heads=2, key_heads=2, keys=N):
    shapes = (2, heads, N, 8), (2, key_heads, keys, 8), (2, key_heads, keys, 8)
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def boolean(*shape):
    mask = torch.rand(shape) > 0.4
    mask[..., 0] = True  # each query sees a key
    return mask


CASES = {
    "none": (inputs, lambda: None, {}),
    "causal": (inputs, lambda: None, {"is_causal": True}),
    "causal, more keys": (lambda: inputs(keys=13), lambda: None, {"is_causal": True}),
    "scale, dropout 0": (inputs, lambda: None, {"scale": 0.2, "dropout_p": 0.0}),
    "boolean": (inputs, lambda: boolean(N, N), {}),
    "boolean, expanded": (inputs, lambda: boolean(2, 1, 1, N).expand(2, 2, N, N), {}),
    "float": (inputs, lambda: torch.randn(2, 1, N, N), {}),
    "float with a gradient": (inputs, lambda: torch.randn(1, 2, N, N, requires_grad=True), {}),
    "grouped": (lambda: inputs(4, 2), lambda: None, {"enable_gqa": True}),
    "grouped, boolean": (lambda: inputs(4, 1), lambda: boolean(2, 1, N, N), {"enable_gqa": True}),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_values_and_gradients(case):
    make, mask, options = case
    check(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m, **options), *make(), mask(), **TOLERANCE)


def test_a_query_without_keys_gives_zeros_and_dropout_its_own_mask():
    q, k, v = (t.detach() for t in inputs())
    mask = boolean(N, N)
    mask[3] = False
    check(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), q, k, v, mask, **TOLERANCE)
    compiled = torch.compile(lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), backend="tpu")
    q = q.tpu()
    torch.manual_seed(1)
    first, second = compiled(q), compiled(q)
    torch.manual_seed(1)
    assert torch.equal(compiled(q).cpu(), first.cpu()) and not torch.equal(first.cpu(), second.cpu())
