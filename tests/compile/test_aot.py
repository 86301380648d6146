"""torch.export programs as StableHLO: callable, readable, saved and loaded."""


import pytest
import torch
from torch import nn

from systolic import aot


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x, scale, more=None):
        self.calls.add_(1)
        y = torch.cond(x.sum() > 0, lambda y: y.relu(), lambda y: y.sin(), (self.linear(x),)) * scale
        return {"y": y, "count": self.calls + 0, "fixed": 7, "more": None if more is None else more[0] * 2}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Model()


@pytest.fixture(scope="module")
def program(model):
    return aot.export(torch.export.export(model, (torch.randn(2, 4), 1.5), {"more": (torch.ones(2),)}))


def run(program, x):
    return program(x.tpu(), 1.5, more=(torch.ones(2).tpu(),))


def test_results_and_written_buffers(program, model):
    for sign in (1, -1):
        x = sign * torch.rand(2, 4)
        want = model(x, 1.5, (torch.ones(2),))
        got = run(program, x)
        assert got["fixed"] == 7 and got["more"].tolist() == [2.0, 2.0]
        torch.testing.assert_close(got["y"].cpu(), want["y"].detach())
        assert got["count"].item() == want["count"].item()


def test_text(program):
    text = program.stablehlo()
    assert "stablehlo.dot_general" in text and "func.func public @main" in text and "stablehlo.case" in text


def test_a_file_keeps_the_program_and_its_state(program, tmp_path):
    path = tmp_path / "model.systolic"
    program.save(path)
    loaded, x = aot.load(path), torch.rand(2, 4)
    before = run(program, x)
    after = run(loaded, x)
    assert torch.equal(before["y"].cpu(), after["y"].cpu()) and before["count"].item() == after["count"].item()
    assert loaded.stablehlo() == program.stablehlo()


def test_files_that_do_not_fit_are_refused(program, tmp_path):
    path = tmp_path / "model.systolic"
    program.save(path)
    content = torch.load(path)
    torch.save(content | {"systolic.aot": aot.FORMAT + 1}, path)
    with pytest.raises(ValueError, match=f"has format {aot.FORMAT + 1}, this version reads {aot.FORMAT}"):
        aot.load(path)
    torch.save({"weights": torch.ones(2)}, path)
    with pytest.raises(ValueError, match="is not a program of systolic.aot; export it again"):
        aot.load(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="is damaged"):
        aot.load(path)
    with pytest.raises(OSError):
        aot.load(tmp_path / "missing")


def test_inputs_that_do_not_fit_are_refused(program):
    x, more = torch.rand(2, 4).tpu(), (torch.ones(2).tpu(),)
    with pytest.raises(TypeError, match="inputs nest as"):
        program(x, 1.5)
    with pytest.raises(ValueError, match=r"input 0 has shape \[3, 4\], the program was exported for \[2, 4\]"):
        program(torch.rand(3, 4).tpu(), 1.5, more=more)
    with pytest.raises(TypeError, match="input 0 must be a tensor of torch.float32, got torch.float64"):
        program(x.double(), 1.5, more=more)
    with pytest.raises(ValueError, match="input 0 is on cpu; move it"):
        program(x.cpu(), 1.5, more=more)


def test_what_cannot_be_exported_is_refused():
    n = torch.export.Dim("n")
    dynamic = torch.export.export(nn.Linear(4, 3), (torch.randn(2, 4),), dynamic_shapes=({0: n},))
    with pytest.raises(ValueError, match="input .* has the dynamic shape .*; export with static shapes"):
        aot.export(dynamic)
    with pytest.raises(ValueError, match="random operators; export it in eval mode"):
        aot.export(torch.export.export(nn.Dropout(0.5).train(), (torch.ones(3),)))
    with pytest.raises(TypeError, match="expected a torch.export.ExportedProgram, got Linear"):
        aot.export(nn.Linear(1, 1))


def test_a_program_for_a_tpu_without_one():
    program = aot.export(torch.export.export(nn.Linear(4, 3), (torch.randn(2, 4),)), platforms=("tpu",))
    assert "stablehlo.dot_general" in program.stablehlo()
    assert "tpu" in program._exported.platforms


def test_convolution_and_batch_norm():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()).eval()
    x = torch.randn(2, 3, 8, 8)
    program = aot.export(torch.export.export(model, (x,)))
    # float32 sums in another order
    torch.testing.assert_close(program(x.tpu()).cpu(), model(x).detach(), rtol=1e-4, atol=1e-5)
