"""Traces dictionaries and lists among the arguments that the model changes or returns.

A run on fake tensors finds them first. A trace contains tensors only. So while it is traced, the
model gets its own copies of these containers. A front end follows them like containers that the
model creates. The new items are returned beside the model's result, and the loader then changes
the caller's containers.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from types import FrameType, MethodType
from typing import Any

import torch

from aotpack_loader.errors import Problem, UnsupportedError

from .. import origin
from .._torch.api import fake_tensors, messages
from .._torch.tracing import fake_run
from .._torch.tracing.state_assignments import kept_state_changes
from .container_changes import Containers, Inside, Run, is_container, shown
from .dry_run import repeat
from .dry_run.eager import run_on_copies


def find(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, on_copies: bool = False) -> Containers:
    """Run the model on fake tensors and return what it does to containers among its arguments.

    If that run fails, the result is empty, and a front end reports the error later. With
    ``on_copies`` the model then runs on copies of its arguments instead.

    Raises:
        UnsupportedError: the model changes a container other than a dictionary or list, or one
            that is passed twice.
    """
    if not any(is_container(value) for value in (*args, *kwargs.values())):
        return Containers()
    with repeat.unchanged(model), kept_state_changes(model), messages.quiet_torch_logs(), _watched(model) as seen:
        try:
            fake_run.run_on_fake_tensors(fake_tensors.fake_mode_with_shapes(), model, args, kwargs, strict=False)
        except Exception:  # a front end reports the error later
            if not on_copies:
                return Containers()
            run_on_copies(model, args, kwargs)
    containers, problems = seen[0].after()
    problems += _problems_of_twice(model, containers, (args, kwargs))
    if problems:
        with repeat.unchanged(model), kept_state_changes(model), messages.quiet_torch_logs(), _lines(model) as lines:
            fake_run.run_on_fake_tensors(fake_tensors.fake_mode_with_shapes(), model, args, kwargs, strict=False)
        raise _refusal(problems, lines)
    return containers


def _refusal(problems: Sequence[Problem], lines: Sequence[str] = ()) -> UnsupportedError:
    where = f" ({'; '.join(lines)})" if lines else ""
    return UnsupportedError(
        "The model changes arguments in a way that a bundle cannot repeat.",
        [Problem(problem.where, problem.message + where) for problem in problems],
        hint="Return the new values; or pass dictionaries and lists, each of its own, and change those.",
    )


@contextlib.contextmanager
def refused(model: torch.nn.Module) -> Iterator[None]:
    """Refuse a trace in which the model changes containers that :func:`find` did not report.

    Raises:
        UnsupportedError: names these containers.
    """
    with _watched(model) as seen:
        yield
    if seen:
        containers, problems = seen[-1].after()
        problems += [Problem(shown(model, changed.keys), "is changed") for changed in containers.changed]
        if problems:
            raise _refusal(problems)


@contextlib.contextmanager
def traced(model: torch.nn.Module, containers: Containers) -> Iterator[None]:
    """Let the model change its own copies of containers, and return their new items with its result.

    In these values, an empty tuple stands for each of the caller's own objects. The wrapper is set
    as the ``forward`` attribute of the instance.
    """
    if not containers:
        yield
        return
    forward, returned = model.forward, containers.returned
    routes = [changed.keys for changed in containers.changed]
    new = [[(entry.key, entry.inside) for entry in changed.entries if entry.source is None] for changed in containers.changed]

    def with_changes(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = _shallow_copy((args, kwargs))
        found = [_at(call, route) for route in routes]
        result = forward(*call[0], **call[1])
        changes = [
            [_without(container[key], inside) for key, inside in items] for container, items in zip(found, new, strict=True)
        ]
        return _without(result, returned), changes

    with replaced_forward(model, with_changes):
        yield


def _shallow_copy(value: Any) -> Any:
    """Return a copy of a container with the same items."""
    if type(value) is dict:
        return {key: _shallow_copy(item) for key, item in value.items()}
    if type(value) is OrderedDict:
        return OrderedDict([(key, _shallow_copy(item)) for key, item in value.items()])
    if type(value) is defaultdict:
        return defaultdict(value.default_factory, {key: _shallow_copy(item) for key, item in value.items()})
    if type(value) is list:
        return [_shallow_copy(item) for item in value]
    return tuple([_shallow_copy(item) for item in value]) if type(value) is tuple else value


def _without(value: Any, inside: Inside) -> Any:
    """Return ``value`` with empty tuples in place of the caller's own objects."""
    if len(inside) == 0:
        return value
    if len(inside[0][0]) == 0:
        return ()
    below = [tuple([(path[1:], source) for path, source in inside if path[0] == i]) for i in range(len(value))]
    if isinstance(value, dict):
        return {key: _without(value[key], some) for key, some in zip(list(value), below)}  # noqa: B905 - traced by Dynamo
    items = [_without(value[i], below[i]) for i in range(len(value))]
    return tuple(items) if isinstance(value, tuple) else items


def _at(call: Any, keys: Sequence[Any]) -> Any:
    for key in keys:
        call = call[key]
    return call


@contextlib.contextmanager
def replaced_forward(model: torch.nn.Module, function: Any, keywords: Sequence[str] = ()) -> Iterator[None]:
    """Use ``function`` as the model's ``forward`` inside the block, with the signature of the original and more ``keywords``."""
    before, own = model.forward, "forward" in vars(model)
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY), *inspect.signature(before).parameters.values()]
    if parameters[1:] and parameters[1].name == "self":
        parameters = parameters[1:]
    parameters[0] = parameters[0].replace(kind=inspect.Parameter.POSITIONAL_ONLY)
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in keywords]
    rest = [parameters.pop()] if parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else []
    function.__signature__ = inspect.Signature([*parameters, *more, *rest])
    model.__dict__["forward"] = MethodType(function, model)
    try:
        yield
    finally:
        if own:
            model.__dict__["forward"] = before
        else:
            model.__dict__.pop("forward", None)


# ---------------------------------------------------------------- observing a run


@contextlib.contextmanager
def _watched(model: torch.nn.Module) -> Iterator[list[Run]]:
    """Yield a list that holds the model's last call in the block."""
    found: list[Run] = []
    forward = model.forward

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        found[:] = [Run(model, (args, kwargs))]
        found[0].result = forward(*args, **kwargs)
        return found[0].result

    with replaced_forward(model, watched):
        yield found


@contextlib.contextmanager
def _lines(model: torch.nn.Module) -> Iterator[list[str]]:
    """Yield a list that receives the first source line of the model, or of a library, that changes a container."""
    found: list[str] = []
    forward = model.forward

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        run, last = Run(model, (args, kwargs)), ""

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if found or not origin.is_model(frame.f_code.co_filename):
                return None
            if last and (run.containers_differ()):
                found.append(last)
                return None
            last = origin.line_of(frame)
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return forward(*args, **kwargs)
        finally:
            sys.settrace(before)
            if not found and last and run.containers_differ():
                found.append(last)

    with replaced_forward(model, watched):
        yield found


def _problems_of_twice(
    model: torch.nn.Module, containers: Containers, call: tuple[tuple[Any, ...], dict[str, Any]]
) -> list[Problem]:
    """Return a problem for each changed container that is passed twice.

    Every later call would have to pass one object at both paths.
    """
    run = Run(model, call)
    problems = []
    for changed in containers.changed:
        paths = run._paths[id(_at(call, changed.keys))]
        if len(paths) > 1:
            others = [shown(model, run._held[path].keys) for path in paths if path != changed.path]
            problems.append(Problem(shown(model, changed.keys), f"is changed, and is the same object as {', '.join(others)}"))
    return problems
