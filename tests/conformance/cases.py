"""What the conformance sweep runs: PyTorch's operator, module and optimizer databases, by dtype and mode."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

import torch

DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip
MODES = ("eager", "compiled")
DATABASES = ("operator", "module", "optimizer")


@dataclass(frozen=True, order=True)
class Case:
    """One entry of a database with one dtype, run operator by operator or compiled."""

    database: str
    name: str
    dtype: str  # "float32", without "torch."
    mode: str

    def __str__(self) -> str:
        return f"{self.database}/{self.name}/{self.dtype}/{self.mode}"

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype)

    @property
    def number(self) -> int:
        """A fixed number that looks random: seeds the samples and chooses the default tests' part."""
        return int.from_bytes(hashlib.sha256(str(self).encode()).digest()[:6], "big")

    def info(self):
        """The database's entry."""
        return entries(self.database)[self.name]


def operator_name(info) -> str:
    """``name`` or ``name.variant``, which is unique in the operator database."""
    return info.name + ("." + info.variant_test_name if info.variant_test_name else "")


# Compiles CUDA source: CPU PyTorch has no such operator, though the database lists its dtypes.
NOT_ON_CPU = "jiterator"


@functools.cache
def entries(database: str) -> dict:
    """Entries of a database by unique name."""
    if database == "operator":
        from torch.testing._internal.common_methods_invocations import op_db

        return {operator_name(info): info for info in op_db if not info.name.startswith(NOT_ON_CPU)}
    if database == "module":
        from torch.testing._internal.common_modules import module_db

        return {info.name: info for info in module_db}
    from torch.testing._internal.common_optimizers import optim_db

    return {info.optim_cls.__name__: info for info in optim_db}


def _dtypes(database: str, info) -> set[torch.dtype]:
    if database == "operator":
        return info.supported_dtypes("cpu")
    if database == "module":
        return set(info.dtypes)
    return {torch.float32, torch.float64}


def all_cases(modes=MODES) -> list[Case]:
    """Every pair that CPU PyTorch supports, in a fixed order."""
    return [
        Case(database, name, str(dtype).removeprefix("torch."), mode)
        for database in DATABASES
        for name, info in sorted(entries(database).items())
        for dtype in DTYPES
        if dtype in _dtypes(database, info)
        for mode in modes
    ]


def sample(cases: list[Case], one_in: int) -> list[Case]:
    """About one in ``one_in`` of each stratum (database, dtype, mode), always the same ones."""
    strata: dict[tuple, list[Case]] = {}
    for case in cases:
        strata.setdefault((case.database, case.dtype, case.mode), []).append(case)
    chosen = []
    for members in strata.values():
        members = sorted(members, key=lambda case: case.number)
        chosen += members[: max(1, round(len(members) / one_in))]
    return sorted(chosen)
