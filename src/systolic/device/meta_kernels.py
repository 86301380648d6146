"""Shapes of the results of operators for which PyTorch has no meta kernel, or one for CUDA's limits only."""

from __future__ import annotations

import torch

from .outside_dynamo import never_trace


def _like(position: int):
    """The result has the shape and dtype of one argument."""
    return lambda *arguments, **_: torch.empty_like(arguments[position], memory_format=torch.contiguous_format)


def _histogram(self, bins=100, *, range=None, weight=None, density=False):
    return self.new_empty(bins), self.new_empty(bins + 1)


def _histogram_of_edges(self, bins, *, weight=None, density=False):
    return self.new_empty(bins.numel() - 1), torch.empty_like(bins)


def _check_points(self, bins) -> None:
    if self.dim() < 2:
        raise RuntimeError("torch.histogramdd: input tensor should have at least 2 dimensions")
    if len(bins) != self.shape[-1]:
        raise RuntimeError(
            f"torch.histogramdd: expected {self.shape[-1]} sequences of bin edges for a "
            f"{self.shape[-1]}-dimensional histogram but got {len(bins)}"
        )


def _histogramdd_edges(self, bins, *, range=None, weight=None, density=False):
    _check_points(self, bins)
    return [self.new_empty(n + 1) for n in bins]


def _histogramdd_from_counts(self, bins, *, range=None, weight=None, density=False):
    _check_points(self, bins)
    return self.new_empty(bins)


def _histogramdd_from_tensors(self, bins, *, weight=None, density=False):
    _check_points(self, bins)
    return self.new_empty([b.numel() - 1 for b in bins])


def _geqrf(self):
    if self.dim() < 2:
        raise RuntimeError("torch.geqrf: input must have at least 2 dimensions.")
    # LAPACK's order of storage, as the CPU returns it.
    return torch.empty_like(self.mT, memory_format=torch.contiguous_format).mT, self.new_empty(
        *self.shape[:-2], min(self.shape[-2:])
    )


def _grouped_mm(self, mat2, offs=None, bias=None, out_dtype=None):
    if self.dim() not in (2, 3) or mat2.dim() not in (2, 3):
        raise RuntimeError(f"grouped_mm: operands must have 2 or 3 dimensions, got {self.dim()} and {mat2.dim()}")
    if self.dtype != mat2.dtype or not self.is_floating_point():
        raise RuntimeError(f"grouped_mm: operands must have one floating-point dtype, got {self.dtype} and {mat2.dtype}")
    flat = 2 in (self.dim(), mat2.dim())
    if flat and (offs is None or offs.dim() != 1 or offs.dtype != torch.int32):
        raise RuntimeError("grouped_mm: offs must be a one-dimensional int32 tensor when an operand is two-dimensional")
    if not flat and offs is not None:
        raise RuntimeError("grouped_mm: offs must be left out when both operands are three-dimensional")
    if (self.dim() == 3 or mat2.dim() == 3) and self.shape[-1] != mat2.shape[-2]:
        raise RuntimeError("grouped_mm: contraction dimension of self and mat2 must match")
    groups = {t.shape[0] for t in (self, mat2) if t.dim() == 3} | ({offs.shape[0]} if flat else set())
    if len(groups) > 1:
        raise RuntimeError(f"grouped_mm: matrix batch sizes have to match, got {sorted(groups)}")
    leading = [groups.pop()] if self.dim() == mat2.dim() else []
    return self.new_empty([*leading, self.shape[-2], mat2.shape[-1]], dtype=out_dtype or self.dtype)


def _native_multi_head_attention(
    query, key, value, embed_dim, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask=None,
    need_weights=True, average_attn_weights=True, mask_type=None,
):  # fmt: skip
    heads = [] if average_attn_weights else [num_head]
    weights = query.new_empty(query.shape[0], *heads, query.shape[1], key.shape[1]) if need_weights else None
    return torch.empty_like(query, memory_format=torch.contiguous_format), weights


# PyTorch's own kernel of the first has the limits of CUDA: bfloat16 only, and strides of 16 bytes. That of the second
# gives an empty tensor for weights that are not asked for; CPU and CUDA give None.
REPLACED = {"_grouped_mm": _grouped_mm, "_native_multi_head_attention": _native_multi_head_attention}

KERNELS = {
    "histogram.bin_ct": _histogram,
    "histogram.bins_tensor": _histogram_of_edges,
    "_histogramdd_bin_edges": _histogramdd_edges,
    "_histogramdd_from_bin_cts": _histogramdd_from_counts,
    "_histogramdd_from_bin_tensors": _histogramdd_from_tensors,
    "_ctc_loss_backward": _like(1),
    "geqrf": _geqrf,
    "glu_jvp": _like(0),
    "glu_backward_jvp": _like(0),
    "_standard_gamma_grad": _like(0),
    "multi_margin_loss_backward": _like(1),
    "multilabel_margin_loss_backward": _like(1),
    "fractional_max_pool3d_backward": _like(1),
}

_library = None  # the registrations live as long as this object


def _arguments(schema):
    return [(a.name, str(a.type)) for a in schema.arguments if not a.is_out]


def _out_forms(operator):
    """The out= overloads of a functional operator."""
    packet = operator.overloadpacket
    for overload in packet.overloads():
        other = getattr(packet, overload)
        outs = [a.name for a in other._schema.arguments if a.is_out]
        if outs and _arguments(other._schema) == _arguments(operator._schema):
            yield other, outs


def _into(function, outs: list[str]):
    """The meta kernel of an out= form: gives each out argument the size of its result."""

    def kernel(*arguments, **keywords):
        targets = [keywords.pop(name) for name in outs]
        results = function(*arguments, **keywords)
        results = [results] if isinstance(results, torch.Tensor) else results
        if len(outs) == 1 and isinstance(targets[0], (list, tuple)):
            targets = targets[0]
        for target, result in zip(targets, results):
            if target.dtype != result.dtype:
                raise RuntimeError(
                    f"Expected out tensor to have dtype {result.dtype}, but got {target.dtype} instead"
                )
            target.resize_(result.shape)
        return targets[0] if len(targets) == 1 else tuple(targets)

    return kernel


def register_meta() -> None:
    """Give the operators of this file their meta kernels, where PyTorch has none.  Call once."""
    global _library
    _library = torch.library.Library("aten", "IMPL")
    for name, function in KERNELS.items():
        base, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, base), overload or "default")
        _register(operator, function)
        for other, outs in _out_forms(operator):
            _register(other, _into(function, outs))
    for name, function in REPLACED.items():
        never_trace(function)
        _library.impl(name, function, "Meta", allow_override=True)
        # The dispatcher in Python, which traces use, has a table of its own.
        operator = getattr(torch.ops.aten, name).default
        operator.py_kernels[torch._C.DispatchKey.Meta] = function
        operator._dispatch_cache.clear()


def _register(operator, function) -> None:
    if not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "Meta"):
        never_trace(function)
        _library.impl(operator.name().removeprefix("aten::"), function, "Meta")
