"""Memory statistics follow the live storages; in-place updates reuse their buffer."""

import gc

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
