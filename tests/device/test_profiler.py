"""torch.profiler shows the device's launches by name and time; torch.tpu.profiler writes XPlanes."""

from __future__ import annotations

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

BOTH = [ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]


def work(x):
    return torch.relu(x @ x).sum()


def matrix(size=256):
    return torch.ones(size, size, device="tpu") / size


def events(session, path) -> list[dict]:
    session.export_chrome_trace(str(path))
    return json.loads(path.read_text())["traceEvents"]


def test_the_activity_is_offered():
    assert ProfilerActivity.PrivateUse1 in torch.profiler.supported_activities()


def test_chrome_trace_holds_operators_and_launches(tmp_path):
    x = matrix()
    work(x)
    with profile(activities=BOTH) as session:
        with record_function("my step"):
            total = work(x)
        total.item()
    found = events(session, tmp_path / "trace.json")
    kernels = [e for e in found if e.get("cat") == "kernel"]
    assert [k["name"] for k in kernels] == ["aten.mm", "aten.relu", "aten.sum"]
    assert all(k["dur"] > 0 for k in kernels) and kernels[0]["ts"] < kernels[1]["ts"] < kernels[2]["ts"]
    assert [e["name"] for e in found if e.get("cat") == "gpu_memcpy"] == ["Memcpy DtoH"]
    # Every launch lies inside the operator that caused it and has an arrow to its work on the device.
    launches = [e for e in found if e.get("cat") == "privateuse1_runtime"]
    assert len(launches) == 3
    mm = next(e for e in found if e.get("cat") == "cpu_op" and e["name"] == "aten::mm")
    assert mm["ts"] <= launches[0]["ts"] <= mm["ts"] + mm["dur"]
    assert kernels[0]["args"]["External id"] == mm["args"]["External id"]
    starts = {e["id"] for e in found if e.get("cat") == "ac2g" and e["ph"] == "s"}
    ends = {e["id"] for e in found if e.get("cat") == "ac2g" and e["ph"] == "f"}
    assert len(starts) == 3 and starts <= ends
    assert any(e.get("name") == "my step" for e in found)


def test_table_gives_device_time_to_operators():
    x = matrix(512)
    work(x)
    with profile(activities=BOTH) as session:
        work(x)
    rows = {row.key: row for row in session.key_averages()}
    assert rows["aten::mm"].device_time_total > 0
    assert rows["aten::mm"].device_time_total > rows["aten::relu"].device_time_total
    assert "TPU total" in session.key_averages().table(sort_by="device_time_total")


def test_compiled_graphs_and_backward(tmp_path):
    x = matrix(64).requires_grad_()
    step = torch.compile(work)
    step(x).backward()
    with profile(activities=BOTH) as session:
        step(x).backward()
    names = [e["name"] for e in events(session, tmp_path / "trace.json") if e.get("cat") == "kernel"]
    assert sum(n.startswith("graph") for n in names) == 2, names


def test_device_activity_alone_and_cpu_activity_alone(tmp_path):
    x = matrix(32)
    work(x)
    with profile(activities=[ProfilerActivity.PrivateUse1]) as session:
        work(x)
    found = events(session, tmp_path / "device.json")
    assert sum(e.get("cat") == "kernel" for e in found) == 3
    assert not any(e.get("cat") == "cpu_op" for e in found)
    with profile(activities=[ProfilerActivity.CPU]) as session:
        work(x)
    found = events(session, tmp_path / "cpu.json")
    assert not any(e.get("cat") == "kernel" for e in found)
    assert any(e.get("name") == "aten::mm" for e in found)


def test_schedule_records_only_its_active_steps(tmp_path):
    x = matrix(32)
    work(x)
    seen = []
    plan = schedule(wait=1, warmup=1, active=2, repeat=1)
    with profile(activities=BOTH, schedule=plan, on_trace_ready=lambda s: seen.append(s)) as session:
        for _ in range(6):
            work(x)
            session.step()
    assert len(seen) == 1
    found = events(seen[0], tmp_path / "trace.json")
    assert sum(e.get("cat") == "kernel" and e["name"] == "aten.mm" for e in found) == 2


def test_profiling_twice_starts_empty(tmp_path):
    x = matrix(32)
    for turn in range(2):
        with profile(activities=BOTH) as session:
            x.relu()
        found = events(session, tmp_path / f"{turn}.json")
        assert [e["name"] for e in found if e.get("cat") == "kernel"] == ["aten.relu"]


def test_xplane_trace(tmp_path):
    x = matrix()
    work(x)
    with torch.tpu.profiler.trace(tmp_path):
        with torch.tpu.profiler.annotate("my block"):
            work(x)
    (plane,) = tmp_path.glob("plugins/profile/*/*.xplane.pb")
    content = plane.read_bytes()
    assert b"my block" in content and b"dot" in content
    with pytest.raises(RuntimeError, match="start"):
        torch.tpu.profiler.stop()


def test_one_xplane_trace_at_a_time(tmp_path):
    torch.tpu.profiler.start(tmp_path)
    try:
        with pytest.raises(RuntimeError, match="already running"):
            torch.tpu.profiler.start(tmp_path)
    finally:
        assert torch.tpu.profiler.stop()
