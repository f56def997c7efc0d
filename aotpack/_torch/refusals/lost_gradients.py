"""Rejects uses of autograd in a model that a trace without Dynamo would silently drop from the
graphs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._dynamo import symbolic_convert
from torch.autograd import function as functions
from torch.autograd.graph import saved_tensors_hooks

from ..api.counting import count_call
from ..api.own_gradients import refused_own_gradients
from ..api.patching import hooked


class LostGradientError(Exception):
    """A trace would drop a gradient that the model defines or changes itself."""


@contextlib.contextmanager
def kept_gradients() -> Iterator[None]:
    """While torch.export traces, reject uses of autograd that the exported graph would drop.

    These are functions with a backward of their own, hooks on gradients, control flow in
    ``no_grad``, and gradients that the model computes itself. For the latter, torch.export drops
    whether they can be differentiated again (``create_graph``).

    Raises:
        LostGradientError: names the construct.
        OwnGradientError: the model computes gradients itself.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(refused_own_gradients())
        if not torch.is_grad_enabled():
            yield
            return
        stack.enter_context(_refused_own_backwards())
        for name in _HOOKS:
            stack.enter_context(hooked("aot-lost-gradients", torch.Tensor, name, _refusal_of(name)))
        call = torch._ops.HigherOrderOperator.__call__
        stack.enter_context(hooked("aot-lost-gradients", torch._ops.HigherOrderOperator, "__call__", _with_gradients_on(call)))
        yield


@contextlib.contextmanager
def plain_saving() -> Iterator[None]:
    """While a model is traced without Dynamo, reject hooks on saved tensors: the partitioner
    chooses what is saved.

    Checkpoints consist of such hooks, but are allowed here (:mod:`.checkpoint`).

    Raises:
        LostGradientError: the model enters such hooks.
    """
    enter = saved_tensors_hooks.__enter__

    def entered(hooks: saved_tensors_hooks) -> None:
        if torch.is_grad_enabled() and not type(hooks).__module__.startswith("torch.utils.checkpoint"):
            raise LostGradientError(f"enters {type(hooks).__qualname__}, and a bundle cannot keep hooks on saved tensors")
        enter(hooks)

    with hooked("aot-lost-gradients", saved_tensors_hooks, "__enter__", entered):
        yield


_HOOKS = ("register_hook", "register_post_accumulate_grad_hook")


@contextlib.contextmanager
def _refused_own_backwards() -> Iterator[None]:
    """Reject every ``autograd.Function`` that is applied.

    ``apply`` may be stored under another name (``swish = Swish.apply``), and from torch 2.14 on it
    is not Python code. In every release it reads the class' attribute ``_backward_cls``, the class
    of its node, so that read is watched. Inside transforms torch calls ``custom_function_call``
    instead.
    """
    look_up: Callable[[type, str], Any] = functions.FunctionMeta.__getattribute__

    def looked_up(kind: type, name: str) -> Any:
        if name == "_backward_cls":
            count_call("aot-lost-gradients")
            _refuse_own_backward(kind)
        return look_up(kind, name)

    transformed: Callable[..., Any] = vars(functions)[_TRANSFORMED]

    def called(kind: Any, *args: Any, **kwargs: Any) -> Any:
        _refuse_own_backward(kind)
        return transformed(kind, *args, **kwargs)

    with (
        hooked("aot-lost-gradients", functions.FunctionMeta, "__getattribute__", looked_up),
        hooked("aot-lost-gradients", functions, _TRANSFORMED, called),
    ):
        yield


_TRANSFORMED = "custom_function_call"


def _refuse_own_backward(kind: Any) -> None:
    # torch's own functions belong to control flow, which it traces through; hooks of modules are
    # functions of torch.nn.
    foreign = kind.__module__.startswith("torch.nn.") or not kind.__module__.startswith("torch.")
    if foreign and torch.is_grad_enabled():
        raise LostGradientError(f"calls the autograd.Function {kind.__qualname__}, whose backward torch.export leaves out")


def _with_gradients_on(call: Callable[..., Any]) -> Callable[..., Any]:
    running: list[torch._ops.HigherOrderOperator] = []  # nested calls may run without gradients, as in Dynamo

    def called(operator: torch._ops.HigherOrderOperator, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() and not running and not _dynamo_translates():
            raise LostGradientError(
                f"calls {operator.name()} under no_grad, which torch.export does not record: its result would require a gradient"
            )
        running.append(operator)
        try:
            return call(operator, *args, **kwargs)
        finally:
            running.pop()

    return called


def _dynamo_translates() -> bool:
    """Whether Dynamo translates code. It turns gradients off for its own calls of operators.

    From torch 2.15 on the whole of torch.export has a ``CompileContext``, which therefore tells nothing.
    """
    return getattr(symbolic_convert.tls, "current_tx", None) is not None


def _refusal_of(name: str) -> Callable[..., Any]:
    def refused(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        raise LostGradientError(f"calls {name} of a tensor: torch.export leaves out hooks on gradients")

    return refused
