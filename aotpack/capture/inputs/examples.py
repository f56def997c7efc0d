"""Names the example inputs by the model's parameters, and refuses layouts that a bundle cannot take."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotpack_loader.errors import Problem, UnsupportedError

from ..functions import FunctionModule, MethodModule


def parameters(model: torch.nn.Module | Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a call of ``model``. Empty for a C function without a signature."""
    try:
        if isinstance(model, MethodModule):
            return model.parameters_of_call
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
    """Return the tensors among the arguments with their paths (``img``, ``batch['labels']``).

    Raises:
        UnsupportedError: names every argument that is neither a tensor nor a number, string or None.
    """
    named_trees = [*zip(argument_names(model, len(args)), args, strict=True), *kwargs.items()]
    leaves = [
        (name + pytree.keystr(path), leaf) for name, tree in named_trees for path, leaf in pytree.tree_leaves_with_path(tree)
    ]
    if foreign := [
        (path, type(leaf)) for path, leaf in leaves if not isinstance(leaf, torch.Tensor) and type(leaf) not in _PLAIN
    ]:
        raise UnsupportedError(
            "A call has arguments of a type that a bundle does not take.",
            [Problem(path, f"is a {kind.__module__}.{kind.__qualname__}") for path, kind in foreign],
            hint=_hint([kind for _, kind in foreign]),
        )
    return [(path, leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor)]


_PLAIN = (bool, int, float, str, type(None))
_HINT = (
    "Pass tensors, numbers, strings, None, and tuples, lists, dictionaries, named tuples or dataclasses of them. "
    "Keep anything else as an attribute of the model."
)
_MAPPING_HINT = "Pass dict(batch), or its items by name (**batch)."
_CACHE_HINT = "A cache serves generation. Leave it out for training (use_cache=False), or pass its tensors in tuples."


def _hint(kinds: Sequence[type]) -> str:
    if any(kind.__module__ == "transformers.cache_utils" for kind in kinds):
        return _CACHE_HINT
    return _MAPPING_HINT if any(issubclass(kind, Mapping) for kind in kinds) else _HINT


_DENSE = (torch.strided, torch.jagged)


BUILD_DEVICES = ("cpu", "meta")
"""Where tensors are while a model is traced."""


def without_lazy_flags(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with lazy conjugates and negations computed, as a call computes them (``spec/arguments.md``, A4)."""
    known: dict[int, torch.Tensor] = {}

    def is_lazy(leaf: Any) -> bool:
        return isinstance(leaf, torch.Tensor) and (leaf.is_conj() or leaf.is_neg())

    def computed(leaf: torch.Tensor) -> torch.Tensor:
        if not is_lazy(leaf):
            return leaf
        if id(leaf) not in known:
            value = (leaf.detach() if leaf.is_leaf else leaf).resolve_conj().resolve_neg()
            known[id(leaf)] = value.requires_grad_(leaf.requires_grad) if leaf.is_leaf else value
        return known[id(leaf)]

    if not any(map(is_lazy, pytree.tree_leaves((args, kwargs)))):
        return args, kwargs  # the same containers: two arguments may be one
    made: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map_only(torch.Tensor, computed, (args, kwargs))
    return made


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


def refuse_devices(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Refuse tensors of the model or of the example that are on a GPU or the like.

    ``tensors`` are given with their paths.

    Raises:
        UnsupportedError: names every such tensor.
    """
    problems = [Problem(path, f"is on {tensor.device}") for path, tensor in tensors if tensor.device.type not in BUILD_DEVICES]
    if problems:
        raise UnsupportedError(
            "A bundle is built on the CPU, whatever device its targets run on.",
            problems,
            hint="Move the model and its example inputs there for the build: model.cpu().",
        )
