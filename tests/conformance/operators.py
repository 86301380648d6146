"""The checks of one operator with one dtype, in eager and compiled mode."""

from __future__ import annotations

import itertools

import torch
from compare import Mismatch, check, to_host, upcast
from torch.utils._pytree import tree_flatten, tree_map

# Samples of an operator that are run: more for the dtypes in which models compute.
SAMPLES = {torch.float32: 5, torch.int64: 3}
OTHER_SAMPLES = 2
GRADIENT_SAMPLES = {torch.float32: 2}
ERROR_INPUTS = 6

# Values are random, uninitialized or unique only up to a choice: shapes and dtypes are compared.
SHAPES_ONLY = {
    "bernoulli": "random", "cauchy": "random", "exponential": "random", "geometric": "random",
    "log_normal": "random", "multinomial": "random", "normal": "random", "normal.number_mean": "random",
    "normal.in_place": "random", "uniform": "random", "rand_like": "random", "randint": "random",
    "randint_like": "random", "randn": "random", "randn_like": "random", "randperm": "random",
    "nn.functional.dropout": "random", "nn.functional.dropout2d": "random", "nn.functional.dropout3d": "random",
    "nn.functional.alpha_dropout": "random", "nn.functional.feature_alpha_dropout.with_train": "random",
    "nn.functional.rrelu": "random", "nn.functional.fractional_max_pool2d": "random",
    "nn.functional.fractional_max_pool3d": "random", "pca_lowrank": "random", "svd_lowrank": "random",
    "nn.functional.scaled_dot_product_attention": "random with dropout",
    "nn.functional.multi_head_attention_forward": "random with dropout",
    "empty": "uninitialized", "empty_like": "uninitialized", "empty_permuted": "uninitialized",
    "empty_strided": "uninitialized", "new_empty": "uninitialized", "new_empty_strided": "uninitialized",
    "resize_": "uninitialized", "resize_as_": "uninitialized",
    "geqrf": "Householder vectors are not unique",
}  # fmt: skip

# These see the storage behind a tensor, so other strides are another input.
READS_STORAGE = ("as_strided", "as_strided.partial_views", "as_strided_copy", "as_strided_scatter")

# What a factorization determines: the function makes results comparable.
UNIQUE = {
    "linalg.svd": lambda r: (r[1], (r[0][..., : r[1].shape[-1]] * r[1].unsqueeze(-2)) @ r[2][..., : r[1].shape[-1], :]),
    "svd": lambda r: (r[1], (r[0][..., : r[1].shape[-1]] * r[1].unsqueeze(-2)) @ r[2].mH[..., : r[1].shape[-1], :]),
    "linalg.eigh": lambda r: (r[0], (r[1] * r[0].unsqueeze(-2)) @ r[1].mH),
    "linalg.eig": lambda r: (_sorted(r[0]), (r[1] * r[0].unsqueeze(-2)) @ torch.linalg.pinv(r[1])),
    "linalg.eigvals": lambda r: _sorted(r),
    "linalg.qr": lambda r: (r[0] @ r[1] if r[0].numel() else r[1].abs(), r[1].abs()),
    "qr": lambda r: (r[0] @ r[1], r[1].abs()),
}
# In-place forms that torch.compile cannot trace on any device: PyTorch's functionalization does not know them.
INPLACE_NOT_TRACED = ("polygamma",)

# Tensors among the arguments that every device wants on the CPU.
HOST_ARGUMENTS = ("tensor_split",)

# operator -> (position of the dimension among its arguments, whether one row's indices are all different).
# Which of equal values an index names is left open by these, unless a stable sort is asked for.
OPEN_TIES = {
    "sort": (0, True), "argsort": (0, True), "topk": (1, True), "kthvalue": (1, False),
    "median": (0, False), "nanmedian": (0, False), "mode": (0, False),
}  # fmt: skip


def _open_dim(sample, name: str) -> int | None:
    """The dimension along which a call leaves the choice among equal values open, or None."""
    given, kwargs = sample.input, sample.kwargs
    if name not in OPEN_TIES or kwargs.get("stable") or given.dim() == 0 or not given.numel():
        return None
    position = OPEN_TIES[name][0]
    dim = kwargs.get("dim", sample.args[position] if len(sample.args) > position else None)
    return -1 if dim is None and name not in ("median", "nanmedian") else dim


def _by_value(result, sample, name: str):
    """The result with its indices replaced by the values that they name, and whether they are all different."""
    dim = _open_dim(sample, name)
    if dim is None:
        return result
    *values, indices = result if isinstance(result, tuple) else (result,)
    indices = indices if indices.dim() == sample.input.dim() else indices.unsqueeze(dim)
    different = indices.sort(dim).values.diff(dim=dim).ne(0).all() if OPEN_TIES[name][1] else None
    return (*values, sample.input.detach().gather(dim, indices), different)


def _among_equals(gradients, sample, name: str):
    """Gradients of the input in an order that does not tell apart elements of equal value."""
    dim = _open_dim(sample, name)
    if dim is None or gradients[0] is None:
        return gradients
    order = gradients[0].argsort(dim=dim)
    order = order.gather(dim, sample.input.detach().gather(dim, order).argsort(dim=dim, stable=True))
    return (gradients[0].gather(dim, order), *gradients[1:])


def _sorted(values):
    """Complex values in an order that rounding does not change."""
    order = sorted(range(values.shape[-1]), key=lambda i: (values[..., i].real.sum().item(), values[..., i].imag.sum().item()))
    return values[..., order] if values.dim() == 1 else values.abs().sort(-1).values


def samples(info, dtype: torch.dtype, count: int, gradients: bool = False) -> list:
    """``count`` of the database's samples on the CPU, spread over the list."""
    made = list(info.sample_inputs("cpu", dtype, requires_grad=gradients))
    if len(made) <= count:
        return made
    return [made[i * (len(made) - 1) // (count - 1) if count > 1 else 0] for i in range(count)]


def _copied(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """A copy on a device with the tensor's strides and offset, in a storage as large as its own."""
    tensor = tensor.detach()
    if tensor.device.type == "meta":
        return tensor
    plain = tensor.layout != torch.strided or tensor.numel() == 0 or tensor.is_conj() or tensor.is_neg()
    if plain or (tensor.is_contiguous() and tensor.nbytes == tensor.untyped_storage().nbytes()):
        return tensor.to(device, copy=True)
    stored = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()).to(device, copy=True)
    return stored.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _copies(sample) -> tuple:
    """Input, arguments and keywords of a sample with CPU copies of its tensors, which a call may write."""
    return tree_map(lambda t: _copied(t, "cpu") if isinstance(t, torch.Tensor) else t,
                    (sample.input, sample.args, sample.kwargs))  # fmt: skip


def to_device(value, gradients: bool = False):
    """Tensors of a nested value on the device, as leaves; device arguments changed too."""

    def move(item):
        if isinstance(item, torch.Tensor):
            moved = _copied(item, "tpu")
            return moved.requires_grad_(item.requires_grad) if gradients else moved
        if isinstance(item, torch.device) or item == "cpu":
            return torch.device("tpu")
        return item

    return tree_map(move, value)


def _on_device(value, what: str) -> None:
    for leaf in tree_flatten(value)[0]:
        if isinstance(leaf, torch.Tensor) and leaf.device.type != "tpu":
            raise Mismatch(f"{what}: a result is on {leaf.device}")


class Operator:
    """Runs the checks; each raises :class:`Mismatch` or what the operator raises."""

    def __init__(self, info, name: str, dtype: torch.dtype, thorough: bool = True):
        self.info, self.name, self.dtype = info, name, dtype
        self.gradient_count = GRADIENT_SAMPLES.get(dtype, 1) if thorough else 1
        count = SAMPLES.get(dtype, OTHER_SAMPLES)
        self.values = name not in SHAPES_ONLY
        self.unique = UNIQUE.get(name, lambda result: result)
        self.samples = samples(info, dtype, count if thorough else count // 2)
        self.moved = [self._move(s) for s in self.samples]

    def _move(self, sample, gradients: bool = False):
        """(input, args, kwargs) of a sample on the device."""
        if self.name in HOST_ARGUMENTS:
            return to_device(sample.input, gradients), sample.args, sample.kwargs
        return to_device((sample.input, sample.args, sample.kwargs), gradients)

    def _want(self, sample):
        given, args, kwargs = _copies(sample)
        return self.info.op(given, *args, **kwargs)

    def _exact(self, sample):
        given, args, kwargs = upcast((sample.input, sample.args, sample.kwargs))
        return _by_value(self.unique(self.info.op(given, *args, **kwargs)), sample, self.name)

    def _compare(self, got, sample, what: str) -> None:
        want = self._want(sample)
        given = tree_flatten((sample.input, sample.args))[0]
        if "device" in sample.kwargs or any(isinstance(t, torch.Tensor) for t in given):
            _on_device(got, what)
        if self.values:
            got, want = self.unique(to_host(got)), self.unique(want)
        got, want = _by_value(got, sample, self.name), _by_value(want, sample, self.name)
        check(got, want, lambda: self._exact(sample), self.name, what, self.values)

    def eager(self) -> None:
        """All checks, operator by operator."""
        for index, (sample, (given, args, kwargs)) in enumerate(zip(self.samples, self.moved)):
            self._compare(self.info.op(given, *args, **kwargs), sample, f"sample {index}")
        for sample, (given, args, kwargs) in zip(self.samples[:1], self.moved[:1]):
            self._noncontiguous(sample, given, args, kwargs)
            if self.values:
                self._out(sample, self.info.op)
        self._inplace()
        self._gradients(self.info.op)
        if self.dtype == torch.float64:
            self._second_gradients()
            self._forward_gradients()
        if self.dtype == torch.float32:
            self._errors()

    def compiled(self) -> None:
        """The forward and in-place checks as one compiled graph, the gradients as another."""
        op, inplace, moved = self.info.op, self.info.inplace_variant, self.moved
        chosen = None if self.info.name in INPLACE_NOT_TRACED else self._inplace_sample()
        target = self._move(chosen) if chosen else None

        def program():
            results = [op(given, *args, **kwargs) for given, args, kwargs in moved]
            return results, inplace(target[0], *target[1], **target[2]) if target else None

        results, written = torch.compile(program, backend="tpu")()
        for index, (got, sample) in enumerate(zip(results, self.samples)):
            self._compare(got, sample, f"sample {index}")
        if chosen:
            self._compare_inplace(chosen, target[0], written)
        self._gradients(torch.compile(lambda given, *args, **kwargs: op(given, *args, **kwargs), backend="tpu"))

    def _noncontiguous(self, sample, given, args, kwargs) -> None:
        from torch.testing._internal.opinfo.core import SampleInput

        if self.name in READS_STORAGE:
            return
        strided = SampleInput(given, args=args, kwargs=kwargs).noncontiguous()
        self._compare(self.info.op(strided.input, *strided.args, **strided.kwargs), sample, "non-contiguous input")

    def _out(self, sample, op) -> None:
        if not self.info.supports_out or "out" in sample.kwargs:
            return
        want = self._want(sample)
        if not all(isinstance(t, torch.Tensor) for t in tree_flatten(want)[0]):
            return

        def empty(device):
            out = tree_map(lambda t: torch.empty_like(t, device=device), want)
            return tuple(out) if isinstance(out, tuple) else out  # a named tuple's type is no argument

        try:
            self.info.op(sample.input, *sample.args, **sample.kwargs, out=empty("cpu"))
        except (RuntimeError, TypeError):
            return  # some entries list an operator whose out= form takes its results under other names
        given, args, kwargs = self._move(sample)
        out = empty("tpu")
        op(given, *args, **kwargs, out=out)
        got, want = (_by_value(self.unique(r), sample, self.name) for r in (to_host(out), want))
        check(got, want, lambda: self._exact(sample), self.name, "out=")

    def _inplace_sample(self):
        """The first sample that the in-place form takes on the CPU, or None."""
        if self.info.inplace_variant is None or not self.values:
            return None
        for sample in self.samples:
            if not sample.broadcasts_input and isinstance(sample.input, torch.Tensor):
                try:
                    self._want_inplace(sample)
                    return sample
                except RuntimeError:
                    continue  # the result's dtype does not fit
        return None

    def _want_inplace(self, sample):
        """(the written input, what the call returns)."""
        given, args, kwargs = _copies(sample)
        return given, self.info.inplace_variant(given, *args, **kwargs)

    def _compare_inplace(self, sample, given, returned) -> None:
        want, want_returned = self._want_inplace(sample)
        check(to_host(given), to_host(want), lambda: self._exact(sample), self.name, "in place")
        check(to_host(returned), want_returned, lambda: self._exact(sample), self.name, "in place, what it returns")

    def _inplace(self) -> None:
        sample = self._inplace_sample()
        if sample is not None:
            given, args, kwargs = self._move(sample)
            self._compare_inplace(sample, given, self.info.inplace_variant(given, *args, **kwargs))

    def _differentiable(self, sample, op, given, args, kwargs):
        """Results that have gradients, and the inputs that want them."""
        result = op(given, *args, **kwargs)
        if sample.output_process_fn_grad is not None:
            result = sample.output_process_fn_grad(result)
        results = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor) and t.requires_grad]
        inputs = [t for t in tree_flatten((given, args, kwargs))[0] if isinstance(t, torch.Tensor) and t.requires_grad]
        return results, inputs

    def _gradients(self, op) -> None:
        info = self.info
        if not (info.supports_autograd and self.values and self.dtype in info.supported_backward_dtypes("cpu")):
            return
        for index, sample in enumerate(samples(info, self.dtype, self.gradient_count, gradients=True)):
            results, inputs = self._differentiable(sample, info.op, sample.input, sample.args, sample.kwargs)
            if not results or not inputs:
                continue
            weights = [torch.randn_like(t) for t in results]
            want = torch.autograd.grad(results, inputs, weights, allow_unused=True)
            results, inputs = self._differentiable(sample, op, *self._move(sample, True))
            got = torch.autograd.grad(results, inputs, to_device(weights), allow_unused=True)
            got, want = (_among_equals(to_host(g), sample, self.name) for g in (got, want))
            check(got, want, lambda: self._exact_gradients(sample, weights), self.name, f"gradient of sample {index}")

    def _exact_gradients(self, sample, weights):
        given, args, kwargs = tree_map(
            lambda t: upcast(t).requires_grad_(t.requires_grad) if isinstance(t, torch.Tensor) else upcast(t),
            (sample.input, sample.args, sample.kwargs),
        )
        results, inputs = self._differentiable(sample, self.info.op, given, args, kwargs)
        gradients = torch.autograd.grad(results, inputs, upcast(weights), allow_unused=True)
        return _among_equals(gradients, sample, self.name)

    def _second_gradients(self) -> None:
        info = self.info
        if not (info.supports_autograd and info.supports_gradgrad and self.values):
            return
        for sample in samples(info, self.dtype, 1, gradients=True):
            want, got = (self._second(sample, *arguments) for arguments in (
                (sample.input, sample.args, sample.kwargs),
                self._move(sample, True),
            ))  # fmt: skip
            check(got, want, None, self.name, "second gradient")

    def _second(self, sample, given, args, kwargs):
        results, inputs = self._differentiable(sample, self.info.op, given, args, kwargs)
        if not results or not inputs:
            return ()
        first = torch.autograd.grad([(t * t).sum().abs() for t in results], inputs, create_graph=True, allow_unused=True)
        first = [t for t in first if t is not None and t.requires_grad]
        if not first:
            return ()
        return torch.autograd.grad([t.abs().pow(2).sum() for t in first], inputs, allow_unused=True)

    def _forward_gradients(self) -> None:
        if not (self.info.supports_forward_ad and self.values):
            return
        for sample in samples(self.info, self.dtype, 1, gradients=True):
            if not isinstance(sample.input, torch.Tensor) or not sample.input.requires_grad:
                continue
            tangent = torch.randn_like(sample.input)
            arguments = (sample.input, sample.args, sample.kwargs)
            want = self._tangents(sample.output_process_fn_grad, tangent, *tree_map(_leaf, arguments))
            got = self._tangents(sample.output_process_fn_grad, tangent.to("tpu"), *to_device(arguments))
            check(got, want, None, self.name, "forward gradient")

    def _tangents(self, process, tangent, given, args, kwargs):
        import torch.autograd.forward_ad as forward

        with forward.dual_level():
            result = self.info.op(forward.make_dual(given, tangent), *args, **kwargs)
            if process is not None:  # what of the result is unique
                result = process(result)
            duals = [forward.unpack_dual(t) for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor)]
            return [dual.tangent for dual in duals if dual.tangent is not None]

    def _errors(self) -> None:
        try:
            made = list(itertools.islice(self.info.error_inputs("cpu"), ERROR_INPUTS))
        except (TypeError, NotImplementedError):
            return
        for index, error in enumerate(made):
            sample = error.sample_input
            if not self._cpu_raises(sample):
                continue  # the database expects it of the operator's other forms
            given, args, kwargs = self._move(sample)
            try:
                self.info.op(given, *args, **kwargs)
            except error.error_type:
                continue
            except Exception as raised:
                message = str(raised).splitlines()[0] if str(raised) else ""
                raise Mismatch(
                    f"error input {index}: {type(raised).__name__} instead of {error.error_type}: {message}"
                ) from raised
            raise Mismatch(f"error input {index}: nothing raised; the CPU says {error.error_regex!r}")


    def _cpu_raises(self, sample) -> bool:
        try:
            self._want(sample)
        except Exception:
            return True
        return False


def _leaf(value):
    return value.detach() if isinstance(value, torch.Tensor) else value
