"""Moving memory into huge pages leaves values alone, and what the system refuses is no error."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import torch

from systolic.device import huge_pages


def test_values_stay_and_whole_pages_move():
    values = torch.arange(3 * huge_pages.HUGE // 4, dtype=torch.int32)
    tensor = values.tpu()
    moved = huge_pages.collapse([tensor, tensor.view(2, -1)])
    assert moved % huge_pages.HUGE == 0 and moved <= values.nbytes, "counted once, whole pages only"
    assert torch.equal(tensor.cpu(), values)


def test_what_is_smaller_than_a_page_stays():
    assert huge_pages.collapse([torch.ones(1000).tpu()]) == 0


def test_a_system_without_huge_pages_is_no_error(monkeypatch):
    asked = []

    def refuse(*arguments):
        asked.append(arguments)
        return -1

    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(madvise=refuse))
    assert huge_pages.collapse([torch.ones(3 * huge_pages.HUGE // 4).tpu()]) == 0
    assert asked, "3 pages hold at least 2 whole ones"
