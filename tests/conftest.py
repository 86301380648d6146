"""Shared by all tests."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items) -> None:
    """With `--dist loadgroup`, keep a file's tests in one worker unless they name a group of their own."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(str(item.path)))
