"""The device as PyTorch sees it: names, contexts, `torch.tpu` and `torch.accelerator`."""

import subprocess
import sys

import pytest
import torch


def test_tensors_are_plain_and_on_tpu_0():
    t = torch.ones(2, device="tpu")
    assert type(t) is torch.Tensor
    assert t.device == torch.device("tpu", 0)
    assert t.is_tpu and not t.is_cpu
    assert type(torch.nn.Parameter(t)) is torch.nn.Parameter


def test_import_torch_registers_the_device_and_loads_no_jax():
    code = (
        "import sys, torch\n"
        "heavy = [m for m in ('jax', 'jaxlib', 'vllm', 'torch._dynamo', 'sympy') if m in sys.modules]\n"
        "assert torch.tpu.is_available() and not torch.tpu.is_initialized()\n"
        "torch.device('tpu:1'); torch.tpu.manual_seed(1); torch.manual_seed(2)\n"
        "heavy += [m for m in ('jax', 'jaxlib') if m in sys.modules]\n"
        "print(heavy)\n"
        "torch.ones(1, device='tpu')\n"
        "assert torch.tpu.is_initialized() and 'jax' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""


def test_global_jax_configuration_is_left_alone():
    code = (
        "import torch; (torch.arange(3, device='tpu') + 2**40).cpu()\n"
        "import jax, jax.numpy as jnp\n"
        "print(jax.config.jax_enable_x64, jnp.arange(3).dtype)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "int32"], done.stderr


def test_module_describes_the_device():
    assert torch.tpu.is_available()
    assert torch.tpu.device_count() >= 1
    assert torch.tpu.current_device() == 0
    name = torch.tpu.get_device_name()
    properties = torch.tpu.get_device_properties("tpu:0")
    assert properties.name == name
    assert properties.platform in ("cpu", "tpu")
    assert (properties.platform == "cpu") == (name == "XLA on the CPU")
    assert properties.total_memory > 2**20
    assert torch.tpu.get_device_capability() is None


def test_accelerator_is_tpu():
    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    assert torch.accelerator.device_count() == torch.tpu.device_count()
    assert torch.accelerator.current_device_index() == 0
    torch.accelerator.set_device_index(0)
    torch.accelerator.synchronize()
    with torch.accelerator.device_index(0):
        assert torch.accelerator.current_device_index() == 0


def test_device_contexts():
    with torch.device("tpu"):
        assert torch.zeros(2).device.type == "tpu"
        assert torch.tensor([1, 2]).device.type == "tpu"
        assert torch.nn.Linear(2, 2).weight.device.type == "tpu"
        assert torch.zeros(2, device="cpu").device.type == "cpu"
    assert torch.zeros(2).device.type == "cpu"
    with torch.tpu.device(0):
        assert torch.tpu.current_device() == 0


def test_default_device():
    torch.set_default_device("tpu")
    try:
        assert torch.randn(3).device.type == "tpu"
        assert torch.arange(3).tolist() == [0, 1, 2]
        assert torch.get_default_device() == torch.device("tpu", 0)
    finally:
        torch.set_default_device(None)
    assert torch.randn(3).device.type == "cpu"


@pytest.mark.parametrize("make", [
    lambda: torch.zeros(2, 3, device="tpu"),
    lambda: torch.full((2, 3), 0.0, device="tpu"),
    lambda: torch.empty(2, 3, device="tpu").zero_(),
    lambda: torch.ones(2, 3, device="tpu").new_zeros(2, 3),
    lambda: torch.zeros_like(torch.ones(2, 3, device="tpu")),
    lambda: torch.zeros(2, 3).tpu(),
    lambda: torch.zeros(2, 3).to("tpu:0"),
    lambda: torch.zeros(2, 3).to(torch.device("tpu")),
    lambda: torch.tensor([[0.0] * 3] * 2, device="tpu"),
])  # fmt: skip
def test_ways_to_make_a_tensor(make):
    t = make()
    assert t.device == torch.device("tpu:0") and t.dtype == torch.float32
    assert t.tolist() == [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]


def test_factories_match_the_cpu():
    for make in (
        lambda d: torch.arange(2, 11, 3, device=d),
        lambda d: torch.linspace(0, 1, 5, device=d),
        lambda d: torch.eye(3, device=d),
        lambda d: torch.tril_indices(3, 3, device=d),
        lambda d: torch.full((2,), 7, device=d),
        lambda d: torch.full((2,), True, device=d),
        lambda d: torch.scalar_tensor(2.5, device=d),
    ):
        got, want = make("tpu"), make("cpu")
        assert got.dtype == want.dtype
        assert torch.equal(got.cpu(), want)


def test_autocast_uses_the_given_dtype():
    a = torch.randn(4, 4, device="tpu")
    with torch.autocast("tpu", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
    assert (a @ a).dtype == torch.float32


def test_inference_mode_and_no_grad():
    with torch.inference_mode():
        t = torch.ones(3, device="tpu") * 2
        assert t.is_inference()
        t[1:].add_(1)
    assert t.tolist() == [2.0, 3.0, 3.0]
