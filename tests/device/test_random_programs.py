"""Random programs give the same tensors, aliasing and bytes on tpu as on the CPU.

A few hundred programs always run; their seed is printed, and another is chosen with
``pytest tests/device/test_random_programs.py --program-seed 7``.  Ten thousand run with

    pytest tests/device/test_random_programs.py -m long -s

in processes of a thousand, because every program that an operator was compiled to stays in memory.
A program that fails is made smaller by hypothesis and printed as Python.
"""

import os
import subprocess
import sys
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, note, seed, settings

from random_programs import Program, Run, programs

QUIET = dict(deadline=None, database=None, suppress_health_check=list(HealthCheck), print_blob=False,
             report_multiple_bugs=False)  # fmt: skip


def contents(t: torch.Tensor) -> bytes:
    """The bytes of a tensor's storage."""
    whole = torch.empty(0, dtype=torch.uint8, device=t.device).set_(t.untyped_storage())
    return whole.cpu().numpy().tobytes()


def values(t: torch.Tensor) -> bytes:
    """The bytes of a tensor's elements in order; any true byte counts as 1."""
    if t.numel() == 0:
        return b""
    host = t.detach().cpu().resolve_conj()
    # `contiguous` leaves the stride of a single element as it is, and a view of another size wants 1.
    host = torch.empty(host.numel(), dtype=host.dtype).copy_(host.reshape(-1)).view(torch.uint8)
    return (host.ne(0) if t.dtype == torch.bool else host).numpy().tobytes()


def form(t: torch.Tensor) -> tuple:
    return (t.dtype, tuple(t.shape), t.stride(), t.storage_offset(), t.untyped_storage().nbytes(), t.is_conj())


def sharing(tensors: dict) -> list[list[str]]:
    """Names of the tensors by storage."""
    groups: dict = {}
    for name, t in sorted(tensors.items()):
        groups.setdefault(t.untyped_storage().data_ptr() if t.untyped_storage().nbytes() else name, []).append(name)
    return list(groups.values())


def run_and_compare(program: Program) -> None:
    """Run the program on both devices; compare everything after each step and the values at the end."""
    note(program.source())
    host, device = Run(program, "cpu"), Run(program, "tpu")
    for i, step in enumerate(program.steps):
        for run in (host, device):
            if i in program.raising:
                with pytest.raises(program.raising[i]):
                    run.do(step)
            else:
                run.do(step)
        assert sharing(device.tensors) == sharing(host.tensors), f"aliasing after {step}"
        for name, want in host.tensors.items():
            got = device.tensors[name]
            assert form(got) == form(want), f"{name} after {step}"
            assert contents(got) == contents(want), f"storage of {name} after {step}: {got.cpu()} is not {want}"
    for name, want in host.tensors.items():
        assert values(device.tensors[name]) == values(want), name


def compile_and_compare(program: Program) -> None:
    """The program as one compiled function: its results, its written inputs and who shares a storage."""
    note(program.source())
    runs = Run(program, "cpu"), Run(program, "tpu")
    for run in runs:
        run.do(program.function())
        inputs = list(run.tensors.values())
        function = run.variables["program"]
        if run is runs[1]:
            function = torch.compile(function, backend="tpu", fullgraph=True, dynamic=False)
        for i, result in enumerate(function(*inputs)):
            run.variables[f"result{i}"] = result
    host, device = runs
    assert sharing(device.tensors) == sharing(host.tensors)
    for name, want in host.tensors.items():
        got = device.tensors[name]
        assert (got.dtype, got.shape) == (want.dtype, want.shape), name
        assert values(got) == values(want), f"{name}: {got.cpu()} is not {want}"


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Casting complex values to real")
        warnings.filterwarnings("ignore", message="The .grad attribute")
        yield


@pytest.fixture
def start(pytestconfig) -> int:
    """The seed, printed."""
    number = pytestconfig.getoption("--program-seed")
    print(f"seed {number}")
    return number


def test_eager(start):
    check(run_and_compare, 300, start)


def test_compiled(start):
    def run(program):
        torch._dynamo.reset()
        compile_and_compare(program)

    check(run, 20, start, may_raise=False, rebind=False, max_size=6)


def check(run, count: int, start: int, **options) -> None:
    settings(max_examples=count, **QUIET)(seed(start)(given(programs(**options))(run)))()


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_ten_thousand(start):
    for part in range(10):
        number = start * 1000 + part
        print(f"seed {number}", flush=True)
        code = f"import test_random_programs as t; t.check(t.run_and_compare, 1000, {number})"
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=os.path.dirname(__file__),
                              capture_output=True, text=True)  # fmt: skip
        assert done.returncode == 0, f"seed {number}: {done.stdout[-3000:]}{done.stderr[-6000:]}"
