"""Wraps functions as modules, because the front ends trace modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch


class FunctionModule(torch.nn.Module):
    """A module without state that calls a plain function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)

    @property
    def function(self) -> Callable[..., Any]:
        """The user's function."""
        return self._function


class MethodModule(torch.nn.Module):
    """A module whose call is a function of ``model``, with the model's own parameters, buffers and submodules.

    ``function`` takes the model before its other arguments, or is the name of a method or submodule of the model.
    """

    _aotpack_model: torch.nn.Module
    _aotpack_function: Callable[..., Any] | str

    def __init__(self, model: torch.nn.Module, function: Callable[..., Any] | str) -> None:
        # Names that no parameter or submodule of a model has, because the attributes of both are in one namespace.
        vars(self).update(_aotpack_model=model, _aotpack_function=function)
        training = model.training
        super().__init__()
        self._parameters, self._buffers, self._modules = model._parameters, model._buffers, model._modules
        self._non_persistent_buffers_set = model._non_persistent_buffers_set
        self.training = training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self._aotpack_function, str):
            return getattr(self._aotpack_model, self._aotpack_function)(*args, **kwargs)
        return self._aotpack_function(self._aotpack_model, *args, **kwargs)

    def train(self, mode: bool = True) -> MethodModule:
        """Set the mode of the model."""
        self._aotpack_model.train(mode)
        return self

    @property
    def parameters_of_call(self) -> list[inspect.Parameter]:
        """The parameters of the function, without the model.

        Raises:
            ValueError, TypeError: Python does not know them.
        """
        if not isinstance(self._aotpack_function, str):
            return list(inspect.signature(self._aotpack_function).parameters.values())[1:]
        method = getattr(self._aotpack_model, self._aotpack_function)
        called = method.forward if isinstance(method, torch.nn.Module) else method
        return list(inspect.signature(called).parameters.values())


def _mode(module: MethodModule) -> bool:
    return module._aotpack_model.training


def _set_mode(module: MethodModule, mode: bool) -> None:
    module._aotpack_model.training = mode


# Not in the class: torch declares the attribute as a plain one.
MethodModule.training = property(_mode, _set_mode)  # type: ignore[assignment]
