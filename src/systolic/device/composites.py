"""Operators that are made of other operators here, because the sizes of their results depend on values."""

from __future__ import annotations

import torch

aten = torch.ops.aten
_DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


def lstsq(self, b, rcond=None, *, driver=None):
    """Least squares by the singular values: (solution, residuals, rank, singular values).

    As on the CPU, the rank is empty for ``gels``, the singular values for ``gels`` and ``gelsy``, and the
    residuals where the system is not overdetermined with full rank.

    Raises:
        RuntimeError: the shapes do not fit, or the driver is unknown.
    """
    driver = driver or "gelsy"
    if driver not in _DRIVERS:
        raise RuntimeError(
            f"torch.linalg.lstsq: parameter `driver` should be one of (gels, gelsy, gelsd, gelss), got {driver!r}"
        )
    if self.dim() < 2:
        raise RuntimeError("torch.linalg.lstsq: input must have at least 2 dimensions.")
    if b.dim() < 1:
        raise RuntimeError("torch.linalg.lstsq: other must have at least 1 dimension.")
    if self.dtype != b.dtype:
        raise RuntimeError(
            f"torch.linalg.lstsq: Expected input and other to have the same dtype, but got input's dtype "
            f"{self.dtype} and other's dtype {b.dtype}"
        )
    vector = b.dim() == 1 or (b.dim() == self.dim() - 1 and b.shape == self.shape[:-1])
    right = b.unsqueeze(-1) if vector else b
    rows, columns = self.shape[-2:]
    if right.shape[-2] != rows:
        raise RuntimeError("torch.linalg.lstsq: input.size(-2) should match other.size(-2)")
    batch = torch.broadcast_shapes(self.shape[:-2], right.shape[:-2])
    self, right = self.expand(*batch, rows, columns), right.expand(*batch, *right.shape[-2:])
    real = self.real.dtype if self.is_complex() else self.dtype

    def empty(dtype=real):
        return torch.empty(0, dtype=dtype, device=self.device)

    if self.numel() == 0:
        solution = right.new_zeros(*batch, columns, right.shape[-1])
        rank, full = torch.zeros(batch, dtype=torch.int64, device=self.device), columns == 0
        values = torch.zeros(*batch, min(rows, columns), dtype=real, device=self.device)
    else:
        u, values, vh = torch.linalg.svd(self, full_matrices=False)
        limit = torch.finfo(real).eps * max(rows, columns) if rcond is None else rcond
        keep = values > limit * values[..., :1]
        inverse = torch.where(keep, 1 / torch.where(keep, values, 1), 0)
        solution = vh.mH @ (inverse.unsqueeze(-1) * (u.mH @ right))
        rank = keep.sum(-1)
        full = driver == "gels" or bool((rank == columns).all())
    residuals = empty()
    if rows > columns and full:
        residuals = (self @ solution - right).abs().square().sum(-2)
    if vector:
        solution = solution.squeeze(-1)
    if driver == "gels":
        rank = empty(torch.int64)
    return solution, residuals, rank, values if driver in ("gelsd", "gelss") else empty()


def lstsq_out(self, b, rcond=None, *, driver=None, solution, residuals, rank, singular_values):
    """:func:`lstsq` into given tensors."""
    targets = (solution, residuals, rank, singular_values)
    for target, result in zip(targets, lstsq(self, b, rcond, driver=driver)):
        target.resize_(result.shape).copy_(result)
    return targets


def _numbers(lengths) -> list[int]:
    return lengths.reshape(-1).tolist()


def ctc_loss(log_probs, targets, input_lengths, target_lengths, *rest):
    """CTC loss whose lengths are tensors."""
    return aten._ctc_loss(log_probs, targets, _numbers(input_lengths), _numbers(target_lengths), *rest)


def ctc_loss_backward(grad, log_probs, targets, input_lengths, target_lengths, *rest):
    """The gradient of :func:`ctc_loss`."""
    lengths = _numbers(input_lengths), _numbers(target_lengths)
    return aten._ctc_loss_backward(grad, log_probs, targets, *lengths, *rest)


KERNELS = {
    "linalg_lstsq": lstsq,
    "linalg_lstsq.out": lstsq_out,
    "_ctc_loss.Tensor": ctc_loss,
    "_ctc_loss_backward.Tensor": ctc_loss_backward,
}
