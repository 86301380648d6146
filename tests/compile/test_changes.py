"""A recompilation says what differs from the closest earlier call."""

import os
import subprocess
import sys

import pytest
import torch
from graph_checks import graphs

from systolic import compile as systolic_compile
from systolic.compile.changes import Seen, differences


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


def latest(call) -> list[str]:
    """The lines of the recompilations that ``call`` causes."""
    known = systolic_compile.recompilations()
    call()
    return [str(r) for r in systolic_compile.recompilations() if not any(r is k for k in known)]


def test_shapes_of_a_graph_with_dynamic_sizes():
    compiled = torch.compile(lambda weight, x: x @ weight, backend="tpu", dynamic=True)
    w = torch.ones(8, 3, device="tpu")
    assert latest(lambda: compiled(w, torch.ones(4, 8, device="tpu"))) == []
    before = graphs()
    (line,) = latest(lambda: compiled(w, torch.ones(5, 8, device="tpu")))
    assert "compiled again" in line and "(x): shape [4, 8] -> [5, 8]" in line and "weight" not in line
    assert graphs() == before
    (line,) = latest(lambda: compiled(w, torch.ones(7, 8, device="tpu")))
    assert "[5, 8] -> [7, 8]" in line  # equally far from both: the later one


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda t: torch.ones(4, 8, device="tpu").t()[:8, :4].contiguous().t(), "stride"),
        (lambda t: t[::2, :], "shape|stride|offset|memory"),
        (lambda t: torch.ones(9, 8, device="tpu")[5:], "offset|memory"),
    ],
)
def test_views_of_other_memory(change, words):
    import re

    compiled = torch.compile(lambda x: x + 1, backend="tpu", dynamic=True)
    x = torch.ones(4, 8, device="tpu")
    compiled(x)
    lines = latest(lambda: compiled(change(x)))
    assert lines and all(re.search(words, line) for line in lines)


def test_dynamo_says_which_guard_failed():
    compiled = torch.compile(lambda x: x * 2, backend="tpu")
    compiled(torch.ones(3, device="tpu"))
    (line,) = latest(lambda: compiled(torch.ones(3, dtype=torch.bfloat16, device="tpu")))
    assert "traced again" in line and "dtype mismatch" in line and "x" in line


def test_explain_lists_what_changed_in_further_calls():
    x = torch.ones(6, 5, device="tpu")
    explanation = systolic_compile.explain(lambda x: x.exp(), x, then=[(x.double(),), (x,)])
    (recompilation,) = explanation.recompilations
    assert recompilation.traced and "dtype" in recompilation.changed[0]
    assert "traced again" in str(explanation)


def test_eager_operators_say_it_too():
    from systolic.compile.executables import recording

    torch.ones(3, 17, device="tpu").lgamma()
    with recording() as programs:
        torch.ones(4, 17, device="tpu").lgamma()
    changed = [line for program in programs if "lgamma" in program.name for line in program.changed]
    assert changed == ["input 0 (self): shape [3, 17] -> [4, 17]"]


def test_the_closest_earlier_call_is_compared():
    seen = Seen(["a", "b"])
    assert seen.add([1, 2]) == ()
    assert seen.add([5, 6]) == ("input 0 (a): 1 -> 5", "input 1 (b): 2 -> 6")
    assert seen.add([5, 2]) in ((("input 0 (a): 1 -> 5"),), ("input 1 (b): 6 -> 2",))
    assert differences([1], [1, 2]) == ["number of inputs 1 -> 2"]
    assert differences([None], [3]) == ["input 0: None -> int"]


def test_torch_logs_shows_it():
    code = (
        "import torch; f = torch.compile(lambda x: x + 1, dynamic=True)\n"
        "for n in (3, 4): f(torch.ones(n, device='tpu'))\nf(torch.ones(3, device='tpu').int())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env=dict(os.environ, TORCH_LOGS="+systolic.compile"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "compiled again: " in done.stderr and "shape [3] -> [4]" in done.stderr, done.stderr
    assert "traced again: " in done.stderr and "dtype mismatch" in done.stderr, done.stderr
