"""Printing shows what the CPU prints, with the device named, and compiles nothing."""

import pytest
import torch

SAMPLES = {
    "vector": torch.arange(3),
    "matrix": torch.tensor([[1.5, -2.0], [float("inf"), float("nan")]]),
    "number": torch.tensor(2.5),
    "bool": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]),
    "bfloat16": torch.tensor([1.5], dtype=torch.bfloat16),
    "empty": torch.empty(0, 3),
    "long": torch.arange(5000.0),
    "cube": torch.zeros(2, 2, 2),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_repr(name):
    host = SAMPLES[name]
    shown, wanted = repr(host.tpu()), repr(host)
    assert "device='tpu:0'" in shown
    assert "".join(shown.replace("device='tpu:0'", "").replace(", ", "").split()).replace(",", "") == "".join(
        wanted.replace(", ", "").split()
    ).replace(",", "")


def test_repr_of_special_tensors():
    t = torch.ones(2, device="tpu", requires_grad=True)
    assert repr(t) == "tensor([1., 1.], device='tpu:0', requires_grad=True)"
    assert "grad_fn=<MulBackward0>" in repr(t * 2)
    assert repr(torch.nn.Parameter(torch.ones(1, device="tpu"))).startswith("Parameter containing:")
    assert repr(torch.tensor([1 + 2j], device="tpu").conj()) == "tensor([1.-2.j], device='tpu:0')"
    assert f"{torch.tensor(1.25, device='tpu'):.1f}" == "1.2"
    assert str(torch.device("tpu", 0)) == "tpu:0"


def test_printing_a_transposed_view():
    t = torch.arange(6, device="tpu").view(2, 3).t()
    assert repr(t) == "tensor([[0, 3],\n        [1, 4],\n        [2, 5]], device='tpu:0')"


def test_printing_compiles_nothing():
    t = torch.arange(7.0).tpu()
    before = torch.tpu.compilations()
    repr(t), t.tolist(), repr(t.view(7, 1))
    assert torch.tpu.compilations() == before
