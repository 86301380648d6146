"""Operators on lists of tensors (``_foreach_*``): one program for the whole list.

Each applies an operator of the table to every element.  ``_foreach_copy_`` and the overloads that take
several scalars in one tensor stay PyTorch's own loops: their second argument may be on another device.
"""

from __future__ import annotations

import jax.numpy as jnp

from . import registry
from .numerics import opmath
from .registry import lower, out


# What a foreach argument is called by the operator it applies.
_RENAMED = {"tensors1": "end", "weights": "weight"}


def _apply(base: str, second: str | None, arguments: dict):
    """Results of ``base`` for every element; lists are taken element by element, the rest is shared."""
    record = registry.find(base)
    count = next(len(v) for v in arguments.values() if isinstance(v, list))
    results = []
    for index in range(count):
        given = {}
        for name, value in arguments.items():
            name = second if name in ("scalar", "scalars") else _RENAMED.get(name, name)
            given[name] = value[index] if isinstance(value, list) else value
        results += registry.call(record, [out(index)], given)
    return results


def _register(base: str, second: str | None = None, overloads: tuple[str, ...] = (), static: bool = False) -> None:
    def lowering(**arguments):
        return _apply(base, second, arguments)

    names = [f"_foreach_{base}.{overload}" for overload in overloads] or [f"_foreach_{base}"]
    lower(*names, static_scalars=static)(lowering)


for _name in (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma",
    "log", "log10", "log1p", "log2", "max", "mm", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin",
    "sinh", "sqrt", "tan", "tanh", "trunc",
):  # fmt: skip
    _register(_name)

for _name in ("add", "sub", "mul", "div", "maximum", "minimum"):
    _register(_name, "other")
_register("clamp_max", "max")
_register("clamp_min", "min")
_register("lerp", "weight")
_register("pow", "exponent", static=True)
for _name in ("addcmul", "addcdiv"):
    _register(_name, "value", ("Scalar", "ScalarList"))


@lower("_foreach_zero")
def foreach_zero(self):
    return [jnp.zeros(x.shape, x.dtype) for x in self]


@lower("_foreach_clone")
def foreach_clone(self):
    return list(self)


@lower("_foreach_norm", static_scalars=True)
def foreach_norm(self, ord=2, dtype=None):
    """Vector norm of each tensor, over all its dimensions."""
    record = registry.find("linalg_vector_norm")
    return [registry.call(record, [out(i)], {"self": x, "ord": ord, "dtype": dtype})[0] for i, x in enumerate(self)]


@lower("_foreach_powsum", static_scalars=True)
def foreach_powsum(self, ord=2, dtype=None):
    """Sum of ``|x| ** ord`` of each tensor."""
    wide = [x.astype(opmath(out(i).dtype)) for i, x in enumerate(self)]
    return [jnp.sum(jnp.abs(x) ** ord) for x in wide]
