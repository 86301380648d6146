"""`systolic.compile.explain` says what compiling a function leads to."""

import os
import subprocess
import sys

import pytest
import torch
from systolic import compile as systolic_compile
from systolic import settings


@pytest.fixture(autouse=True)
def empty_folder(tmp_path):
    """Costs are estimated when a program is compiled, not when it comes from disk."""
    settings.apply({"cache_dir": str(tmp_path)}, "test")
    yield
    settings.reset()


def test_a_whole_graph():
    x = torch.ones(33, 31, device="tpu")
    explanation = systolic_compile.explain(lambda t: (t * t).sum(), x)
    assert explanation.graphs == 1 and not explanation.breaks and not explanation.fallbacks and not explanation.again
    (program,) = explanation.programs
    assert 2 * x.numel() - 10 <= program.flops <= 2 * x.numel()
    assert program.bytes >= x.nbytes and program.size > 100
    assert program.name in str(explanation) and "0 graph breaks" in str(explanation)


def test_a_graph_break_is_placed():
    def broken(t):
        t = t * 3
        torch._dynamo.graph_break()
        return t - 1

    explanation = systolic_compile.explain(broken, torch.ones(35, device="tpu"))
    assert explanation.graphs == 2 and len(explanation.breaks) == 1
    assert "test_explain.py" in explanation.breaks[0]
    assert len(explanation.programs) >= 2


def test_logging_is_switched_on_as_for_pytorch():
    """TORCH_LOGS takes the name of the package's logger."""
    code = "import torch; torch.compile(lambda t: t + 1)(torch.ones(3, device='tpu'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env=dict(os.environ, TORCH_LOGS="+systolic.compile"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "compiled graph0" in done.stderr or "loaded graph0" in done.stderr, done.stderr
