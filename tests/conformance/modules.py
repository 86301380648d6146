"""The checks of modules and optimizers: a forward and a backward pass, or a few steps, against the CPU's."""

from __future__ import annotations

import copy

import torch
from compare import check, to_host
from operators import to_device
from torch.utils._pytree import tree_flatten, tree_map

SAMPLES = 3
STEPS = 3
OPTIMIZER_SAMPLES = 4

# module -> reason: shapes and dtypes are compared, values are not.
SHAPES_ONLY = {
    "nn.RReLU": "random in training", "nn.FractionalMaxPool2d": "random", "nn.FractionalMaxPool3d": "random",
    "nn.Dropout": "random", "nn.AlphaDropout": "random", "nn.FeatureAlphaDropout": "random",
    "nn.Dropout1d": "random", "nn.Dropout2d": "random", "nn.Dropout3d": "random",
}  # fmt: skip


def _clone(value, dtype=None):
    def change(item):
        if not isinstance(item, torch.Tensor):
            return item
        cloned = item.detach().clone()
        if dtype is not None and cloned.dtype.is_floating_point:
            cloned = cloned.to(dtype)
        return cloned.requires_grad_(item.requires_grad)

    return tree_map(change, value)


def check_module(info, name: str, dtype: torch.dtype, compiled: bool) -> None:
    """Outputs, input gradients and parameter gradients in training and evaluation mode."""
    for training in (True, False):
        made = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
        for index, module_input in enumerate(list(made)[:SAMPLES]):
            if module_input.forward_input is None:
                continue
            module = info.module_cls(*module_input.constructor_input.args, **module_input.constructor_input.kwargs)
            module.to(dtype).train(training)
            arguments = (module_input.forward_input.args, module_input.forward_input.kwargs)
            if any(isinstance(p, torch.nn.parameter.UninitializedParameter) for p in module.parameters()):
                module(*_clone(arguments[0]), **_clone(arguments[1]))  # its copies get the same weights
            moved = copy.deepcopy(module).to("tpu")
            call = torch.compile(moved, backend="tpu") if compiled else moved
            want = _passes(module, module, _clone(arguments))
            got = _passes(moved, call, to_device(arguments, gradients=True))
            values = name not in SHAPES_ONLY or not training

            def exact():
                return _passes(*[copy.deepcopy(module).double()] * 2, _clone(arguments, torch.float64))

            check(got, want, exact, name, f"{'train' if training else 'eval'}, sample {index}", values)


def _passes(module, call, arguments):
    """Outputs and all gradients of a forward and a backward pass with fixed weights on the outputs."""
    args, kwargs = arguments
    result = call(*args, **kwargs)
    outputs = [t for t in tree_flatten(result)[0] if isinstance(t, torch.Tensor)]
    differentiable = [t for t in outputs if t.requires_grad]
    wanted = [t for t in (*tree_flatten(arguments)[0], *module.parameters())
              if isinstance(t, torch.Tensor) and t.requires_grad]  # fmt: skip
    gradients = ()
    if differentiable and wanted:
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t.device, t.dtype)
                   if not t.is_complex() else torch.ones_like(t) for t in differentiable]  # fmt: skip
        gradients = torch.autograd.grad(differentiable, wanted, weights, allow_unused=True)
    return [to_host(outputs), list(gradients), [b.detach() for b in module.buffers()]]


def check_optimizer(info, name: str, dtype: torch.dtype, compiled: bool) -> None:
    """Parameters after a few steps, for each way of running the optimizer and each of its configurations."""
    from torch.testing._internal.common_optimizers import _get_optim_inputs_including_global_cliquey_kwargs

    if info.only_supports_sparse_grads:
        raise NotImplementedError("SparseAdam takes sparse gradients only, and the device has no sparse layout")
    made = _get_optim_inputs_including_global_cliquey_kwargs("tpu", dtype, info, skip=("differentiable",))
    for optimizer_input in made[:: max(1, len(made) // OPTIMIZER_SAMPLES)]:
        kwargs = dict(optimizer_input.kwargs)
        want = _steps(info.optim_cls, kwargs, dtype, "cpu", False, info.step_requires_closure)
        got = _steps(info.optim_cls, kwargs, dtype, "tpu", compiled, info.step_requires_closure)
        check(got, want, lambda: _steps(info.optim_cls, kwargs, torch.float64, "cpu", False, info.step_requires_closure),
              name, optimizer_input.desc)  # fmt: skip


def _steps(optimizer_class, kwargs, dtype, device, compiled, closure_needed):
    generator = torch.Generator().manual_seed(0)
    # Muon takes matrices only.
    shapes = ((3, 4), (5, 2)) if optimizer_class is torch.optim.Muon else ((3, 4), (5,))
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    goal = [torch.randn(t.shape, generator=generator).to(device, dtype) for t in start]
    parameters = [t.to(device, dtype).requires_grad_() for t in start]
    kwargs = tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, kwargs)
    if device == "cpu":
        kwargs.pop("capturable", None)  # for devices only; it does not change the numbers
    optimizer = optimizer_class(parameters, **kwargs)

    def closure():
        optimizer.zero_grad()
        loss = sum(((p - g) ** 2).sum() for p, g in zip(parameters, goal))
        loss.backward()
        return loss

    def step():
        return optimizer.step(closure) if closure_needed else optimizer.step()

    run = torch.compile(step, backend="tpu") if compiled and not closure_needed else step
    for _ in range(STEPS):
        closure()
        run()
    return [p.detach() for p in parameters]
