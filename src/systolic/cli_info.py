"""`systolic info`: what this machine and environment offer."""

from __future__ import annotations

import json
import platform
from importlib import metadata
from typing import Any

PACKAGES = ("systolic", "torch", "jax", "jaxlib", "libtpu", "vllm", "transformers")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> dict[str, Any]:
    """Platform and devices as torch.tpu reports them; sizes in bytes."""
    import torch

    tpu = torch.tpu
    count = tpu.device_count()
    devices = []
    for index in range(count):
        free, total = tpu.mem_get_info(index)
        memory = {"memory_free_bytes": int(free), "memory_total_bytes": int(total)}
        devices.append({"name": tpu.get_device_name(index), **memory})
    platform_name = tpu.get_device_properties(0).platform
    return {"available": tpu.is_available(), "platform": platform_name, "count": count, "devices": devices}


def collect() -> dict[str, Any]:
    """Everything that `systolic info` prints, ready for JSON.

    Absent packages have the version None. When the device cannot be loaded, `device` holds `error`.
    """
    from systolic import settings

    current = settings.current()
    try:
        device = _devices()
    # Whatever keeps torch or the device from loading is what the user came here to learn.
    except Exception as error:
        device = {"error": f"{type(error).__name__}: {error}"}
    system = {"system": platform.system(), "machine": platform.machine()}
    return {
        "platform": {**system, "python": platform.python_version()},
        "device": device,
        "versions": {package: _version(package) for package in PACKAGES},
        "cache": {"models": str(current.models_dir), "programs": str(current.programs_dir)},
    }


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"


def _lines(content: dict[str, Any]) -> list[tuple[str, str]]:
    machine, device = content["platform"], content["device"]
    lines = [("system", f"{machine['system']} {machine['machine']}, Python {machine['python']}")]
    if "error" in device:
        lines.append(("device", f"not usable: {device['error']}"))
    else:
        lines.append(("devices", f"{device['count']}, XLA platform {device['platform']}"))
        for index, each in enumerate(device["devices"]):
            memory = f"{_gib(each['memory_free_bytes'])} free of {_gib(each['memory_total_bytes'])}"
            lines.append((f"tpu:{index}", f"{each['name']}, {memory}"))
    lines += [(package, version or "not installed") for package, version in content["versions"].items()]
    lines += [(f"{name} in", folder) for name, folder in content["cache"].items()]
    return lines


def info(as_json: bool) -> int:
    """Print the information; returns 1 when the device is not usable, else 0."""
    content = collect()
    if as_json:
        print(json.dumps(content, indent=2))
    else:
        for name, value in _lines(content):
            print(f"{name:<14}{value}")
    return 1 if "error" in content["device"] else 0
