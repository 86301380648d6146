"""Random weights of a realistic scale.

A model's own initialisation (standard deviation 0.02, biases and some projections zero) gives nearly equal logits, whose
order is an accident of rounding.  Here each layer keeps the variance of what goes through it, as after training.
"""

from __future__ import annotations

import torch

# Standard deviation that is added to biases, norms and other vectors, whose own initial values carry meaning.
VECTOR_NOISE = 0.1
EMBEDDING_SCALE = 0.5


@torch.no_grad()
def randomize(model: torch.nn.Module, seed: int) -> None:
    """Fill a CPU model's floating-point parameters in place; tied ones once.

    A matrix or convolution gets a normal distribution with standard deviation ``1 / sqrt(inputs)``.
    """
    generator = torch.Generator().manual_seed(seed)
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
    for parameter in model.parameters():
        if not parameter.is_floating_point() or not parameter.numel():
            continue
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32).to(parameter.dtype)
        if parameter.dim() < 2:
            parameter.add_(noise * VECTOR_NOISE)
        elif id(parameter) in embeddings:
            parameter.copy_(noise * EMBEDDING_SCALE)
        else:
            parameter.copy_(noise / max(1, parameter[0].numel()) ** 0.5)
