"""What Dynamo asks of a device type."""

from __future__ import annotations

import torch
from torch._dynamo.device_interface import DeviceInterface


class TpuInterface(DeviceInterface):
    """Dynamo's view of ``torch.tpu``."""

    Event = torch.Event
    Stream = torch.Stream

    class Worker:
        """Used by compile workers: plain forwards to the device module."""

        @staticmethod
        def set_device(device: int) -> None:
            torch.tpu.set_device(device)

        @staticmethod
        def current_device() -> int:
            return torch.tpu.current_device()

        @staticmethod
        def get_device_properties(device=None):
            return torch.tpu.get_device_properties(device)

    current_device = staticmethod(lambda: torch.tpu.current_device())
    set_device = staticmethod(lambda device: torch.tpu.set_device(device))
    device_count = staticmethod(lambda: torch.tpu.device_count())
    is_available = staticmethod(lambda: True)
    synchronize = staticmethod(lambda device=None: torch.tpu.synchronize(device))
    get_device_properties = staticmethod(lambda device=None: torch.tpu.get_device_properties(device))
    get_compute_capability = staticmethod(lambda device=None: None)
    exchange_device = staticmethod(lambda device: torch.tpu._C.exchange_device(device))
    maybe_exchange_device = staticmethod(lambda device: torch.tpu._C.exchange_device(device))
    current_stream = staticmethod(lambda device=None: torch.accelerator.current_stream(device))

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        return True

    @staticmethod
    def is_triton_capable(device=None) -> bool:
        return False
