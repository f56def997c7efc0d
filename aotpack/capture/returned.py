"""Records what the model returned while it was traced.

AOTAutograd's outputs lose some of these values and identities.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotpack_loader.errors import Problem, UnsupportedError

from ..graph.literals import NOT_A_LITERAL, literal_argument
from .gradient_paths import find_sources, runs_python_before_base

_TRACED = (torch.Tensor, torch.SymInt, torch.SymFloat, torch.SymBool, int, float, str, type(None))
"""The types that AOTAutograd accepts as results."""

_HINT = (
    "Return tensors, numbers, strings, dtypes, devices, None, and tuples, lists, dictionaries, named tuples or dataclasses of "
    "them."
)
_CACHE_HINT = (
    "A cache serves generation. Call the model with use_cache=False for training, or return the cache's tensors in tuples."
)


@dataclass(frozen=True)
class Family:
    """Leaves (``views``) that are views of one tensor: of leaf ``base``, or of a tensor that requires no gradient."""

    base: int | None
    views: list[int]


@dataclass
class Returned:
    """The structure of the model's result, and facts about its leaves by number.

    The model runs several times while it is traced. The last run counts.

    - ``spec``: the nesting, as a pytree spec.
    - ``constants``: values that are neither tensors nor numbers. The trace has None instead.
    - ``same``: maps a leaf to an earlier leaf that is the same tensor.
    - ``families``: leaves that are views of one tensor.
    - ``sources``: for each leaf the other leaves that autograd passes on its way back from it.
    - ``independent``: leaves that autograd does not treat as views of an argument, whatever their
      storage. The value says whether the leaf is a view at all.
    - ``hooked``: views whose gradient passes a hook or an ``autograd.Function`` on its way to the base.
    """

    spec: Any = None
    constants: dict[int, Any] = field(default_factory=dict)
    same: dict[int, int] = field(default_factory=dict)
    families: list[Family] = field(default_factory=list)
    independent: dict[int, bool] = field(default_factory=dict)
    sources: list[list[int]] = field(default_factory=list)
    hooked: frozenset[int] = frozenset()

    def observe(self, result: Any, arguments: list[Any]) -> list[Any]:
        """Record the model's result and return its leaves, with None for values that cannot be traced.

        ``arguments`` are those of the traced function.

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
                "The model returns a type that a bundle does not support.",
                problems,
                hint=_CACHE_HINT if any(_is_cache(self.constants[i]) for i in bad) else _HINT,
            )
        self.families = _families(leaves, first)
        self.sources = find_sources(leaves)
        self.hooked = frozenset(i for i, leaf in enumerate(leaves) if runs_python_before_base(leaf))
        known = _with_bases(arguments)
        tensors = ((i, leaf) for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
        self.independent = {i: leaf._base is not None for i, leaf in tensors if not {id(leaf), id(leaf._base)} & known}
        return leaves


def _with_bases(arguments: list[Any]) -> set[int]:
    """Return the ids of the arguments and of their bases.

    If the model changes the sizes of an argument in place, AOTAutograd passes a view of that
    argument.
    """
    tensors = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    return {id(tensor) for tensor in tensors} | {id(tensor._base) for tensor in tensors if tensor._base is not None}


def _families(leaves: list[Any], first_leaves: dict[int, int]) -> list[Family]:
    """Group the leaves by the tensor that they are views of.

    ``first_leaves`` maps the id of a tensor to its first leaf.
    """
    bases: dict[int, tuple[torch.Tensor, list[int]]] = {}
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and leaf._base is not None:
            bases.setdefault(id(leaf._base), (leaf._base, []))[1].append(i)
    return [
        Family(first_leaves.get(key), views)
        for key, (base, views) in bases.items()
        if key in first_leaves or not base.requires_grad
    ]


def result_leaves(result: Any) -> list[Any]:
    """Return the leaves of a model's result, in the same order as its traced results."""
    return pytree.tree_leaves(_opened(result))


class Opened:
    """The fields of a dataclass that is not registered with pytree; of a mapping, those it has.

    The outputs of ``transformers`` are mappings. They register themselves, but not while Dynamo traces.
    """

    def __init__(self, kind: type, fields: tuple[str, ...], values: list[Any]) -> None:
        self.kind, self.fields, self.values = kind, fields, values


pytree.register_pytree_node(
    Opened,
    lambda record: (record.values, (record.kind, record.fields)),
    lambda values, context: Opened(context[0], context[1], list(values)),
    serialized_type_name="aotpack.returned.Opened",
)


def _opened(result: Any) -> Any:
    """Return ``result`` with unregistered dataclasses turned into containers.

    pytree treats such dataclasses as leaves.
    """
    if not any(_is_dataclass(leaf) for leaf in pytree.tree_leaves(result)):
        return result
    return pytree.tree_map(_open, result)


def _open(leaf: Any) -> Any:
    if not _is_dataclass(leaf):
        return leaf
    names = tuple(leaf) if isinstance(leaf, Mapping) else tuple([f.name for f in dataclasses.fields(leaf)])
    return Opened(type(leaf), names, [_opened(getattr(leaf, name)) for name in names])


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_cache(value: Any) -> bool:
    """Whether a value is one of the key-value caches of ``transformers``."""
    return any(kind.__module__ == "transformers.cache_utils" for kind in type(value).__mro__)
