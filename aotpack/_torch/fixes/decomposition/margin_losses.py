"""Rules for margin losses, with the values, sizes and gradients of eager's kernels."""

from __future__ import annotations

import contextlib

import torch

from ...api.dispatch_rules import ruled
from ..applying import counted


def ignore_labels_after_the_end() -> contextlib.AbstractContextManager[None]:
    """Leave labels after the first -1 out of ``multilabel_margin_loss``."""
    operator = torch.ops.aten.multilabel_margin_loss_forward.default
    return ruled({operator: counted("decomposition-labels-after-the-end", _multilabel_margin_loss)})


def trace_multi_margin_loss() -> contextlib.AbstractContextManager[None]:
    """Give ``multi_margin_loss`` of one label no dimension, and no gradient where the margin is just met."""
    operator = torch.ops.aten.multi_margin_loss.default
    return ruled({operator: counted("decomposition-margins-just-met", _multi_margin_loss)})


def _multilabel_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and which classes are labels."""
    torch._check(x.dim() in (1, 2) and x.shape[-1] != 0, lambda: f"Expected non-empty vector or matrix, got {list(x.shape)}")
    torch._check(target.shape == x.shape, lambda: f"inconsistent target size: {list(target.shape)} for input {list(x.shape)}")
    scores, labels = torch.atleast_2d(x), torch.atleast_2d(target)
    count = scores.shape[1]
    classes = torch.arange(count, device=x.device)
    is_label = classes < torch.where(labels == -1, classes, count).amin(-1, keepdim=True)
    is_target = (classes == torch.where(is_label, labels, -1).unsqueeze(-1)).any(1)
    of_labels = scores.gather(-1, torch.where(is_label, labels, 0))
    margins = 1 - of_labels.unsqueeze(2) + scores.unsqueeze(1)
    margins = torch.where(margins > 0, margins, 0)  # NaN counts nothing, unlike relu's
    losses = torch.where(is_label.unsqueeze(2) & ~is_target.unsqueeze(1), margins, 0).sum((1, 2)) / count
    return _reduced(losses, reduction, alone=x.dim() == 1), is_target.to(x.dtype).reshape(target.shape)


def _multi_margin_loss(
    x: torch.Tensor, target: torch.Tensor, p: int = 1, margin: float = 1.0, weight: torch.Tensor | None = None, reduction: int = 1
) -> torch.Tensor:
    scores, labels = torch.atleast_2d(x), torch.atleast_1d(target)
    examples, count = scores.shape
    torch._check(p in (1, 2), lambda: "only p == 1 and p == 2 supported")
    torch._check(x.dim() <= 2 and count != 0, lambda: f"Expected non-empty vector or matrix, got {list(x.shape)}")
    torch._check(labels.dim() == 1 and labels.numel() == examples, lambda: f"inconsistent target size, got: {list(target.shape)}")
    if weight is not None:
        torch._check(
            weight.dim() == 1 and weight.numel() == count, lambda: f"inconsistent weight size, got: {list(weight.shape)}"
        )
    margins = margin - scores.gather(1, labels.unsqueeze(1)) + scores
    margins = torch.where(margins > 0, margins, 0)  # NaN counts nothing, unlike relu's
    margins = margins if p == 1 else margins * margins
    margins = margins if weight is None else margins * weight[labels].unsqueeze(1)
    others = torch.arange(count, device=x.device) != labels.unsqueeze(1)
    losses = torch.where(others, margins, 0).sum(1) / count
    return _reduced(losses, reduction, alone=target.dim() == 0)


def _reduced(losses: torch.Tensor, reduction: int, *, alone: bool) -> torch.Tensor:
    """The losses after the reduction ``none``, ``mean`` or ``sum``. A loss that is ``alone`` has no dimension."""
    if reduction == 0:
        return losses.squeeze(0) if alone else losses
    return losses.mean() if reduction == 1 else losses.sum()
