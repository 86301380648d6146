"""Kernels: what decides the speed of a language model, one folder each.

Each kernel has a plain `jax.numpy` reference that runs anywhere and, where it pays, a native form:
Pallas on a TPU, a C++ custom call on XLA:CPU. Which one is used is decided when a program is traced;
`force` overrides that for tests and comparisons.
"""

from systolic.kernels.selection import force, forced

__all__ = ["force", "forced"]
