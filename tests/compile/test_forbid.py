"""Compilation can be forbidden, is observed, and is counted."""

import threading

import pytest
import torch

from systolic.compile import executables
from systolic.compile.executables import CompilationForbidden, forbid, statistics


@pytest.fixture(autouse=True)
def no_disk(monkeypatch):
    """Nothing comes from disk, so that every new program is a compilation."""
    from systolic.compile import store

    monkeypatch.setattr(store, "enabled", lambda: False)


def test_new_programs_raise_and_known_ones_run():
    x = torch.ones(5, 3, device="tpu")
    known = x * 2
    with forbid("warm-up is over"):
        assert (x * 2).device.type == "tpu"
        with pytest.raises(CompilationForbidden, match=r"aten\.asin.*warm-up is over"):
            torch.asin(x)
        assert (x * 3).shape == known.shape  # another scalar is the same program
    assert torch.asin(x)[0, 0].item() == pytest.approx(1.5707964)


def test_compiled_graphs():
    compiled = torch.compile(lambda x: x.sinh() + 1, dynamic=True)
    compiled(torch.ones(4, device="tpu"))
    four, five = torch.ones(4, device="tpu"), torch.ones(5, device="tpu")
    with forbid("sizes are fixed"):
        compiled(four)
        with pytest.raises(CompilationForbidden, match="sizes are fixed"):
            compiled(five)
    compiled(five)


def test_blocks_nest_and_end_with_an_error():
    x = torch.ones(6, 2, device="tpu")
    with forbid("outer"):
        with pytest.raises(CompilationForbidden, match="inner"), forbid("inner"):
            torch.acos(x)
        with pytest.raises(CompilationForbidden, match="outer"):
            torch.acos(x)
    torch.acos(x)


def test_other_threads_may_compile():
    x, errors = torch.ones(7, 2, device="tpu"), []

    def work():
        try:
            torch.atan(x)
        except Exception as error:
            errors.append(error)

    with forbid("only here"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
    assert errors == []


def test_counts_and_observers(monkeypatch):
    monkeypatch.setattr(executables, "_observers", [])
    x, seen = torch.ones(8, 3, device="tpu"), []
    executables.on_compilation(lambda name, seconds: seen.append((name, seconds)))
    before, seconds = torch.tpu.compilations(), statistics.compile_seconds
    torch.cosh(x), torch.cosh(x)
    assert torch.tpu.compilations() == before + 1 and statistics.compile_seconds > seconds
    assert len(seen) == 1 and "cosh" in seen[0][0] and seen[0][1] > 0


def test_failed_lowering_leaves_nothing_behind():
    x = torch.ones(2, 3, device="tpu")
    before = torch.tpu.compilations()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            torch.mm(x, x)
    assert torch.tpu.compilations() == before
