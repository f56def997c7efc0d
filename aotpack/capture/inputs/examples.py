"""Names the example inputs by the model's parameters, and refuses layouts that a bundle cannot take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotpack_loader.errors import Problem, UnsupportedError

from ..functions import FunctionModule


def parameters(model: torch.nn.Module | Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a call of ``model``. Empty for a C function without a signature."""
    try:
        return list(inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model).parameters.values())
    except (ValueError, TypeError):  # TypeError: not callable, which the build reports later
        return []


def spelled_out(model: torch.nn.Module | Callable[..., Any], keywords: Iterable[str]) -> inspect.Signature:
    """Return the signature of ``model`` with the ``keywords`` that it takes as ``**rest`` as named parameters."""
    known = parameters(model)
    fixed = [parameter for parameter in known if parameter.kind is not parameter.VAR_KEYWORD]
    names = {parameter.name for parameter in fixed}
    rest = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in keywords if name not in names]
    return inspect.Signature(fixed + rest if len(fixed) < len(known) else known)


def argument_names(model: torch.nn.Module | Callable[..., Any], count: int) -> list[str]:
    """Return names for the first ``count`` positional arguments: those of their parameters, or else ``args[3]``."""
    called = model.function if isinstance(model, FunctionModule) else model
    known = [p.name for p in parameters(called) if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return [known[i] if i < len(known) else f"args[{i}]" for i in range(count)]


def named_leaves(
    model: torch.nn.Module | Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors among the arguments with their paths (``img``, ``batch['labels']``)."""
    named_trees = [*zip(argument_names(model, len(args)), args, strict=True), *kwargs.items()]
    leaves = [
        (name + pytree.keystr(path), leaf) for name, tree in named_trees for path, leaf in pytree.tree_leaves_with_path(tree)
    ]
    return [(path, leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]


_DENSE = (torch.strided, torch.jagged)


def refuse_layouts(leaves: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Refuse example tensors that are sparse or quantized.

    ``leaves`` are tensors with their paths.

    Raises:
        UnsupportedError: names every such argument.
    """
    problems = [
        Problem(path, f"a tensor of layout {leaf.layout}{' and quantized elements' * leaf.is_quantized}")
        for path, leaf in leaves
        if leaf.layout not in _DENSE or leaf.is_quantized
    ]
    if problems:
        raise UnsupportedError("A bundle takes dense tensors only.", problems, hint="Pass x.to_dense() or x.dequantize().")
