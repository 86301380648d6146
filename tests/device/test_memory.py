"""Memory statistics follow the live storages; in-place updates reuse their buffer."""

import gc
import weakref

import pytest
import torch

MB = 2**20


def pointer(t):
    return torch.tpu._C.array_of(t).unsafe_buffer_pointer()


def test_allocated_bytes_follow_live_storages():
    gc.collect()
    before = torch.tpu.memory_allocated()
    t = torch.zeros(MB, dtype=torch.float32, device="tpu")
    view = t[: MB // 2]
    assert torch.tpu.memory_allocated() - before == 4 * MB
    del t
    gc.collect()
    assert torch.tpu.memory_allocated() - before == 4 * MB  # the view keeps the storage
    del view
    gc.collect()
    assert torch.tpu.memory_allocated() == before


def test_peak():
    gc.collect()
    torch.tpu.reset_peak_memory_stats()
    base = torch.tpu.max_memory_allocated()
    t = torch.zeros(2 * MB, dtype=torch.uint8, device="tpu")
    del t
    gc.collect()
    assert torch.tpu.max_memory_allocated() - base >= 2 * MB
    assert torch.accelerator.max_memory_allocated() == torch.tpu.max_memory_allocated()
    torch.tpu.reset_peak_memory_stats()
    assert torch.tpu.max_memory_allocated() == torch.tpu.memory_allocated()


def test_statistics_and_device_total():
    stats = torch.tpu.memory_stats()
    assert stats["allocated_bytes.all.current"] == torch.tpu.memory_allocated()
    free, total = torch.tpu.mem_get_info()
    assert 0 < free <= total
    torch.tpu.empty_cache()
    torch.accelerator.empty_cache()


def test_resize_is_accounted():
    gc.collect()
    before = torch.tpu.memory_allocated()
    t = torch.zeros(MB, dtype=torch.uint8, device="tpu")
    t.untyped_storage().resize_(0)
    assert torch.tpu.memory_allocated() == before
    t.untyped_storage().resize_(2 * MB)
    assert torch.tpu.memory_allocated() - before == 2 * MB
    del t
    gc.collect()
    assert torch.tpu.memory_allocated() == before


def test_in_place_operators_keep_the_buffer():
    t = torch.zeros(1024, 256, device="tpu")
    t.add_(1)  # the first write gives the storage its array
    place = pointer(t)
    rows = torch.tensor([3, 900], device="tpu")
    t.mul_(2)
    t[5].fill_(7)
    t[10:20, 3:9] = 1
    t.index_copy_(0, rows, torch.ones(2, 256, device="tpu"))
    t[rows] = 5
    t.index_put_((rows, rows.new_tensor([0, 1])), torch.tensor(3.0, device="tpu"))
    t.scatter_(0, rows.view(1, 2), 2.0)
    t.masked_fill_(t > 6, 0)
    assert pointer(t) == place
    assert t[900].tolist()[:3] == [5.0, 2.0, 5.0]


def test_host_view_does_not_make_updates_copy():
    t = torch.ones(1 << 16, device="tpu")
    t.add_(1)
    place = pointer(t)
    kept = t.cpu()
    t.add_(1)
    assert pointer(t) == place and kept[0] == 2 and t[0].item() == 3


@pytest.fixture
def limited():
    """A limit of 64 MiB above what is in use, taken back afterwards."""
    gc.collect()
    index = torch.tpu.current_device()
    before = torch.tpu._C.memory_limit(index)
    torch.tpu._C.set_memory_limit(index, torch.tpu.memory_allocated() + 64 * MB)
    yield
    torch.tpu._C.set_memory_limit(index, before)


def test_out_of_memory_names_request_use_and_limit(limited):
    kept = torch.zeros(8 * MB, dtype=torch.uint8, device="tpu")
    in_use = torch.tpu.memory_allocated()
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.zeros(100 * MB, dtype=torch.uint8, device="tpu")
    words = str(caught.value)
    limit = torch.tpu._C.memory_limit(0)
    assert "tried to allocate 100.00 MiB" in words
    assert f"{in_use / MB:.2f} MiB are in use" in words or in_use < MB
    assert f"the limit is {limit / MB:.2f} MiB" in words
    assert "set_per_process_memory_fraction" in words
    # The failed call took nothing, and the device goes on.
    assert torch.tpu.memory_allocated() == in_use
    assert torch.zeros(MB, dtype=torch.uint8, device="tpu").sum().item() == 0
    del kept
    assert torch.tpu.memory_stats()["num_ooms"] >= 1


def test_out_of_memory_in_every_way_to_allocate(limited):
    x = torch.ones(4 * MB, device="tpu")  # 16 of 64 MiB
    host = torch.ones(20 * MB)
    calls = [
        lambda: x.expand(5, -1).contiguous(),
        lambda: torch.empty(20 * MB, device="tpu"),
        lambda: host.to("tpu"),
        lambda: torch.cat([x] * 5),
        lambda: x.clone().resize_(20 * MB),
        lambda: x.untyped_storage().resize_(80 * MB),
        lambda: torch.compile(lambda v: v.repeat(5))(x),
    ]
    for call in calls:
        before = torch.tpu.memory_allocated()
        with pytest.raises(torch.OutOfMemoryError, match="tpu:0 is out of memory"):
            call()
        gc.collect()
        assert torch.tpu.memory_allocated() == before
    assert x.sum().item() == 4 * MB


def test_memory_is_free_again_after_an_error(limited):
    """A failed backward pass leaves nothing behind once its tensors are gone."""
    before = torch.tpu.memory_allocated()

    def attempt():
        x = torch.ones(MB, device="tpu", requires_grad=True)
        y = x
        for _ in range(40):
            y = y.sin()
        return y

    with pytest.raises(torch.OutOfMemoryError):
        attempt()
    gc.collect()
    assert torch.tpu.memory_allocated() == before
    assert torch.ones(12 * MB, device="tpu").sum().item() == 12 * MB


def test_fraction_sets_the_limit():
    total = torch.tpu.mem_get_info()[1]
    assert torch.tpu.get_per_process_memory_fraction() == 1.0
    try:
        torch.tpu.set_per_process_memory_fraction(0.25)
        assert torch.tpu.get_per_process_memory_fraction() == pytest.approx(0.25)
        assert torch.tpu._C.memory_limit(0) == total // 4
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            torch.empty(total // 2, dtype=torch.uint8, device="tpu")
        torch.tpu.set_per_process_memory_fraction(1.0, "tpu:0")
        # Reserved, never written: no memory is touched.
        assert torch.empty(total // 2, dtype=torch.uint8, device="tpu").nbytes == total // 2
    finally:
        torch.tpu.set_per_process_memory_fraction(1.0)
    for wrong in (0, -0.5, 1.5, float("nan")):
        with pytest.raises(ValueError, match="fraction"):
            torch.tpu.set_per_process_memory_fraction(wrong)
    for wrong in ("half", None, True):
        with pytest.raises(TypeError, match="fraction"):
            torch.tpu.set_per_process_memory_fraction(wrong)


def test_without_a_limit_more_than_the_machine_is_refused():
    with pytest.raises(torch.OutOfMemoryError, match="tried to allocate"):
        torch.empty(2**50, dtype=torch.uint8, device="tpu")
    with pytest.raises(torch.OutOfMemoryError):
        torch.zeros(2**48, device="tpu")


def test_summary_and_resets():
    gc.collect()
    torch.tpu.reset_peak_memory_stats()
    torch.tpu.reset_accumulated_memory_stats()
    t = torch.zeros(3 * MB, dtype=torch.uint8, device="tpu")
    del t
    gc.collect()
    stats = torch.tpu.memory_stats()
    assert stats["allocated_bytes.all.allocated"] >= 3 * MB
    assert stats["allocated_bytes.all.peak"] - stats["allocated_bytes.all.current"] >= 3 * MB
    assert stats["allocation.all.peak"] > stats["allocation.all.current"]
    text = torch.tpu.memory_summary()
    assert "Allocated memory" in text and "peak" in text and "3.00 MiB" in text
    assert torch.tpu.memory_summary(abbreviated=True) == text.splitlines()[0]
    torch.tpu.reset_accumulated_memory_stats()
    assert torch.tpu.memory_stats()["allocated_bytes.all.allocated"] == 0
    assert torch.tpu.OutOfMemoryError is torch.OutOfMemoryError


def test_xla_frees_what_dies():
    """The array behind a tensor goes with its last view, not later."""
    t = torch.ones(MB, device="tpu")
    array = weakref.ref(torch.tpu._C.array_of(t))
    view = t[3:]
    del t
    assert array() is not None
    del view
    assert array() is None
