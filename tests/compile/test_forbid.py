"""`forbid` turns a compilation into an error; observers hear of each one."""

from __future__ import annotations

import pytest
import torch

from systolic.compile import executables


def test_forbid_names_the_operator_and_the_reason(monkeypatch):
    monkeypatch.setattr(executables, "_load", lambda key, index: None)  # a program on disk would not be compiled
    x = torch.ones(1237, 3, device="tpu")
    with executables.forbid("serving has begun"):
        with pytest.raises(executables.CompilationForbidden, match=r"aten\.cosh.*serving has begun"):
            torch.cosh(x)


def test_known_programs_run_inside_forbid():
    x = torch.ones(9, 2, device="tpu")
    want = (x + 2).cpu()
    with executables.forbid("serving has begun"):
        assert torch.equal((x + 2).cpu(), want)
    torch.cosh(x)  # allowed again


def test_observers_hear_of_compilations(monkeypatch):
    heard = []
    monkeypatch.setattr(executables, "_observers", [lambda name, seconds: heard.append((name, seconds))])
    monkeypatch.setattr(executables, "_load", lambda key, index: None)
    torch.ones(1231, device="tpu").atan_()
    names = [name for name, _ in heard]
    assert any("atan" in name for name in names)
    assert all(seconds > 0 for _, seconds in heard)
