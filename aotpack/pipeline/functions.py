"""Methods of the model that are built beside its call: what they are traced from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MethodType
from typing import Any

import torch

from aotpack_loader.errors import AotpackError, BuildError, Problem

from ..capture import MethodModule
from ..model.method import FORWARD, Method
from .context import BuildContext, Example, with_inputs
from .options import Options
from .progress import Run


def with_call(
    options: Options, model: Any, args: tuple[Any, ...] | None, kwargs: dict[str, Any], dynamic_shapes: Any
) -> tuple[Options, Example]:
    """Return the options with the model's own call among its methods, and the example of that call.

    Without ``args`` and ``kwargs``, the model's own call is built only if it is among the methods.

    Raises:
        BuildError: the call has two examples, or an option needs one.
    """
    example = Example(model, args or (), kwargs, dynamic_shapes)
    if not isinstance(options.methods, Mapping):
        return options, example
    own = options.methods.get(FORWARD)
    problems = []
    if args is None and not kwargs:
        if own is not None:
            return options, Example(model, own.args, dict(own.kwargs), own.dynamic_shapes)
        asked = [name for name in ("self_test", "warm_up") if getattr(options, name)]
        problems = [Problem(name, "calls the model itself, which has no example inputs") for name in asked]
    elif own is not None:
        problems = [Problem(f"methods[{FORWARD!r}]", "has example inputs of the model's own call, and so has args")]
    else:
        call = Method(FORWARD, example.args, kwargs, dynamic_shapes=dynamic_shapes)
        options = replace(options, methods={FORWARD: call, **options.methods})
    if problems:
        raise BuildError("The build's options are not valid.", problems)
    return options, example


def contexts(run: Run, context: BuildContext, original: object) -> dict[str, BuildContext]:
    """Return what the methods are traced from, by the name of the function; the model's own call has an empty one.

    ``context`` is that of the model, which is the ``original`` or a copy of it.

    Raises:
        BuildError: the model has no such function, or example inputs do not fit.
    """
    found = {"": context}
    functions = context.options.functions
    if functions and context.model is not context.module:
        raise BuildError("Only a torch.nn.Module has methods.", hint="Build each function as a bundle of its own.")
    for name, method in functions.items():
        with naming(name):
            module = MethodModule(context.module, _function(method, context.module, original))
            example = Example(module, method.args, dict(method.kwargs), method.dynamic_shapes)
            found[name] = with_inputs(run, replace(context, model=module, module=module, function=name), example)
    return found


def _function(method: Method, model: torch.nn.Module, original: object) -> Callable[..., Any] | str:
    """The function of a method, which takes the model first, or the name of one of the model's."""
    function = method.function
    if isinstance(function, str):
        if not callable(getattr(model, function, None)):
            raise BuildError(
                f"{type(model).__name__} has no method or submodule {function!r}.",
                hint="Give a function that takes the model first: Method(lambda model, x: model.encoder(x), (x,)).",
            )
        return function
    if isinstance(function, MethodType) and function.__self__ is original:
        return function.__func__
    return function


@contextlib.contextmanager
def naming(function: str) -> Iterator[None]:
    """Let errors of the block say which method of the model they are about."""
    try:
        yield
    except AotpackError as error:
        if not function:
            raise
        named = type(error)(f"methods[{function!r}]: {error.summary}", error.problems, hint=error.hint)
        raise named.with_traceback(error.__traceback__) from error.__cause__
