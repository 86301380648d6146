"""Saving, loading and pickling."""

import copy
import io
import pickle

import pytest
import torch


def saved(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str
)
def test_save_and_load_on_the_device(dtype):
    host = torch.arange(6).view(2, 3).to(dtype)
    back = torch.load(saved(host.tpu()))
    assert back.device == torch.device("tpu:0") and back.dtype == dtype
    assert torch.equal(back.cpu(), host)


HOST = {
    "name": "cpu",
    "device": torch.device("cpu"),
    "mapping": {"tpu:0": "cpu"},
    "function": lambda storage, where: storage,
}


@pytest.mark.parametrize("target", HOST.values(), ids=HOST)
def test_load_to_the_host(target):
    back = torch.load(saved(torch.arange(4, device="tpu")), map_location=target)
    assert back.device.type == "cpu" and back.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("target", ["tpu", "tpu:0", torch.device("tpu"), {"cpu": "tpu:0"}], ids=str)
def test_load_a_host_file_to_the_device(target):
    back = torch.load(saved(torch.arange(4)), map_location=target)
    assert back.device == torch.device("tpu:0") and back.tolist() == [0, 1, 2, 3]


def test_load_to_an_absent_device_says_so():
    with pytest.raises(RuntimeError, match="tpu:63|63"):
        torch.load(saved(torch.arange(4, device="tpu")), map_location="tpu:63")


def test_views_and_shared_storages_survive():
    t = torch.arange(6, device="tpu")
    a, b = torch.load(saved([t[1:4], t.view(2, 3).t()]))
    assert a.tolist() == [1, 2, 3] and b.stride() == (1, 3)
    a.fill_(9)
    assert b.tolist() == [[0, 9], [9, 4], [9, 5]]


def test_state_dict_of_a_module():
    model = torch.nn.Linear(3, 2).to("tpu")
    state = torch.load(saved(model.state_dict()), map_location="cpu", weights_only=True)
    fresh = torch.nn.Linear(3, 2)
    fresh.load_state_dict(state)
    assert torch.equal(fresh.weight, model.weight.cpu())


def test_legacy_format():
    buffer = io.BytesIO()
    torch.save(torch.arange(3, device="tpu"), buffer, _use_new_zipfile_serialization=False)
    buffer.seek(0)
    assert torch.load(buffer).tolist() == [0, 1, 2]


def test_pickle_and_copy():
    t = torch.tensor([1.5, 2.5], device="tpu")
    back = pickle.loads(pickle.dumps(t))
    assert back.device == t.device and torch.equal(back.cpu(), t.cpu())
    p = torch.nn.Parameter(t)
    clone = copy.deepcopy(p)
    assert type(clone) is torch.nn.Parameter and clone.device == t.device
    assert clone.data_ptr() != p.data_ptr()
    shallow = copy.copy(t)
    assert shallow.data_ptr() == t.data_ptr()


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    safetensors.save_file({"w": torch.arange(4.0, device="tpu").cpu()}, tmp_path / "m.safetensors")
    back = safetensors.load_file(tmp_path / "m.safetensors", device="cpu")["w"].tpu()
    assert back.tolist() == [0.0, 1.0, 2.0, 3.0]
