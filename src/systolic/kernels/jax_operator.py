"""A JAX function as a PyTorch operator: callable on ``tpu`` tensors, eager and inside ``torch.compile``.

    >>> softcap = jax_op("mine::softcap", lambda x, limit: jnp.tanh(x / limit) * limit, static=("limit",), backward="jax")
    >>> y = softcap(torch.randn(4, device="tpu"), 30.0)

Shapes and dtypes of results come from `jax.eval_shape`.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable

import torch

from ..device.outside_dynamo import never_trace

_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}
_libraries: dict[str, torch.library.Library] = {}


def jax_op(
    name: str,
    function: Callable,
    *,
    results: int = 1,
    static: dict[str, type] | tuple[str, ...] = (),
    backward: Callable | str | None = None,
    shape: Callable | None = None,
    version: str | None = None,
) -> torch._ops.OpOverload:
    """Register ``function`` as the operator ``name`` and return the operator.

    Args:
        name: ``"namespace::operator"``, not registered before.
        function: takes JAX arrays, in the order of its parameters, and returns an array or a tuple of ``results``
            arrays.  It is traced: it must not depend on values.  It may call Pallas kernels.
        results: number of results.
        static: parameters that are Python numbers or strings, known while tracing: names with their types, or names
            alone for floats.  Another value is another program.
        backward: None (a backward pass through the operator raises NotImplementedError), ``"jax"`` (JAX's reverse-mode derivative
            of ``function``), or a JAX function of (gradient of each result, then the inputs) that returns a tuple with
            one gradient, or None, for each input array.
        shape: for symbolic sizes in compiled graphs: takes and returns fake ``torch`` tensors.  Without it each new
            size is traced again.
        version: programs with the operator are kept on disk under it; change it with the function.  Without one they
            are not kept.

    Raises:
        ValueError: for a name without a namespace, or one that is taken.
        TypeError: for a parameter of ``function`` that is no plain positional one, or an unknown static name.
    """
    from ..compile.custom import register_custom

    namespace, separator, short = name.partition("::")
    if not separator or not namespace.isidentifier() or not short.isidentifier():
        raise ValueError(f'expected a name such as "mine::operator", got {name!r}')
    if hasattr(getattr(torch.ops, namespace), short):
        raise ValueError(f"operator {name!r} exists already; choose another name")
    kinds = _parameters(name, function, static)
    library = _libraries.setdefault(namespace, torch.library.Library(namespace, "FRAGMENT"))
    arguments = ", ".join(f"{kind} {parameter}" for parameter, kind in kinds.items())
    returned = "Tensor" if results == 1 else f"({', '.join(['Tensor'] * results)})"
    library.define(f"{short}({arguments}) -> {returned}", tags=(torch.Tag.pt2_compliant_tag,))
    op = getattr(getattr(torch.ops, namespace), short).default

    def fake(*values):
        if shape is not None:
            return shape(*values)
        outs = _eval_shape(name, function, values, results)
        like = next(v for v in values if isinstance(v, torch.Tensor))
        made = [like.new_empty(tuple(o.shape), dtype=_tdtype(o.dtype)) for o in outs]
        return made[0] if results == 1 else tuple(made)

    def lowered(**given):
        # A derivative is PyTorch's business here: `backward`.
        produced = function(*(given[parameter] for parameter in kinds))
        return produced if results == 1 else list(produced)

    torch.library.register_fake(name, fake, lib=library)
    register_custom(name, lowered, version)
    kernel = _kernel(op, name)
    never_trace(kernel)
    library.impl(short, kernel, "PrivateUse1")
    if backward is None:
        _refuse_backward(name, library)
    else:
        _register_backward(name, function, kinds, results, backward, version, library)
    return op


def _parameters(name: str, function: Callable, static) -> dict[str, str]:
    """The schema's type of each parameter."""
    static = dict(static) if isinstance(static, dict) else {parameter: float for parameter in static}
    kinds = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise TypeError(f"{name}: parameter {parameter} must be a plain positional one; wrap the function")
        kinds[parameter.name] = "Tensor"
    for parameter, kind in static.items():
        if parameter not in kinds or kind not in _TYPES:
            known = ", ".join(t.__name__ for t in _TYPES)
            raise TypeError(f"{name}: static {parameter!r} of type {kind!r} must name a parameter, with one of {known}")
        kinds[parameter] = _TYPES[kind]
    if "Tensor" not in kinds.values():
        raise TypeError(f"{name}: the function takes no array; at least one parameter must be a tensor")
    return kinds


def _tdtype(dtype) -> torch.dtype:
    from ..ops.numerics import tdtype

    return tdtype(dtype)


def _eval_shape(name: str, function: Callable, values, results: int) -> tuple:
    import jax

    from ..ops.numerics import jdtype

    arrays = {i: v for i, v in enumerate(values) if isinstance(v, torch.Tensor)}
    specs = {i: jax.ShapeDtypeStruct(tuple(int(n) for n in v.shape), jdtype(v.dtype)) for i, v in arrays.items()}

    def call(given: dict[int, Any]):
        return function(*(given.get(i, v) for i, v in enumerate(values)))

    with jax.enable_x64(True):
        outs = jax.eval_shape(call, specs)
    outs = tuple(outs) if isinstance(outs, (tuple, list)) else (outs,)
    if len(outs) != results:
        raise RuntimeError(f"{name} returned {len(outs)} results, expected {results}; say results={len(outs)}")
    return outs


def _kernel(op, name: str):
    """The eager kernel: one program for each signature and value of the static parameters."""
    graphs: dict[tuple, Any] = {}

    def kernel(*values):
        from ..compile.trace import trace

        tensors = [v for v in values if isinstance(v, torch.Tensor)]
        described = (((*v.shape,), v.stride(), v.dtype) if isinstance(v, torch.Tensor) else v for v in values)
        key = tuple(described)
        graph = graphs.get(key)
        if graph is None:

            def call(*given):
                given = iter(given)
                return op(*(next(given) if isinstance(v, torch.Tensor) else v for v in values))

            graph = graphs[key] = trace(call, tensors, {}, name.replace("::", "."))
        produced = graph.call(list(tensors))
        return produced[0] if len(produced) == 1 else tuple(produced)

    return kernel


def _refuse_backward(name: str, library) -> None:
    def differentiate(ctx, *upstream):
        raise NotImplementedError(
            f'{name} has no backward; give jax_op backward="jax" or a function, or call it under torch.no_grad()'
        )

    torch.library.register_autograd(name, differentiate, lib=library)


def _register_backward(name, function, kinds, results, backward, version, library) -> None:
    arrays = [parameter for parameter, kind in kinds.items() if kind == "Tensor"]
    statics = {parameter: kind for parameter, kind in kinds.items() if kind != "Tensor"}

    def gradients(*given):
        """Of (gradient of each result, inputs): one array for each input array, zeros where there is no gradient."""
        import jax
        import jax.numpy as jnp

        upstream, inputs = given[:results], dict(zip(kinds, given[results:]))
        if backward != "jax":
            found = backward(*upstream, *inputs.values())
            found = found if isinstance(found, (tuple, list)) else (found,)
            return tuple(jnp.zeros_like(inputs[p]) if g is None else g for p, g in zip(arrays, found, strict=True))
        floating = [p for p in arrays if jnp.issubdtype(inputs[p].dtype, jnp.inexact)]

        def call(*chosen):
            return function(*(inputs | dict(zip(floating, chosen))).values())

        _, pull = jax.vjp(call, *(inputs[p] for p in floating))
        found = dict(zip(floating, pull(upstream[0] if results == 1 else tuple(upstream))))
        return tuple(found.get(p, jnp.zeros_like(inputs[p])) for p in arrays)

    # jax_op reads parameters from the signature.
    names = [*(f"gradient{i}" for i in range(results)), *kinds]
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    gradients.__signature__ = inspect.Signature([inspect.Parameter(n, positional) for n in names])
    types = {kind: python for python, kind in _TYPES.items()}

    def give_one(*given):
        return gradients(*given)[0]

    give_one.__signature__ = gradients.__signature__

    def shape(*given):
        made = [torch.empty_like(v) for v, kind in zip(given[results:], kinds.values()) if kind == "Tensor"]
        return made[0] if len(made) == 1 else tuple(made)

    backward_op = jax_op(
        f"{name}_backward", give_one if len(arrays) == 1 else gradients, results=len(arrays),
        static={p: types[kind] for p, kind in statics.items()}, shape=shape, version=version,
    )  # fmt: skip

    def keep(ctx, inputs, output):
        ctx.save_for_backward(*(v for v in inputs if isinstance(v, torch.Tensor)))
        ctx.values = [None if isinstance(v, torch.Tensor) else v for v in inputs]

    def differentiate(ctx, *upstream):
        saved = iter(ctx.saved_tensors)
        inputs = [next(saved) if kind == "Tensor" else v for v, kind in zip(ctx.values, kinds.values())]
        found = backward_op(*upstream, *inputs)
        found = iter(found if isinstance(found, (tuple, list)) else (found,))
        full = [next(found) if kind == "Tensor" else None for kind in kinds.values()]
        return tuple(g if need else None for g, need in zip(full, ctx.needs_input_grad))

    torch.library.register_autograd(name, differentiate, setup_context=keep, lib=library)
