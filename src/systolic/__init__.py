"""Systolic: PyTorch's `tpu` device on XLA, and inference engines on it.

Importing this package is cheap: `systolic.device` is the device (loaded by `import torch`),
`systolic.compile` its compiler backend, `systolic.vllm` the vLLM plugin.
"""

__version__ = "0.1.0"
