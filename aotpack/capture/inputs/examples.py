"""The example inputs: the parameters they are passed to, and what none of them may be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotpack_loader.errors import Problem, UnsupportedError

from ..functions import FunctionModule


def parameters(model: torch.nn.Module | Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters of a call of ``model``; those of a function written in C without a signature are not known."""
    try:
        return list(inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model).parameters.values())
    except (ValueError, TypeError):  # the second: no model at all, which the build says later
        return []


def spelled_out(model: torch.nn.Module | Callable[..., Any], keywords: Iterable[str]) -> inspect.Signature:
    """The signature of ``model`` with those ``keywords`` by name that it takes as ``**rest`` only."""
    known = parameters(model)
    fixed = [parameter for parameter in known if parameter.kind is not parameter.VAR_KEYWORD]
    names = {parameter.name for parameter in fixed}
    rest = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in keywords if name not in names]
    return inspect.Signature(fixed + rest if len(fixed) < len(known) else known)


def argument_names(model: torch.nn.Module | Callable[..., Any], count: int) -> list[str]:
    """What to call the first ``count`` positional arguments: by their parameters, and ``args[3]`` where there is none."""
    called = model.function if isinstance(model, FunctionModule) else model
    known = [p.name for p in parameters(called) if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [known[i] if i < len(known) else f"args[{i}]" for i in range(count)]


def named_leaves(
    model: torch.nn.Module | Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, torch.Tensor]]:
    """The tensors among the arguments by path (``img``, ``batch['labels']``)."""
    given = [*zip(argument_names(model, len(args)), args, strict=True), *kwargs.items()]
    leaves = [(name + pytree.keystr(path), leaf) for name, tree in given for path, leaf in pytree.tree_leaves_with_path(tree)]
    return [(path, leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]


_DENSE = (torch.strided, torch.jagged)


def refuse_layouts(leaves: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Refuse example tensors, given by path, that have no strides.

    Raises:
        UnsupportedError: names every argument that is sparse or quantized.
    """
    problems = [
        Problem(path, f"a tensor of layout {leaf.layout}{' and quantized elements' * leaf.is_quantized}")
        for path, leaf in leaves
        if leaf.layout not in _DENSE or leaf.is_quantized
    ]
    if problems:
        raise UnsupportedError("A bundle takes dense tensors only.", problems, hint="Pass to_dense() or dequantize() of it.")
