"""Compare lowerings with PyTorch's CPU kernels, one ATen call at a time.

Typical use::

    check(Call("aten::add.Tensor", (x, y), {"alpha": 2}))
    calls = capture(opinfo, torch.float32, limit=4)      # what OpInfo's samples really call
    failures = check_all(calls)                           # one compiled program for all of them

Each call is bound to its schema, traced under ``jax.jit`` with 64-bit mode on through
``registry.call``, and compared with the CPU result in number of results, shape, dtype and value.
Numbers of schema type ``Scalar`` are tried as Python numbers and as run-time ``registry.Scalar``.
"""

from __future__ import annotations

import itertools
import keyword
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from systolic.ops import registry
from systolic.ops.numerics import jdtype

_SCALAR_STORAGE = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}
_NEVER_PASSED = ("generator",)


@dataclass
class Call:
    """One ATen call: an overload (or its name, ``"aten::add.Tensor"``) and its arguments."""

    op: Any
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)

    def __post_init__(self):
        if isinstance(self.op, str):
            self.op = overload(self.op)

    def __str__(self):
        shown = [_show(a) for a in self.args] + [f"{k}={_show(v)}" for k, v in self.kwargs.items()]
        return f"{self.op}({', '.join(shown)})"

    def record(self):
        """The lowering of this call, or None."""
        return registry.find(
            self.op._schema.name.split("::")[1], self.op._overloadname.replace("default", "")
        )


def _show(value) -> str:
    if isinstance(value, torch.Tensor):
        body = f" {value.tolist()}" if value.numel() <= 6 else ""
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}{body}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_show(v) for v in value) + "]"
    return repr(value)


def overload(name: str):
    """The ``OpOverload`` of ``"aten::add.Tensor"`` (the namespace may be left out)."""
    namespace, _, rest = name.rpartition("::")
    base, _, which = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace or "aten"), base), which or "default")


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """A JAX array with the values and dtype of a CPU tensor.  Needs 64-bit mode."""
    return jnp.asarray(_to_numpy(tensor))


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    # The copy matters: JAX may alias host memory, and in-place calls change the tensor later.
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous().clone()
    dtype = jdtype(tensor.dtype)
    if dtype.kind not in "biufc" or tensor.dtype == torch.bfloat16:  # types that torch's numpy() refuses
        raw = {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
        return tensor.view(raw).numpy().view(dtype)
    return tensor.numpy()


def to_torch(array: jax.Array) -> torch.Tensor:
    """A CPU tensor with the values and dtype of a JAX array."""
    array = np.asarray(array)
    if array.dtype.name == "bfloat16" or array.dtype.name.startswith("float8"):
        raw = {1: np.uint8, 2: np.int16}[array.dtype.itemsize]
        kind = {jdtype(t): t for t in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)}[array.dtype]
        return torch.from_numpy(np.array(array).view(raw)).view(kind)
    return torch.from_numpy(np.array(array))


def bind(call: Call) -> list[tuple[torch.Argument, str, Any]]:
    """The arguments given, each with its schema argument and the keyword a lowering receives."""
    schema = call.op._schema.arguments
    given = [(argument, value) for argument, value in zip(schema, call.args)]
    given += [(argument, call.kwargs[argument.name]) for argument in schema if argument.name in call.kwargs]
    bound = []
    for argument, value in given:
        if argument.name in _NEVER_PASSED or argument.is_out:
            continue
        name = argument.name + "_" if keyword.iskeyword(argument.name) else argument.name
        bound.append((argument, name, value))
    return bound


def _clone(tree):
    return tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, tree)


def _flat(result) -> list:
    """Results as a flat list (None stays for an optional result)."""
    if result is None:
        return []
    return tree_flatten(result, is_leaf=lambda x: x is None)[0]


def expected(call: Call) -> list:
    """What the CPU kernel returns; the call's own tensors stay as they are."""
    return _flat(call.op(*_clone(call.args), **_clone(call.kwargs)))


def specs(call: Call, reference: list) -> list:
    """Specs of the results from torch's meta kernels, or from ``reference`` where there are none."""

    def to_meta(x):
        return (
            torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
            if isinstance(x, torch.Tensor)
            else x
        )

    try:
        kwargs = {k: v for k, v in call.kwargs.items() if k != "device"}
        if any(a.name == "device" for a in call.op._schema.arguments):
            kwargs["device"] = "meta"
        results = _flat(call.op(*tree_map(to_meta, call.args), **tree_map(to_meta, kwargs)))
    except (NotImplementedError, RuntimeError):
        results = reference
    return [None if r is None else registry.Spec(tuple(r.shape), jdtype(r.dtype)) for r in results]


def _is_scalar(argument: torch.Argument, value) -> bool:
    """Numbers that may be run-time values: schema type Scalar, or a number in a tensor's place."""
    if not isinstance(value, (bool, int, float, complex)):
        return False
    return str(argument.type) in (
        "number",
        "Optional[number]",
        "Tensor",
        "Optional[Tensor]",
    ) or "Scalar" in str(argument.real_type)


def _program(call: Call, result_specs: list, runtime_scalars: bool):
    """A function of a flat list of arrays that runs the lowering, and that list."""
    record, inputs, slots = call.record(), [], {}

    def place(argument, value):
        if isinstance(value, torch.Tensor):
            inputs.append(to_jax(value))
            return ("input", len(inputs) - 1)
        if isinstance(value, (list, tuple)):
            return ("list", [place(argument, v) for v in value])
        if runtime_scalars and _is_scalar(argument, value):
            inputs.append(jnp.asarray(np.asarray(value, _SCALAR_STORAGE[type(value)])))
            return ("scalar", type(value), len(inputs) - 1)
        return ("constant", value)

    for argument, name, value in bind(call):
        slots[name] = place(argument, value)
    if record.rng:
        inputs.append(jnp.asarray(np.array([0, 7], np.uint32)))
        slots["key"] = ("input", len(inputs) - 1)

    def fill(slot, arrays):
        match slot:
            case ("input", index):
                return arrays[index]
            case ("list", items):
                return [fill(item, arrays) for item in items]
            case ("scalar", kind, index):
                return registry.Scalar(kind, arrays[index])
            case ("constant", value):
                return value

    def run(arrays):
        return registry.call(record, result_specs, {name: fill(slot, arrays) for name, slot in slots.items()})

    return run, inputs


def _variants(call: Call) -> list[bool]:
    """Run-time scalars or not: [False], or [False, True] where the call has numbers for them."""
    has = any(_is_scalar(argument, value) for argument, _, value in bind(call))
    return [False, True] if has and not call.record().static_scalars else [False]


def _positions_are_free(call: Call) -> bool:
    """Whether PyTorch leaves open which of several equal values an index names."""
    base = registry.base_name(call.op._schema.name.split("::")[1])
    return base in ("topk", "kthvalue", "median", "nanmedian") or (
        base == "sort" and not call.kwargs.get("stable")
    )


def _compare_positions(call: Call, positions, values) -> None:
    """The indices must name elements equal to ``values`` (for sort: each element once)."""
    arguments = {name: value for _, name, value in bind(call)}
    source, dim = arguments["self"], arguments.get("dim", -1)
    if source.dim() == 0:
        assert not positions.any(), f"indices {positions} of a 0-d tensor"
        return
    if positions.dim() < source.dim():
        positions, values = positions.unsqueeze(dim), values.unsqueeze(dim)
    torch.testing.assert_close(source.gather(dim, positions), values, rtol=0, atol=0, equal_nan=True)
    in_order = positions.sort(dim).values
    assert (in_order.diff(dim=dim) > 0).all(), "an index is named twice"


def _compare(call: Call, reference: list, results: list, rtol, atol) -> None:
    assert len(results) == len(reference), f"{len(results)} results, PyTorch gives {len(reference)}"
    for index, (got, want) in enumerate(zip(results, reference)):
        if want is None or got is None:
            assert want is None and got is None, f"result {index}: {got} instead of {want}"
            continue
        got = to_torch(got)
        assert got.dtype == want.dtype, f"result {index}: dtype {got.dtype} instead of {want.dtype}"
        assert got.shape == want.shape, (
            f"result {index}: shape {tuple(got.shape)} instead of {tuple(want.shape)}"
        )
        if call.record().rng:
            continue
        if index == 1 and _positions_are_free(call):
            _compare_positions(call, got, reference[0])
            continue
        try:
            want = want.detach().resolve_conj().resolve_neg()
            torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            shown = f"; got {_show(got)}, expected {_show(want)}" if want.numel() <= 6 else ""
            raise AssertionError(f"result {index}: {error}{shown}") from None


# Without LLVM's optimizer a program compiles about twice as fast; the values stay XLA's.
_COMPILER_OPTIONS = {"xla_backend_optimization_level": 0}


def _execute(programs: list, inputs: list) -> list:
    def run(inputs):
        return [program(arrays) for program, arrays in zip(programs, inputs)]

    return jax.jit(run, compiler_options=_COMPILER_OPTIONS)(inputs)


def check_all(calls: list[Call], *, rtol: float | None = None, atol: float | None = None) -> list[str]:
    """Run all calls in one compiled program; return one message for each call that is wrong.

    Tolerances are those of ``torch.testing.assert_close`` for the result's dtype unless given.
    Calls that the CPU itself refuses are skipped; a call without a record is a failure.
    """
    work, failures = [], []
    with jax.enable_x64(True):
        for call in calls:
            if call.record() is None:
                failures.append(f"{call}: no lowering")
                continue
            try:
                reference = expected(call)
            except (RuntimeError, IndexError, ValueError, NotImplementedError):
                continue
            result_specs = specs(call, reference)
            for runtime in _variants(call):
                work.append((call, runtime, reference, *_program(call, result_specs, runtime)))
        try:
            outputs = _execute([w[3] for w in work], [w[4] for w in work])
        except Exception:  # find out which call it was, one program each
            outputs = []
            for _, _, _, program, inputs in work:
                try:
                    outputs.append(_execute([program], [inputs])[0])
                except Exception as error:
                    outputs.append(error)
        for (call, runtime, reference, _, _), output in zip(work, outputs):
            prefix = f"{call}{' with run-time numbers' if runtime else ''}: "
            if isinstance(output, Exception):
                failures.append(f"{prefix}{type(output).__name__}: {output}")
                continue
            try:
                _compare(call, reference, output, rtol, atol)
            except AssertionError as error:
                failures.append(prefix + str(error))
    return failures


def check(op, *args, rtol: float | None = None, atol: float | None = None, **kwargs) -> None:
    """Assert that the lowering of one call agrees with the CPU, e.g. ``check("aten::neg", x)``."""
    failures = check_all([Call(op, args, kwargs)], rtol=rtol, atol=atol)
    assert not failures, "\n".join(failures)


def run(call: Call) -> list[torch.Tensor]:
    """The results of a lowering alone, for calls that the CPU refuses (specs from meta kernels)."""
    with jax.enable_x64(True):
        program, inputs = _program(call, specs(call, []), runtime_scalars=False)
        return [to_torch(result) for result in _execute([program], [inputs])[0]]


class _Recorder(TorchDispatchMode):
    """Records every ATen call below autograd, with copies of its arguments, then runs it."""

    def __init__(self):
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.calls.append(Call(func, _clone(tuple(args)), _clone(kwargs)))
        return func(*args, **kwargs)


def _signature(call: Call):
    """Shapes, dtypes and other arguments: calls that differ only in values count as one."""

    def key(x):
        return (tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else x

    return str(call.op), repr(tree_map(key, (call.args, call.kwargs)))


def capture(opinfo, dtype: torch.dtype, *, samples: int = 4, backward: bool = False, keep=None) -> list[Call]:
    """The distinct ATen calls that an OpInfo's first ``samples`` samples make on the CPU.

    ``backward=True`` also runs the backward pass and so records the gradient operators.
    ``keep`` is a predicate on :class:`Call`; calls with ``out=`` arguments are left out.
    """
    torch.manual_seed(0)
    found: dict[Any, Call] = {}
    inputs = opinfo.sample_inputs("cpu", dtype, requires_grad=backward)
    for sample in itertools.islice(inputs, samples):
        with _Recorder() as recorder:
            try:
                result = opinfo.op(sample.input, *sample.args, **sample.kwargs)
                if backward:
                    leaves = [r for r in _flat(result) if isinstance(r, torch.Tensor) and r.requires_grad]
                    if leaves:
                        torch.autograd.backward(leaves, [torch.randn_like(r) for r in leaves])
            except (RuntimeError, IndexError, ValueError, NotImplementedError):
                pass  # some samples of some dtypes are refused by the CPU itself
        for call in recorder.calls:
            if any(a.is_out for a in call.op._schema.arguments) or (keep is not None and not keep(call)):
                continue
            found.setdefault(_signature(call), call)
    return list(found.values())


def opinfos_for(modules: set[str]) -> list:
    """The OpInfos named like a record that one of ``modules`` registered, in the database's order."""
    from torch.testing._internal.common_methods_invocations import op_db

    names = {record.name.partition(".")[0].strip("_") for record in registry.records().values()
             if record.fn.__module__ in modules}  # fmt: skip
    names |= {name.removeprefix("special_") for name in names}
    return [o for o in op_db if o.name.split(".")[-1].strip("_") in names or o.aten_name in names]
