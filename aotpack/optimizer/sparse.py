"""Steps with sparse gradients: which optimizers of eager make them, and what they are for the rows of a gradient alone."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.optim import Optimizer

from aotpack_loader.format import schema

from .stepping import step


class RowAdam(torch.optim.SparseAdam):
    """``SparseAdam`` where the parameter, its state and the gradient are the rows of a sparse gradient, as dense tensors.

    Source: ``sparse_adam`` in torch/optim/_functional.py.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
                state["step"] += 1
                gradient = -parameter.grad if group["maximize"] else parameter.grad
                average, square = state["exp_avg"], state["exp_avg_sq"]
                average.add_((gradient - average) * (1 - beta1))
                square.add_((gradient.pow(2) - square) * (1 - beta2))
                size = group["lr"] * (1 - beta2 ** state["step"]) ** 0.5 / (1 - beta1 ** state["step"])
                parameter.add_(-size * (average / (square.sqrt() + group["eps"])))


OF_ROWS: Final[dict[type[Optimizer], type[Optimizer]]] = {torch.optim.SparseAdam: RowAdam}
"""Optimizers that take sparse gradients alone, and those that make the same steps of dense rows."""

Ready = Callable[[torch.Tensor, bool], Optimizer]
"""Makes an optimizer of a parameter; True: the user's own, False: the one that is traced."""


def sparse_gradients(ready: Ready, dtype: torch.dtype) -> schema.Sparse:
    """Whether steps take sparse gradients, and are then steps of the rows that a gradient has, with all else unchanged.

    Eager's own steps are compared with those of the rows. An optimizer whose steps with sparse gradients do more (an average
    of all weights, momentum) takes none in a bundle.
    """
    try:
        with warnings.catch_warnings():  # torch's own steps make sparse tensors without checks
            warnings.simplefilter("ignore")
            return _found(ready, dtype)
    except Exception:  # most optimizers raise for a sparse gradient, each in its own way
        return "never"


def _found(ready: Ready, dtype: torch.dtype) -> schema.Sparse:
    whole = torch.linspace(1, 2, 6).reshape(3, 2).to(dtype)
    rows, other = torch.tensor([0, 2]), torch.tensor([1])
    part, begun = whole[rows], whole[other]
    values = torch.linspace(-1, 1, 4).reshape(2, 2).to(dtype)
    of_whole, of_part = ready(whole, True), ready(part, False)
    for _ in range(2):
        whole.grad, part.grad = sparse_rows(rows, values, whole), values.clone()
        step(of_whole)
        step(of_part)
    before = _of(of_whole, whole, rows)
    if not _equal(before, _of(of_part, part, slice(None)), rtol=1e-2) or not torch.equal(whole[other], begun):
        return "never"
    whole.grad = sparse_rows(other, values[:1], whole)
    step(of_whole)
    kept = {name: value for name, value in before.items() if isinstance(value, torch.Tensor) and value.dim()}
    after = _of(of_whole, whole, rows)
    if not _equal(kept, {name: after[name] for name in kept}, rtol=0):
        return "never"
    try:
        whole.grad = torch.ones_like(whole)
        step(of_whole)
    except RuntimeError:
        return "required"
    return "allowed"


def sparse_rows(rows: torch.Tensor, values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A sparse tensor of the sizes of ``like`` that has ``values`` in some rows."""
    return torch.sparse_coo_tensor(rows[None], values.clone(), like.shape, check_invariants=True)


def _of(optimizer: Optimizer, parameter: torch.Tensor, rows: Any) -> dict[str, Any]:
    """The rows of a parameter and of its state, and what of its state has no rows."""
    state = {"": parameter, **optimizer.state[parameter]}
    return {
        name: x[rows].clone() if isinstance(x, torch.Tensor) and x.shape == parameter.shape else copy.deepcopy(x)
        for name, x in state.items()
        if x is not None
    }


def _equal(one: dict[str, Any], other: dict[str, Any], *, rtol: float) -> bool:
    """Whether two states are equal up to rounding."""
    if one.keys() != other.keys():
        return False
    pairs = [(torch.as_tensor(x), torch.as_tensor(other[name])) for name, x in one.items()]
    return all(
        x.shape == y.shape and x.layout is y.layout and torch.allclose(x.to(y.dtype), y, rtol=rtol, atol=0) for x, y in pairs
    )
