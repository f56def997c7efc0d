"""What the model returned while it was traced: values and identities that AOTAutograd's outputs do not keep."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotpack_loader.errors import Problem, UnsupportedError

from ..graph.literals import NOT_A_LITERAL, literal_argument

_TRACED = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float, str, type(None))
"""What AOTAutograd takes as a result."""

_HINT = (
    "Return tensors, numbers, strings, dtypes, devices, None, and tuples, lists, dictionaries, named tuples or dataclasses of "
    "them."
)
_CACHE_HINT = (
    "A cache serves generation. Call the model with use_cache=False for training, or return the cache's tensors in tuples."
)


@dataclass(frozen=True)
class Family:
    """Leaves (``views``) whose ``_base`` is one tensor that needs no gradient, or one that is leaf ``base`` itself."""

    base: int | None
    views: list[int]


@dataclass
class Returned:
    """Notes on what the model returned: how it is nested, and on its leaves, by number.

    ``spec``: the nesting, as a pytree spec. ``constants``: values that are neither tensors nor numbers; None is traced in their
    place. ``same``: a leaf to an earlier one that is the very same tensor. ``families``: leaves that are views of one tensor.
    ``apart``: leaves that are no views of an argument to autograd, whatever memory they are in, each with whether it is a view at
    all. The model runs several times while it is traced: the last time counts.
    """

    spec: Any = None
    constants: dict[int, Any] = field(default_factory=dict)
    same: dict[int, int] = field(default_factory=dict)
    families: list[Family] = field(default_factory=list)
    apart: dict[int, bool] = field(default_factory=dict)

    def note(self, result: Any, arguments: list[Any]) -> list[Any]:
        """The leaves of the model's result with what is not traced taken out; ``arguments`` are those of the traced function.

        Raises:
            UnsupportedError: names every value that a bundle cannot return.
        """
        self.constants, self.same = {}, {}
        result = _opened(result)
        leaves, self.spec = pytree.tree_flatten(result)
        first: dict[int, int] = {}
        bad = []
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and first.setdefault(id(leaf), i) != i:
                self.same[i] = first[id(leaf)]
            if not isinstance(leaf, _TRACED):
                self.constants[i], leaves[i] = leaf, None
                if literal_argument(leaf) is NOT_A_LITERAL:
                    bad.append(i)
        if bad:
            paths = [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(result)[0]]
            problems = [Problem(f"result{paths[i]}", f"is a {_name(type(self.constants[i]))}") for i in bad]
            raise UnsupportedError(
                "The model returns what a bundle cannot hold.",
                problems,
                hint=_CACHE_HINT if any(_is_cache(self.constants[i]) for i in bad) else _HINT,
            )
        self.families = _families(leaves, first)
        given = _with_bases(arguments)
        tensors = ((i, leaf) for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
        self.apart = {i: leaf._base is not None for i, leaf in tensors if not {id(leaf), id(leaf._base)} & given}
        return leaves


def _with_bases(arguments: list[Any]) -> set[int]:
    """Ids of the arguments and of their bases: where sizes change in place, AOTAutograd gives the model a view of an argument."""
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    return {id(tensor) for tensor in tensors} | {id(tensor._base) for tensor in tensors if tensor._base is not None}


def _families(leaves: list[Any], places: dict[int, int]) -> list[Family]:
    """``places``: the first leaf that each tensor is, by its id."""
    bases: dict[int, tuple[torch.Tensor, list[int]]] = {}
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and leaf._base is not None:
            bases.setdefault(id(leaf._base), (leaf._base, []))[1].append(i)
    return [Family(places.get(key), views) for key, (base, views) in bases.items() if key in places or not base.requires_grad]


def result_leaves(result: Any) -> list[Any]:
    """The leaves of a model's result, numbered as those of its traced results are."""
    return pytree.tree_leaves(_opened(result))


class Opened:
    """A dataclass that pytree does not know, as its fields."""

    def __init__(self, kind: type, fields: tuple[str, ...], values: list[Any]) -> None:
        self.kind, self.fields, self.values = kind, fields, values


pytree.register_pytree_node(
    Opened,
    lambda record: (record.values, (record.kind, record.fields)),
    lambda values, context: Opened(context[0], context[1], list(values)),
    serialized_type_name="aotpack.returned.Opened",
)


def _opened(result: Any) -> Any:
    """``result`` with dataclasses that pytree takes for leaves turned into containers."""
    if not any(_is_dataclass(leaf) for leaf in pytree.tree_leaves(result)):
        return result
    return pytree.tree_map(_open, result)


def _open(leaf: Any) -> Any:
    if not _is_dataclass(leaf):
        return leaf
    names = tuple([f.name for f in dataclasses.fields(leaf)])
    return Opened(type(leaf), names, [_opened(getattr(leaf, name)) for name in names])


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_cache(value: Any) -> bool:
    """Whether it is one of the caches of keys and values of transformers."""
    return any(kind.__module__ == "transformers.cache_utils" for kind in type(value).__mro__)
