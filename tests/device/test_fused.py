"""Fused mode: recorded operators give what operators one by one give, in fewer launches."""

import os
import subprocess
import sys
import threading

import pytest
import torch
from systolic.device import _C
from systolic.device import fused as fused_module


def launches(function):
    """(result, programs started) of a call in fused mode."""
    before = _C.launches()
    with torch.tpu.fused():
        result = function()
    return result, _C.launches() - before


def test_operators_run_as_one_program():
    x = torch.randn(8, 8, device="tpu")
    y, count = launches(lambda: (x @ x).relu().add(1).mul(2))
    assert count == 1
    host = x.cpu()
    torch.testing.assert_close(y.cpu(), ((host @ host).relu() + 1) * 2)


def test_a_value_is_there_when_it_is_asked_for():
    x = torch.arange(4.0, device="tpu")
    with torch.tpu.fused():
        y = x + 1
        assert y.sum().item() == 10
        assert y.tolist() == [1, 2, 3, 4]
        assert "4." in repr(y + 0)
        z = y * 2
        before = _C.launches()
        torch.tpu.synchronize()
        assert _C.launches() == before + 1
        assert z.cpu().tolist() == [2, 4, 6, 8]
        assert _C.launches() == before + 1


def test_writes_show_through_views_and_in_order():
    host = torch.zeros(3, 4)
    with torch.tpu.fused():
        x = torch.zeros(3, 4, device="tpu")
        for t in (x, host):
            row, column = t[1], t.t()[2]
            row.add_(1)
            column.mul_(3)
            t[0] = row
            column.copy_(torch.arange(3.0, device=t.device))
            row.view(2, 2)[1].fill_(7)
        before_more = x.clone()
        x.add_(1)
    assert x.cpu().tolist() == (host + 1).tolist()
    assert before_more.cpu().tolist() == host.tolist()


def test_what_nobody_holds_is_not_a_result():
    x = torch.ones(4, device="tpu")
    with torch.tpu.fused():
        y = x + 1
        del y
    before = _C.launches()
    with torch.tpu.fused():
        y = x + 1
        del y
    assert _C.launches() == before, "nothing was wanted, so nothing had to run"


def test_an_overwritten_input_keeps_its_value_for_earlier_readers():
    x = torch.ones(1024, device="tpu")
    with torch.tpu.fused():
        y = x + 1
        x.mul_(5)
        z = x + y
    assert (y[0].item(), x[0].item(), z[0].item()) == (2, 5, 7)


def test_a_sequence_seen_before_compiles_nothing_and_takes_new_numbers():
    x = torch.ones(5, device="tpu")

    def step(rate, row):
        with torch.tpu.fused():
            y = x * rate + 1
            return (y[row] - rate).item()

    step(2.0, 0)
    before = torch.tpu.compilations()
    assert step(3.0, 0) == 1 and step(4.0, 3) == 1
    assert torch.tpu.compilations() == before


def test_random_numbers_are_those_of_strict_mode():
    def draw():
        torch.tpu.manual_seed(3)
        a = torch.randn(7, device="tpu")
        b = torch.nn.functional.dropout(a, 0.5)
        return torch.cat([a, b, torch.rand(3, device="tpu")])

    strict = draw().cpu()
    assert torch.equal(launches(draw)[0].cpu(), strict)
    assert torch.equal(launches(draw)[0].cpu(), strict)


@pytest.mark.parametrize("foreach", [False, True])
def test_training_is_that_of_strict_mode(foreach):
    def train(mode):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3)).to("tpu")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, foreach=foreach)
        data = torch.randn(16, 6, device="tpu")
        label = torch.arange(16, device="tpu") % 3
        losses = []
        with mode():
            for _ in range(5):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(data), label)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        return losses, [p.detach().cpu() for p in model.parameters()]

    import contextlib

    losses, parameters = train(contextlib.nullcontext)
    fused_losses, fused_parameters = train(torch.tpu.fused)
    assert losses[-1] < losses[0]
    # One program rounds differently from many: XLA contracts and reorders within it.
    torch.testing.assert_close(fused_losses, losses, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(fused_parameters, parameters, rtol=1e-4, atol=1e-5)


def test_a_compiled_graph_and_the_host_may_use_recorded_values():
    doubled = torch.compile(lambda t: t * 2, backend="tpu")
    x = torch.ones(3, device="tpu")
    with torch.tpu.fused():
        y = doubled(x + 1)
        z = y + 1
        z[0] = torch.tensor(9.0)
        host = torch.empty(3).copy_(z)
    assert host.tolist() == [9, 5, 5]


def test_shape_errors_are_raised_at_their_line_and_leave_the_rest():
    x = torch.ones(3, device="tpu")
    with torch.tpu.fused():
        y = x + 1
        with pytest.raises(RuntimeError, match="must match the size"):
            y + torch.ones(4, device="tpu")
        with pytest.raises(IndexError):
            torch.softmax(y, dim=3)
        z = y + 1
    assert z.tolist() == [3, 3, 3]


def test_a_group_that_cannot_be_compiled_names_its_lines_and_loses_its_values(monkeypatch):
    from systolic.compile import executables

    def fail(*_):
        raise RuntimeError("the compiler gave up")

    x = torch.ones(3, device="tpu")
    with torch.tpu.fused():
        y = x.cos().sin()
        monkeypatch.setattr(executables, "build", fail)
        with pytest.raises(RuntimeError, match=r"test_fused\.py:\d+ to .*test_fused\.py:\d+ could not be compiled: the com"):
            torch.tpu.synchronize()
        monkeypatch.undo()
        with pytest.raises(RuntimeError, match="no value.*failed"):
            y.cpu()
        assert (x + 1).tolist() == [2, 2, 2]


def test_an_operator_that_fails_in_a_group_is_named_with_its_line():
    class Recipe:
        label, identity = "aten.example.default", None

        @staticmethod
        def function(*_):
            raise NotImplementedError("no such thing")

    class Entry:
        recipe = Recipe

    nodes = [(Entry, [], test_operators_run_as_one_program.__code__, 42)]
    with pytest.raises(NotImplementedError, match=r"test_fused\.py:42: aten\.example\.default failed: no such thing"):
        fused_module.build_group(nodes, [0], [], [], 0)


def test_threads_may_share_recorded_values():
    x = torch.ones(64, device="tpu")
    failures = []

    def work(k, shared):
        try:
            for _ in range(50):
                if (shared + k).sum().item() != 64 * (2 + k):
                    failures.append(k)
        except Exception as error:
            failures.append(error)

    with torch.tpu.fused():
        shared = x + 1
        threads = [threading.Thread(target=work, args=(k, shared)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_the_mode_ends_with_its_block():
    assert not _C.fused()
    with torch.tpu.fused():
        with torch.tpu.fused():
            pass
        assert _C.fused()
    assert not _C.fused()


_WHOLE = """
import sys, pytest
from systolic.device import _C
_C.ensure_initialized()
_C.set_fused(True)
sys.exit(pytest.main(sys.argv[1:]))
"""
# These count launches or compilations of operators one by one.
_ABOUT_STRICT = ["test_a_new_size_in_the_same_power_of_two_compiles_nothing"]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_other_device_tests_pass_in_fused_mode():
    folder = os.path.dirname(__file__)
    names = ("storage_and_views", "copies", "autograd", "modules_and_state", "random", "errors", "known_bugs",
             "dynamic_sizes", "serialization")  # fmt: skip
    files = [os.path.join(folder, f"test_{name}.py") for name in names]
    skipped = " and ".join(f"not {name}" for name in _ABOUT_STRICT)
    done = subprocess.run(
        [sys.executable, "-c", _WHOLE, "-q", "-p", "no:cacheprovider", "-k", skipped, *files],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
