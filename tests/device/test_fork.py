"""A process that was forked after the device was used says so at once; a spawned or earlier one works."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest


def script(body: str, timeout: int = 250) -> str:
    """Standard output of a Python script; a hang or a crash is a failure."""
    process = subprocess.Popen([sys.executable, "-W", "ignore", "-c", textwrap.dedent(body)], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)  # fmt: skip
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # its forked children too: they hold the pipes
        out, err = process.communicate()
        pytest.fail(f"no end after {timeout} s: {out}{err[-3000:]}")
    assert process.returncode == 0, out + err[-3000:]
    return out


USES = {
    "operator on an old tensor": "t.add_(1)",
    "operator on a view": "t[1:] * 2",
    "read": "t.cpu()",
    "item": "t[0].item()",
    "new tensor": "torch.ones(2, device='tpu')",
    "empty": "torch.empty(2, device='tpu')",
    "copy to the device": "torch.ones(3).to('tpu')",
    "print": "repr(t)",
    "synchronize": "torch.tpu.synchronize()",
    "compiled function": "f(t)",
}


@pytest.mark.parametrize("used", ["eager", "compiled"])
def test_use_after_a_fork_names_the_remedy(used):
    out = script(f"""
        import os, torch
        t = torch.arange(3.0, device="tpu")
        f = torch.compile(lambda x: x + 1, backend="tpu")
        if {used == "compiled"}:
            f(t)
        uses = {USES!r}
        if {used != "compiled"}:
            del uses["compiled function"]
        child = os.fork()
        if child == 0:
            code = 0
            for name, use in uses.items():
                try:
                    eval(use)
                    print("no error:", name, flush=True)
                except RuntimeError as error:
                    words = str(error)
                    print("ok" if "spawn" in words and "fork" in words else words, flush=True)
            del t
            os._exit(0)
        print("status", os.waitpid(child, 0)[1])
        print((t + 1).tolist())
    """)
    lines = out.splitlines()
    assert lines[-2:] == ["status 0", "[1.0, 2.0, 3.0]"]
    assert lines[:-2] == ["ok"] * (len(USES) - (used == "eager")), out


def test_fork_before_use_works():
    out = script("""
        import os, torch
        child = os.fork()
        if child == 0:
            print((torch.ones(2, device="tpu") + 1).tolist(), flush=True)
            os._exit(0)
        print("status", os.waitpid(child, 0)[1])
        print((torch.ones(2, device="tpu") * 3).tolist())
    """)
    assert out.splitlines() == ["[2.0, 2.0]", "status 0", "[3.0, 3.0]"]


def test_cpu_work_goes_on_after_a_fork():
    out = script("""
        import os, torch
        t = torch.ones(3, device="tpu")
        child = os.fork()
        if child == 0:
            torch.manual_seed(3)
            x = torch.randn(3, requires_grad=True)
            x.sum().backward()
            print(x.grad.tolist(), torch.tpu._is_in_bad_fork(), flush=True)
            os._exit(0)
        print("status", os.waitpid(child, 0)[1], torch.tpu._is_in_bad_fork())
    """)
    assert out.splitlines() == ["[1.0, 1.0, 1.0] True", "status 0 False"]


def test_spawned_process_has_the_device(tmp_path):
    (tmp_path / "spawned.py").write_text(
        "import torch, torch.multiprocessing as mp\n"
        "def work(i, host):\n"
        "    assert (host.tpu() + i).tolist() == [1.0 + i] * 3\n"
        "if __name__ == '__main__':\n"
        "    assert (torch.ones(3, device='tpu') + 1).tolist() == [2.0] * 3\n"
        "    mp.spawn(work, (torch.ones(3),), nprocs=2)\n"
        "    print('done')\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", str(tmp_path / "spawned.py")], capture_output=True,
                          text=True, timeout=250)  # fmt: skip
    assert done.returncode == 0 and done.stdout.strip() == "done", done.stderr[-3000:]
