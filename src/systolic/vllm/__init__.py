"""The vLLM platform plugin: vLLM 0.32.0 on the ``tpu`` device.

vLLM finds :func:`platform_plugin` and :func:`register` through its entry points.  Upstream's model
definitions, scheduler, runner, sampler and API server stay in charge; :mod:`.overrides` lists every
place where this package changes one of them, with the reason.

* :mod:`.platform` - what vLLM asks of a platform, and the configuration it gets
* :mod:`.worker`, :mod:`.runner` - subclasses of upstream's worker and V1 runner
* :mod:`.programs` - the model as compiled programs, one per token bucket
* :mod:`.attention` - the attention backend over one paged custom operator
* :mod:`.sampling` - upstream's sampler on padded request counts
* :mod:`.buckets` - which sizes are compiled
* :mod:`.warmup` - compiling everything before the first request
"""

from __future__ import annotations


def platform_plugin() -> str:
    """Dotted name of the platform class (entry point ``vllm.platform_plugins``)."""
    return "systolic.vllm.platform.TpuPlatform"


def register() -> None:
    """Apply the overrides, and make a failed start one line.

    Entry point ``vllm.general_plugins``; runs in every vLLM process.
    """
    from ..cli_errors import install_engine_failure_filter
    from .overrides import apply

    install_engine_failure_filter()
    apply()
