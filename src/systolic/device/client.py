"""The XLA client behind the device: which platform it is, and its devices."""

from __future__ import annotations

import functools
import os

@functools.cache
def devices() -> list:
    """The JAX devices that ``tpu:0``, ``tpu:1``, ... stand for: real TPUs, else XLA on the CPU."""
    import jax

    try:
        return jax.devices("tpu")
    except RuntimeError:
        return jax.devices("cpu")


def tpu_attached() -> bool:
    """Whether this machine seems to have a TPU, without starting a client (safe before a fork)."""
    import glob
    import importlib.util

    if importlib.util.find_spec("libtpu") is None:
        return False
    return bool(glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"))


def is_cpu() -> bool:
    """True when no TPU is attached and programs run on XLA:CPU."""
    return devices()[0].platform == "cpu"


@functools.cache
def kind() -> str:
    """Device kind for people: a TPU generation, or "XLA on the CPU"."""
    device = devices()[0]
    return "XLA on the CPU" if device.platform == "cpu" else device.device_kind


def device_count() -> int:
    """Number of ``tpu`` devices in this process."""
    return len(devices())


def memory_info(index: int) -> tuple[int, int]:
    """(free, total) bytes of a device; on XLA:CPU those of the machine."""
    if tpu_attached():
        stats = devices()[index].memory_stats() or {}
        if "bytes_limit" in stats:
            return stats["bytes_limit"] - stats.get("bytes_in_use", 0), stats["bytes_limit"]
    import psutil

    memory = psutil.virtual_memory()
    return memory.available, memory.total


@functools.cache
def sharding(index: int):
    """JAX sharding that places an array on one device."""
    import jax

    return jax.sharding.SingleDeviceSharding(devices()[index])


@functools.cache
def fingerprint() -> str:
    """What a compiled program depends on beside its own text: versions, platform, flags, CPU features."""
    import hashlib
    import pathlib

    import jax
    import jaxlib
    import torch

    features = ""
    if is_cpu():
        try:
            with open("/proc/cpuinfo") as info:
                features = next((line for line in info if line.startswith("flags")), "")
        except OSError:
            import platform

            features = platform.processor()
    digest = hashlib.sha256()
    root = pathlib.Path(__file__).parent.parent
    for folder in ("ops", "device", "compile", "kernels"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".cc", ".h") and path.is_file():
                digest.update(path.read_bytes())
    parts = [jax.__version__, jaxlib.__version__, torch.__version__, kind(), os.environ.get("XLA_FLAGS", "")]
    return "|".join([*parts, features, str(os.cpu_count()), digest.hexdigest()])
