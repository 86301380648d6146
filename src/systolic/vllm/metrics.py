"""Counters of the engine process in the API server's ``/metrics``.

vLLM's Prometheus registry lives in the API server; compilations happen in the engine process.  The
engine writes its few counters to a small file, whose name both processes know through the environment,
and the API server reads it when it is scraped.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from ..settings import METRICS_FILE

NAMES = {
    "compilations": "programs compiled by the engine process",
    "compile_seconds": "seconds spent in compiling programs",
    "program_cache_hits": "programs loaded from the program cache",
    "late_compilations": "programs compiled after warm-up (0 is right)",
    "cpu_fallbacks": "operator calls that ran on the CPU because they are not lowered (0 is right)",
}


def share_with_children() -> None:
    """Choose the file before the engine process starts, and serve what it will hold."""
    if METRICS_FILE not in os.environ:
        handle, name = tempfile.mkstemp(prefix="systolic-metrics-", suffix=".json")
        os.close(handle)
        os.environ[METRICS_FILE] = name
        import atexit

        owner = os.getpid()
        atexit.register(lambda: os.getpid() == owner and Path(name).unlink(missing_ok=True))
        _register_collector()


def publish(late: int) -> dict[str, float]:
    """Write the engine's counters; returns them."""
    import torch

    from ..compile.executables import statistics

    values = {
        "compilations": statistics.compilations,
        "compile_seconds": round(statistics.compile_seconds, 3),
        "program_cache_hits": statistics.cache_hits,
        "late_compilations": late,
        "cpu_fallbacks": sum(torch.tpu.fallbacks().values()),
    }
    name = os.environ.get(METRICS_FILE)
    if name:
        temporary = f"{name}.{os.getpid()}"
        Path(temporary).write_text(json.dumps(values))
        os.replace(temporary, name)
    return values


def _register_collector() -> None:
    from prometheus_client import REGISTRY
    from prometheus_client.core import CounterMetricFamily
    from prometheus_client.registry import Collector

    class Counters(Collector):
        def collect(self):
            try:
                values = json.loads(Path(os.environ[METRICS_FILE]).read_text() or "{}")
            except (OSError, KeyError, ValueError):
                values = {}
            for name, text in NAMES.items():
                yield CounterMetricFamily(f"systolic:{name}", text, value=values.get(name, 0))

    REGISTRY.register(Counters())
