"""Shared by all tests."""

from __future__ import annotations


def pytest_addoption(parser):
    parser.addoption("--program-seed", type=int, default=1, help="seed of the random programs of tests/device")


def pytest_xdist_make_scheduler(config, log):
    """One worker runs all engine tests, one after the other, while the others share the rest by file.

    Two servers at once on two cores would time out.  (Marks with `--dist loadgroup` do not do it: xdist 3.8 sets a
    node id that pytest 9 no longer reads.)
    """
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.split("::", 1)[0]
            if path.startswith(("tests/conformance/", "tests/zoo/")):  # long enough for two workers
                return f"{path} {nodeid.endswith('/compiled]')}"
            return "tests/engine" if path.startswith("tests/engine/") else path

    return Scheduler(config, log)
