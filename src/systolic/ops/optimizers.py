"""Fused optimizers and gradient scaling: one program updates all parameters of a step.

Arithmetic is in float32 for 16-bit tensors; what depends on the step count alone is in float64, as in
PyTorch's kernels.  ``grad_scale`` divides the gradients, which then keep the unscaled values;
``found_inf`` of 1 leaves everything as it was.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import torch

from .numerics import cast, opmath
from .registry import lower


def _number(x):
    return cast(x, np.dtype(np.float64)).reshape(())


def _gradients(grads, params, grad_scale, maximize):
    """(gradients to use, gradients to keep), both in the parameters' arithmetic type."""
    kept = [g.astype(opmath(p.dtype)) for g, p in zip(grads, params)]
    if grad_scale is not None:
        kept = [g / grad_scale.reshape(()).astype(g.dtype) for g in kept]
    return [-g for g in kept] if maximize else kept, kept


def _unless_found(found_inf, new, old):
    """``new`` cast to the types of ``old``; ``old`` where an infinity or NaN was found."""
    new = [n.astype(o.dtype) for n, o in zip(new, old)]
    if found_inf is None:
        return new
    return [jnp.where(found_inf.reshape(()) == 1, o, n) for n, o in zip(new, old)]


def _adam(decoupled: bool):
    def lowering(self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2, weight_decay,
                 eps, amsgrad, maximize, grad_scale=None, found_inf=None):  # fmt: skip
        rate, beta1, beta2, decay, eps = (_number(x) for x in (lr, beta1, beta2, weight_decay, eps))
        used, kept = _gradients(grads, self, grad_scale, maximize)
        params, averages, squares, largest = [], [], [], []
        for i, (param, grad) in enumerate(zip(self, used)):
            t = grad.dtype
            step = _number(state_steps[i])
            size = (rate / (1 - beta1**step)).astype(t)
            root = jnp.sqrt(1 - beta2**step).astype(t)
            p, m, v = param.astype(t), exp_avgs[i].astype(t), exp_avg_sqs[i].astype(t)
            if decoupled:
                p = p * (1 - rate * decay).astype(t)
            else:
                grad = grad + p * decay.astype(t)
            m = m + (1 - beta1).astype(t) * (grad - m)
            v = v * beta2.astype(t) + (1 - beta2).astype(t) * grad * grad
            top = v
            if amsgrad:
                top = jnp.maximum(max_exp_avg_sqs[i].astype(t), v)
                largest.append(top)
            params.append(p - size * m / (jnp.sqrt(top) / root + eps.astype(t)))
            averages.append(m)
            squares.append(v)
        if not amsgrad:
            largest = list(max_exp_avg_sqs)
        return _unless_found(
            found_inf,
            [*params, *kept, *averages, *squares, *largest],
            [*self, *grads, *exp_avgs, *exp_avg_sqs, *max_exp_avg_sqs],
        )

    return lowering


lower("_fused_adam")(_adam(decoupled=False))
lower("_fused_adamw")(_adam(decoupled=True))


@lower("_fused_sgd")
def fused_sgd(self, grads, momentum_buffer_list, weight_decay, momentum, lr, dampening, nesterov, maximize,
              is_first_step, grad_scale=None, found_inf=None):  # fmt: skip
    rate, decay, momentum, dampening = (_number(x) for x in (lr, weight_decay, momentum, dampening))
    used, kept = _gradients(grads, self, grad_scale, maximize)
    params, buffers = [], []
    for i, (param, grad) in enumerate(zip(self, used)):
        t = grad.dtype
        p = param.astype(t)
        grad = grad + p * decay.astype(t)
        if momentum_buffer_list:
            old = momentum_buffer_list[i].astype(t)
            buffer = grad if is_first_step else old * momentum.astype(t) + grad * (1 - dampening).astype(t)
            buffers.append(buffer)
            grad = grad + buffer * momentum.astype(t) if nesterov else buffer
        params.append(p - rate.astype(t) * grad)
    return _unless_found(found_inf, [*params, *kept, *buffers], [*self, *grads, *momentum_buffer_list])


def _adagrad(writes_steps: bool):
    """``writes_steps``: the schema marks the step counts as written too; they stay as they are."""

    def lowering(self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps, maximize, grad_scale=None,
                 found_inf=None):  # fmt: skip
        rate, rate_decay, decay, eps = (_number(x) for x in (lr, lr_decay, weight_decay, eps))
        used, kept = _gradients(grads, self, grad_scale, maximize)
        params, sums = [], []
        for i, (param, grad) in enumerate(zip(self, used)):
            t = grad.dtype
            p = param.astype(t)
            size = (rate / (1 + (_number(state_steps[i]) - 1) * rate_decay)).astype(t)
            grad = grad + p * decay.astype(t)
            total = state_sums[i].astype(t) + grad * grad
            params.append(p - size * grad / (jnp.sqrt(total) + eps.astype(t)))
            sums.append(total)
        updated = _unless_found(found_inf, [*params, *kept, *sums], [*self, *grads, *state_sums])
        return [*updated, *state_steps] if writes_steps else updated

    return lowering


lower("_fused_adagrad")(_adagrad(writes_steps=True))
lower("_fused_adagrad.tensor_lr")(_adagrad(writes_steps=False))


@lower("_amp_foreach_non_finite_check_and_unscale")
def check_and_unscale(self, found_inf, inv_scale):
    """Each tensor times ``inv_scale``; ``found_inf`` becomes 1 if any element is infinite or NaN."""
    bad = [~jnp.all(jnp.isfinite(x)) for x in self]
    found = jnp.where(jnp.any(jnp.stack(bad)), jnp.ones_like(found_inf), found_inf) if bad else found_inf
    factor = inv_scale.reshape(())
    scaled = [(x.astype(opmath(x.dtype)) * factor.astype(opmath(x.dtype))).astype(x.dtype) for x in self]
    return [*scaled, found]


@lower("_amp_update_scale")
def update_scale(self, growth_tracker, found_inf, scale_growth_factor, scale_backoff_factor, growth_interval):
    """(new scale, new count of good steps): grow after ``growth_interval`` good steps, back off after a bad one."""
    found = found_inf.reshape(()) > 0
    good = growth_tracker + 1
    full = good == growth_interval
    grown = self * _number(scale_growth_factor).astype(self.dtype)
    grown = jnp.where(jnp.isfinite(grown), grown, self)
    backed_off = self * _number(scale_backoff_factor).astype(self.dtype)
    scale = jnp.where(found, backed_off, jnp.where(full, grown, self))
    return scale, jnp.where(found | full, jnp.zeros_like(good), good)


def _same_lengths(self, grads, *states, **_):
    """What PyTorch lacks: a shape rule for optimizers that only write their arguments."""
    lists = [s for s in states if isinstance(s, (list, tuple)) and s]
    if any(len(x) != len(self) for x in (grads, *lists)):
        raise RuntimeError(
            f"fused optimizers need lists of one length: got {[len(x) for x in (self, grads, *lists)]} tensors"
        )


_meta = torch.library.Library("aten", "IMPL")
for _name in ("_fused_adam_.tensor_lr", "_fused_adamw_.tensor_lr", "_fused_sgd_", "_fused_sgd_.tensor_lr",
              "_fused_adagrad_", "_fused_adagrad_.tensor_lr"):  # fmt: skip
    if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{_name}", "Meta"):
        _meta.impl(_name, _same_lengths, "Meta")
