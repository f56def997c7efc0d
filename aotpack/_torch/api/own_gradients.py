"""Handles gradients that a model computes itself while it runs (``torch.autograd.grad``,
``backward``).

A direct trace runs autograd and follows these calls. ``torch.export`` does not: it drops whether
their results can be differentiated again (``create_graph``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from .patching import hooked


class OwnGradientError(Exception):
    """The model computes a gradient in a way that a bundle cannot hold."""


def refused_own_gradients() -> contextlib.AbstractContextManager[Any]:
    """Reject a model that computes gradients while it runs."""
    return hooked("aot-own-gradients", torch.autograd, _ENGINE, _refuse)


def refused_accumulation() -> contextlib.AbstractContextManager[Any]:
    """Reject ``backward``: it adds to ``.grad`` of tensors such as parameters, which a graph cannot
    express.
    """
    return _engine(_without_accumulation)


@contextlib.contextmanager
def traced_own_gradients() -> Iterator[None]:
    """While a model is traced directly, keep autograd graphs that ``torch.autograd.grad`` would
    free.

    A joint graph holds gradients of every result, even of a result whose graph the model has freed.
    Eager fails if a caller computes these gradients. The model itself sees no difference.
    """
    with _engine(_retaining), UnchangedRequiresGrad():
        yield


class UnchangedRequiresGrad(TorchFunctionMode):
    """Ignores ``x.requires_grad = True`` if ``x`` requires a gradient already: in a trace,
    arguments are not leaves.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _SET_REQUIRES_GRAD and args[0].requires_grad == args[1]:
            return None
        return func(*args, **(kwargs or {}))


_SET_REQUIRES_GRAD = torch.Tensor.requires_grad.__set__  # type: ignore[attr-defined]
_ENGINE = "_engine_run_backward"


def _engine(around: Callable[..., Any]) -> contextlib.AbstractContextManager[Any]:
    run = getattr(torch.autograd, _ENGINE)
    return hooked("aot-own-gradients", torch.autograd, _ENGINE, lambda *args, **kwargs: around(run, *args, **kwargs))


def _refuse(*args: Any, **kwargs: Any) -> None:
    raise OwnGradientError("computes gradients while it runs (torch.autograd.grad), and torch.export ignores create_graph")


def _without_accumulation(run: Callable[..., Any], *args: Any, accumulate_grad: bool, **kwargs: Any) -> Any:
    if accumulate_grad:
        raise OwnGradientError(
            "calls backward() while it runs, which adds to .grad of parameters; "
            "use torch.autograd.grad(loss, inputs, create_graph=True), which returns the gradients"
        )
    return run(*args, accumulate_grad=accumulate_grad, **kwargs)


def _retaining(run: Callable[..., Any], outputs: Any, gradients: Any, retain_graph: bool, *args: Any, **kwargs: Any) -> Any:
    return run(outputs, gradients, True, *args, **kwargs)
