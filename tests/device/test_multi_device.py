"""Several devices in one process.  XLA reads their number at its start, so each test is a process."""

import os
import subprocess
import sys


def run(code):
    env = dict(os.environ, XLA_FLAGS="--xla_force_host_platform_device_count=4")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_devices_are_separate():
    run("""
import copy, io, torch
assert torch.tpu.device_count() == torch.accelerator.device_count() == 4
a = torch.arange(4, device="tpu:2")
assert a.device == torch.device("tpu", 2) and (a + 1).device == a.device
assert torch.tpu._C.array_of(a).devices() == {torch.tpu._C.array_of(a).device} != {
    torch.tpu._C.array_of(torch.ones(1, device="tpu")).device}

# the current device, by every name it has
torch.tpu.set_device(1)
assert torch.tpu.current_device() == torch.accelerator.current_device_index() == 1
assert torch.ones(1, device="tpu").device.index == 1 and torch.ones(1).tpu().device.index == 1
with torch.tpu.device("tpu:3"):
    assert torch.zeros(1, device="tpu").device.index == 3
    with torch.accelerator.device_index(2):
        assert torch.empty(1, device="tpu").device.index == 2
    assert torch.tpu.current_device() == 3
assert torch.tpu.current_device() == 1
torch.tpu.set_device(0)

# copies
b = a.to("tpu:1")
assert b.device.index == 1 and b.tolist() == a.tolist() == [0, 1, 2, 3]
b.add_(1)
assert a.tolist() == [0, 1, 2, 3]
c = torch.zeros(2, 4, dtype=torch.float32, device="tpu:3")
c[1].copy_(a)
c[:, ::2].copy_(torch.ones(2, 2, device="tpu:1"))
assert c.tolist() == [[1, 0, 1, 0], [1, 1, 1, 3]]
assert a.view(2, 2).t().to("tpu:0").tolist() == [[0, 2], [1, 3]]

# one program a device, whatever the current one
for i in range(4):
    x = torch.full((3,), float(i), device=f"tpu:{i}")
    assert (x * 2).device.index == i and (x * 2).tolist() == [2.0 * i] * 3
    assert x[x > -1].device.index == i

try:
    a + b
    raise SystemExit("mixed devices were accepted")
except RuntimeError as error:
    assert "tpu:2" in str(error) and "tpu:1" in str(error), error
try:
    torch.ones(1, device="tpu:4")
    raise SystemExit("tpu:4 was accepted")
except RuntimeError as error:
    assert "tpu:4 does not exist" in str(error) and "4 tpu device" in str(error), error

# autograd, modules and files
w = torch.ones(2, 2, device="tpu:1", requires_grad=True)
(w.to("tpu:2") * 3).sum().backward()
assert w.grad.device.index == 1 and w.grad.tolist() == [[3.0, 3.0]] * 2
m = torch.nn.Linear(2, 2).to("tpu:3")
assert m(torch.ones(1, 2, device="tpu:3")).device.index == 3
assert copy.deepcopy(m).weight.device.index == 3
buffer = io.BytesIO()
torch.save(a, buffer)
for where, index in ((None, 2), ("tpu:1", 1), ({"tpu:2": "tpu:3"}, 3)):
    buffer.seek(0)
    assert torch.load(buffer, map_location=where).device.index == index

# statistics and random numbers belong to a device
before = torch.tpu.memory_allocated(3)
big = torch.zeros(1 << 20, device="tpu:3")
assert torch.tpu.memory_allocated(3) - before == 4 << 20
torch.manual_seed(0)
state = torch.tpu.get_rng_state(2)
torch.rand(3, device="tpu:1")
assert torch.equal(torch.tpu.get_rng_state(2), state)
r = torch.rand(3, device="tpu:2")
torch.manual_seed(0)
assert torch.equal(torch.rand(3, device="tpu:2"), r)
assert torch.Generator(device="tpu:2").device.index == 2
torch.tpu.synchronize(2)
s = torch.tpu.current_stream("tpu:2")
assert s.device_index == 2
""")


def test_compiled_function_runs_on_each_device():
    run("""
import torch
f = torch.compile(lambda x, y: (x @ y).relu().sum(0), backend="tpu", fullgraph=True)
for i in (0, 2):
    x = torch.arange(4.0, device=f"tpu:{i}").view(2, 2)
    out = f(x, x)
    assert out.device.index == i and out.tolist() == [8.0, 14.0], out
made = torch.compile(lambda: torch.arange(3, device="tpu:2") + 1, fullgraph=True)()
assert made.device.index == 2 and made.tolist() == [1, 2, 3]
across = torch.compile(lambda x: (x * 2).to("tpu:1") + 1, fullgraph=True)(torch.ones(2, device="tpu:3"))
assert across.device.index == 1 and across.tolist() == [3.0, 3.0]
""")
