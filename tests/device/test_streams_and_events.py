"""Streams are names and events are honest: what an event saw launched is finished after waiting for it."""

import threading
import time

import pytest
import torch


def slow(t):
    """Work of tens of milliseconds, launched without waiting."""
    for _ in range(6):
        t = torch.tanh(t @ t)
    return t


def test_streams():
    default = torch.tpu.current_stream()
    assert default == torch.tpu.default_stream() == torch.accelerator.current_stream()
    side = torch.tpu.Stream(device="tpu")
    assert side != default and side.device.type == "tpu"
    with side:
        assert torch.tpu.current_stream() == side
        t = torch.ones(4, device="tpu") * 2
    assert torch.tpu.current_stream() == default
    default.wait_stream(side)
    assert t.tolist() == [2.0] * 4
    side.synchronize()
    assert side.query()
    torch.tpu.set_stream(side)
    assert torch.tpu.current_stream() == side
    torch.tpu.set_stream(default)


def test_event_waits_for_what_was_launched_before_it():
    x = torch.randn(768, 768, device="tpu")
    slow(x).cpu()
    result = slow(x)
    event = torch.Event("tpu")
    event.record()
    event.synchronize()
    assert event.query()
    assert torch.tpu._C.array_of(result).is_ready()


def test_synchronize_waits_for_everything():
    x = torch.randn(768, 768, device="tpu")
    results = [slow(x * i) for i in range(2)]
    torch.tpu.synchronize()
    assert all(torch.tpu._C.array_of(r).is_ready() for r in results)
    results = [slow(x)]
    torch.accelerator.synchronize()
    assert torch.tpu._C.array_of(results[0]).is_ready()


def test_waiting_twice_and_unrecorded_events():
    event = torch.Event("tpu")
    assert event.query()
    event.synchronize()
    event.record()
    event.synchronize()
    event.synchronize()
    torch.tpu.current_stream().wait_event(event)


def test_elapsed_time_covers_the_work():
    x = torch.randn(768, 768, device="tpu")
    slow(x).cpu()
    first, second = (torch.Event("tpu", enable_timing=True) for _ in range(2))
    torch.tpu.synchronize()
    started = time.perf_counter()
    first.record()
    slow(x)
    second.record()
    second.synchronize()
    wall = (time.perf_counter() - started) * 1e3
    assert 0 < first.elapsed_time(second) <= wall


def test_elapsed_time_of_unrecorded_events_raises():
    with pytest.raises((RuntimeError, ValueError), match="record"):
        torch.Event("tpu", enable_timing=True).elapsed_time(torch.Event("tpu", enable_timing=True))


def test_threads_share_the_device():
    expected = slow(torch.eye(64, device="tpu")).cpu()
    results = [None] * 4

    def work(i):
        for _ in range(5):
            results[i] = slow(torch.eye(64, device="tpu")).cpu()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert all(torch.equal(r, expected) for r in results)


def test_host_copy_while_another_thread_writes():
    t = torch.zeros(1 << 18, device="tpu")
    stop = threading.Event()

    def write():
        while not stop.is_set():
            t.add_(1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(20):
            seen = t.cpu()
            # one whole step or another, never a mixture
            assert seen.min() == seen.max()
    finally:
        stop.set()
        writer.join(60)


def test_synchronize_waits_for_work_whose_result_nobody_kept():
    x = torch.randn(700, 700).tpu()
    chain = torch.compile(lambda a: a @ a @ a @ a @ a @ a @ a @ a, backend="tpu")
    chain(x).cpu()
    event = torch.Event("tpu")
    chain(x)
    event.record()
    seen = event.query()  # the product takes milliseconds, a launch microseconds
    torch.tpu.synchronize()
    assert event.query() and not seen
