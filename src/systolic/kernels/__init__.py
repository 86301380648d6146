"""Kernels: what decides the speed of a language model, one folder each.

Each kernel has a plain `jax.numpy` reference that runs anywhere and, where it pays, other forms: Pallas on a TPU, a
C++ custom call on XLA:CPU. Which one is used is decided when a program is traced; `force` and the setting `kernels`
override that for tests and comparisons, `aim` for compiling ahead of time. `registry` lists those with a Pallas form
and what proves them; `systolic kernels` runs the proofs. `jax_op` makes a PyTorch operator of a JAX function.
"""

from systolic.kernels.selection import aim, force, forced

__all__ = ["aim", "force", "forced", "jax_op"]


def __getattr__(name: str):
    if name == "jax_op":  # needs torch, which kernels do not
        from systolic.kernels.jax_operator import jax_op

        return jax_op
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
