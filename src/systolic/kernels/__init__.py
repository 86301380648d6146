"""Kernels: what decides the speed of a language model, one folder each.

Each kernel has a plain `jax.numpy` reference that runs anywhere and, where it pays, a native form:
Pallas on a TPU, a C++ custom call on XLA:CPU. Which one is used is decided when a program is traced;
`force` overrides that for tests and comparisons. `jax_op` makes a PyTorch operator of a JAX function.
"""

from systolic.kernels.selection import force, forced

__all__ = ["force", "forced", "jax_op"]


def __getattr__(name: str):
    if name == "jax_op":  # needs torch, which kernels do not
        from systolic.kernels.jax_operator import jax_op

        return jax_op
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
