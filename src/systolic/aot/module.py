"""StableHLO with what is needed to call it.

`jax.export` writes its own files only with another package installed; StableHLO's portable form is all that has to be
kept, since a program's inputs and results are flat and on one device.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Module:
    """A StableHLO module in its portable binary form, of the calling convention ``version`` of `jax.export`.

    ``arguments`` and ``results`` are (shape, dtype) of each flat input and result.
    """

    code: bytes
    version: int
    platforms: tuple[str, ...]
    arguments: list[tuple[tuple[int, ...], torch.dtype]]
    results: list[tuple[tuple[int, ...], torch.dtype]]

    @classmethod
    def of(cls, exported) -> Module:
        """From a ``jax.export.Exported`` that keeps unused inputs."""
        from ..ops.numerics import tdtype

        def described(avals):
            return [(tuple(a.shape), tdtype(a.dtype)) for a in avals]

        version, platforms = exported.calling_convention_version, tuple(exported.platforms)
        arguments, results = described(exported.in_avals), described(exported.out_avals)
        return cls(bytes(exported.mlir_module_serialized), version, platforms, arguments, results)

    def exported(self):
        """A ``jax.export.Exported`` of the module.  Raises ValueError if this JAX cannot call its version."""
        import jax
        import jax.numpy as jnp

        from ..ops.numerics import jdtype

        least = jax.export.minimum_supported_calling_convention_version
        most = jax.export.maximum_supported_calling_convention_version
        if not least <= self.version <= most:
            raise ValueError(f"calling convention {self.version} is outside of {least} to {most}, those of this JAX")

        def outline(*arrays):
            return tuple(jnp.zeros(shape, jdtype(dtype)) for shape, dtype in self.results)

        shapes = [jax.ShapeDtypeStruct(shape, jdtype(dtype)) for shape, dtype in self.arguments]
        with jax.enable_x64(True):
            same = jax.export.export(jax.jit(outline, keep_unused=True), platforms=self.platforms)(*shapes)
        return dataclasses.replace(
            same, mlir_module_serialized=self.code, calling_convention_version=self.version, _get_vjp=None
        )
