"""Gradients that a model computes itself while it runs: calls of autograd's engine (``torch.autograd.grad``, ``backward``).

Tracing runs autograd and follows these calls. ``torch.export`` does not: it forgets whether their results can be
differentiated again (``create_graph``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode


class OwnGradientError(Exception):
    """A gradient that the model computes itself cannot be in a bundle this way."""


def refused_own_gradients() -> contextlib.AbstractContextManager[Any]:
    """Refuse a model that computes gradients while it runs."""
    return mock.patch.object(torch.autograd, _ENGINE, _refuse)


def refused_accumulation() -> contextlib.AbstractContextManager[Any]:
    """Refuse ``backward``: it adds to ``.grad`` of tensors, parameters among them, which no graph holds."""
    return _engine(_without_accumulation)


@contextlib.contextmanager
def traced_own_gradients() -> Iterator[None]:
    """While a model is traced as it runs: keep what ``torch.autograd.grad`` would free.

    A joint graph holds gradients of every result, also of one whose graph the model has freed. Eager fails where a caller
    asks for these; the model itself sees no difference.
    """
    with _engine(_retaining), UnchangedRequiresGrad():
        yield


class UnchangedRequiresGrad(TorchFunctionMode):
    """Lets ``x.requires_grad = True`` pass where ``x`` requires a gradient already: a trace's arguments are no leaves."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _SET_REQUIRES_GRAD and args[0].requires_grad == args[1]:
            return None
        return func(*args, **(kwargs or {}))


_SET_REQUIRES_GRAD = torch.Tensor.requires_grad.__set__  # type: ignore[attr-defined]
_ENGINE = "_engine_run_backward"


def _engine(around: Callable[..., Any]) -> contextlib.AbstractContextManager[Any]:
    run = getattr(torch.autograd, _ENGINE)
    return mock.patch.object(torch.autograd, _ENGINE, lambda *args, **kwargs: around(run, *args, **kwargs))


def _refuse(*args: Any, **kwargs: Any) -> None:
    raise OwnGradientError("computes gradients while it runs (torch.autograd.grad), and torch.export forgets create_graph")


def _without_accumulation(run: Callable[..., Any], *args: Any, accumulate_grad: bool, **kwargs: Any) -> Any:
    if accumulate_grad:
        raise OwnGradientError(
            "calls backward() while it runs, which adds to .grad of parameters; "
            "use torch.autograd.grad(loss, inputs, create_graph=True), which returns the gradients"
        )
    return run(*args, accumulate_grad=accumulate_grad, **kwargs)


def _retaining(run: Callable[..., Any], outputs: Any, gradients: Any, retain_graph: bool, *args: Any, **kwargs: Any) -> Any:
    return run(outputs, gradients, True, *args, **kwargs)
