"""Reads what a user asked for: optimizers of the model's parameters, with their groups and options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.optim import Optimizer

from aotpack_loader.errors import BuildError, EntryError, Problem

from .copies import keep_copies
from .sparse import OF_ROWS
from .stepping import copy_for, step

Made = Optimizer | Callable[[torch.nn.Module], Any]
Asked = Made | Mapping[str, Made]

ONLY: Final = "optimizer"
"""The name of a program's only optimizer."""
_KERNELS: Final = {"foreach": False, "fused": False, "capturable": False, "differentiable": False}
"""Options that choose among kernels of the same update. A trace takes the plainest."""
_CONSTANT: Final = frozenset({"ns_coefficients"})
"""Numbers that are compiled in: nobody changes them, and matrix products have them as constants."""
_NAMES: Final = {name.lower(): name for name in vars(torch.optim) if isinstance(vars(torch.optim)[name], type)}
_REFUSED: Final = {
    "LBFGS": "its step calls the model several times",
}


@dataclass(frozen=True)
class Group:
    """Parameters with the same options.

    ``names`` are those of the parameters in the model. ``options`` are the group's, without its parameters.
    ``numbers`` holds by path (``lr``, ``betas.0``) the options that may change between steps.
    """

    names: Sequence[str]
    parameters: Sequence[torch.nn.Parameter]
    options: Mapping[str, Any]
    numbers: Mapping[str, float]

    def traced(self, numbers: Mapping[str, Any], **others: Any) -> dict[str, Any]:
        """The options with other numbers, and with the kernels that a trace takes."""
        options = {name: _with(name, value, numbers) for name, value in self.options.items()}
        return {**options, **{name: value for name, value in _KERNELS.items() if name in options}, **others}


@dataclass(frozen=True)
class AskedOptimizer:
    """An optimizer that is to be in the bundle."""

    optimizer: Optimizer
    groups: Sequence[Group]

    @functools.cached_property
    def constructs(self) -> bool:
        """Whether the constructor makes the state of parameters: a step of a fresh copy does not find it."""
        group = self.groups[0]
        parameter = torch.ones(2, dtype=group.parameters[0].dtype)
        parameter.grad = torch.ones_like(parameter)
        try:
            step(self.fresh(group.traced({}), [parameter]))
        except KeyError:
            return True
        except Exception:  # it takes no parameter of one dimension
            return False
        return False

    def fresh(self, group: Mapping[str, Any], parameters: Sequence[torch.Tensor], *, own: bool = False) -> Optimizer:
        """A copy for other parameters, in one group with these options, without state.

        An optimizer that takes sparse gradients alone is replaced by one of their rows, unless its ``own`` class is asked for.
        """
        kind = type(self.optimizer)
        return copy_for(self.optimizer, kind if own else OF_ROWS.get(kind, kind), group, parameters)


def named(name: str, options: Mapping[str, Any], **copies: Any) -> Callable[[torch.nn.Module], Optimizer]:
    """Return a function that makes the optimizer of ``torch.optim`` that is called ``name``, in any case.

    ``copies`` are arguments of :func:`keep_copies`; without, no copies are kept.

    Raises:
        BuildError: there is none, or it has no such option.
    """
    kind = getattr(torch.optim, _NAMES.get(name.lower(), ""), None)
    if kind is None or not issubclass(kind, Optimizer) or kind is Optimizer:
        known = ", ".join(sorted(n for n, c in _NAMES.items() if issubclass(getattr(torch.optim, c), Optimizer) and n != ONLY))
        raise BuildError(f"torch.optim has no optimizer {name!r}.", hint=f"Known: {known}.")
    known_options = [*inspect.signature(kind).parameters][1:]
    wrong = [Problem(option, f"{kind.__name__} has no such option") for option in options if option not in known_options]
    if wrong:
        raise BuildError("The optimizer cannot be made.", wrong, hint=f"It has {', '.join(known_options)}.")

    def make(model: torch.nn.Module) -> Optimizer:
        optimizer: Optimizer = kind(model.parameters(), **options)
        return keep_copies(optimizer, **copies) if copies else optimizer

    return make


def resolve(asked: Asked | None, model: object, original: object) -> dict[str, AskedOptimizer]:
    """Make the optimizers, and check them.

    ``model`` is traced: the ``original``, or a copy of it. An optimizer that exists has the parameters of the original.

    Raises:
        BuildError: lists what cannot be in a bundle.
    """
    if asked is None:
        return {}
    if not isinstance(model, torch.nn.Module) or not isinstance(original, torch.nn.Module):
        raise BuildError("Only a torch.nn.Module has an optimizer in its bundle.", hint="A function has no parameters.")
    wanted = asked if isinstance(asked, Mapping) else {ONLY: asked}
    found = {name: _resolved(name, one, model, original) for name, one in wanted.items()}
    problems = [Problem(name, text) for name, one in found.items() for text in _problems(one)]
    names = [(name, parameter) for name, one in found.items() for group in one.groups for parameter in group.names]
    seen: dict[str, str] = {}
    for name, parameter in names:
        if seen.setdefault(parameter, name) != name:
            problems.append(Problem(name, f"updates {parameter}, as {seen[parameter]} does"))
    problems += [Problem(name, "is no name of an optimizer") for name in found if not name.isidentifier()]
    if problems:
        raise BuildError("This optimizer cannot be in a bundle.", problems[:20])
    return found


def _resolved(name: str, made: Made, model: torch.nn.Module, original: torch.nn.Module) -> AskedOptimizer:
    owner = model
    if isinstance(made, Optimizer):
        optimizer: Any = made
        owner = original
    else:
        try:
            optimizer = made(model)
        except EntryError:
            raise
        except Exception as error:
            raise BuildError(f"The optimizer {name!r} cannot be made: {type(error).__name__}: {error}") from error
    if not isinstance(optimizer, Optimizer):
        raise BuildError(
            f"The optimizer {name!r} is of class {type(optimizer).__name__}, no torch.optim.Optimizer.",
            hint="Return one: `def optimizer(model): return torch.optim.AdamW(model.parameters(), lr=1e-3)`.",
        )
    names = {id(parameter): path for path, parameter in owner.named_parameters()}
    unknown = [p for group in optimizer.param_groups for p in group["params"] if id(p) not in names]
    if unknown:
        shapes = ", ".join(str(list(p.shape)) for p in unknown[:5])
        raise BuildError(
            f"The optimizer {name!r} has {len(unknown)} parameters that are not the model's, of shapes {shapes}.",
            hint="Make it from the parameters of the model that is built.",
        )
    own = dict(model.named_parameters())
    groups = []
    for group in optimizer.param_groups:
        paths = [names[id(parameter)] for parameter in group["params"]]
        options = {option: value for option, value in group.items() if option != "params"}
        numbers = dict(_numbers(type(optimizer), options))
        groups.append(Group(paths, [own[path] for path in paths], options, numbers))
    return AskedOptimizer(optimizer, groups)


def _problems(asked: AskedOptimizer) -> Iterator[str]:
    optimizer = asked.optimizer
    for kind in type(optimizer).__mro__:
        if kind.__module__.startswith("torch.optim") and kind.__name__ in _REFUSED:
            yield f"{kind.__name__}: {_REFUSED[kind.__name__]}"
        if kind in OF_ROWS and type(optimizer) is not kind:
            yield f"a class of {kind.__name__} with a step of its own takes sparse gradients"
    hooks = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    if any(getattr(optimizer, name, None) for name in hooks):
        yield "it has hooks of steps; register them on the optimizer of the loaded bundle"
    if optimizer.defaults.get("differentiable"):
        yield "differentiable is set, and steps of a bundle have no gradients"
    for group in asked.groups:
        for option, value in group.options.items():
            if not _is_plain(value):
                yield f"its option {option} is of class {type(value).__name__}, which is not plain data"
        plain = (torch.Tensor, torch.nn.Parameter)
        own = [(name, type(p)) for name, p in zip(group.names, group.parameters, strict=True)]
        yield from (f"{name} is of the class {kind.__name__}" for name, kind in own if kind not in plain)
        yield from (f"{name} is of {p.dtype}" for name, p in zip(group.names, group.parameters, strict=True) if not _is_real(p))


def _is_real(parameter: torch.Tensor) -> bool:
    return parameter.is_floating_point() or parameter.is_complex()


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    if isinstance(value, torch.Tensor):
        return value.numel() == 1
    return value is None or isinstance(value, (bool, int, float, str))


def _numbers(kind: type, options: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The options that may change between steps, by path: floats, and integers where the constructor takes floats."""
    parameters = inspect.signature(kind).parameters
    for name, value in options.items():
        if name in _CONSTANT:
            continue
        annotation = str(parameters[name].annotation) if name in parameters else ""
        if isinstance(value, (tuple, list)):
            kinds = (float, int) if "float" in annotation else float
            yield from ((f"{name}.{i}", float(item)) for i, item in enumerate(value) if _is_number(item, kinds))
        elif isinstance(value, (torch.Tensor, float)) or (type(value) is int and "float" in annotation):
            yield name, float(value)


def _is_number(value: Any, kinds: Any) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def _with(name: str, value: Any, numbers: Mapping[str, Any]) -> Any:
    """An option with other numbers."""
    if isinstance(value, (tuple, list)):
        return type(value)(numbers.get(f"{name}.{i}", item) for i, item in enumerate(value))
    return numbers.get(name, value)
