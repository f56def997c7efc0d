"""The arguments of a conformance vector's calls: how to describe, write and make them (spec/vectors/README.md).

A writer describes arguments with :class:`Own`, :class:`Seen` and :class:`Held`. :func:`recorded`
turns them into JSON and tensors, and a reader turns these back with :func:`described`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from aotpack_loader.devices.literals import literal, plain_data
from aotpack_loader.format import schema

Json = Any
Tensors = dict[str, torch.Tensor]


@dataclass(eq=False)
class Own:
    """A tensor with a storage of its own.

    ``computed``: it is the result of an operation on a leaf, not a leaf itself.
    """

    tensor: torch.Tensor
    requires_grad: bool = False
    computed: bool = False


@dataclass(eq=False)
class Seen:
    """A view of ``of`` with the geometry of ``as_strided``. ``detached``: autograd does not know it as a view."""

    of: Own
    shape: list[int]
    stride: list[int]
    offset: int = 0
    detached: bool = False
    requires_grad: bool = False


@dataclass(eq=False)
class Held:
    """A tensor subclass made of ``parts``."""

    kind: type
    parts: dict[str, Own | Held]
    metadata: Any = None
    requires_grad: bool = False


def made(tree: Any) -> Any:
    """The tree of arguments with real tensors. A repeated description is one tensor."""
    return torch.utils._pytree.tree_map_only((Own, Seen, Held), Maker().make, tree)


class Maker:
    """Makes a tensor from each description, once."""

    def __init__(self) -> None:
        self.done: dict[int, torch.Tensor] = {}
        self.leaves: dict[int, torch.Tensor] = {}

    def make(self, item: Any) -> torch.Tensor:
        if id(item) not in self.done:
            self.done[id(item)] = self._make(item)
        return self.done[id(item)]

    def _make(self, item: Any) -> torch.Tensor:
        if isinstance(item, Held):
            parts = {name: self.make(part) for name, part in item.parts.items()}
            kind: Any = item.kind
            return kind.__tensor_unflatten__(parts, item.metadata, None, None).requires_grad_(item.requires_grad)
        if isinstance(item, Seen):
            base = self.make(item.of)
            if item.detached or item.requires_grad:
                base = base.detach()
            seen = base.as_strided(item.shape, item.stride, item.offset)
            return seen.detach().requires_grad_() if item.requires_grad else seen
        leaf = _exact_clone(item.tensor).requires_grad_(item.requires_grad)
        self.leaves[id(item)] = leaf
        return leaf + 0 if item.computed else leaf


def _exact_clone(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format).copy_(tensor.detach())


# ---------------------------------------------------------------- arguments in a vector


def recorded(leaves: list[Any], prefix: str) -> tuple[list[Json], Tensors]:
    """Described leaves as JSON, and the tensors they use, by name."""
    names: dict[int, str] = {}
    first: dict[int, int] = {}
    tensors: Tensors = {}

    def own(item: Own) -> Json:
        if id(item) not in names:
            names[id(item)] = f"{prefix}.memory.{len(names)}"
            tensors[names[id(item)]] = item.tensor.detach().contiguous().clone()
        found: Json = {"memory": names[id(item)].removeprefix(f"{prefix}.")}
        return found | _true(requires_grad=item.requires_grad, computed=item.computed)

    def leaf(item: Any) -> Json:
        if isinstance(item, Own):
            return own(item)
        if isinstance(item, Seen):
            view = {"shape": item.shape, "stride": item.stride, "offset": item.offset}
            return {"view": {**view, **_true(detached=item.detached, requires_grad=item.requires_grad)}, **own(item.of)}
        if isinstance(item, Held):
            parts = {name: leaf(part) for name, part in item.parts.items()}
            name = f"{item.kind.__module__}.{item.kind.__qualname__}"
            return {
                "class": name,
                "parts": parts,
                "metadata": _metadata(item.metadata),
                **_true(requires_grad=item.requires_grad),
            }
        return {"value": scalar(item)}

    found = []
    for i, item in enumerate(leaves):
        if id(item) in first and isinstance(item, (Own, Seen, Held)):
            found.append({"same": first[id(item)]})
            continue
        first[id(item)] = i
        found.append(leaf(item))
    return found, tensors


def _true(**flags: bool) -> Json:
    return {name: True for name, value in flags.items() if value}


def scalar(value: Any) -> Json:
    """A constant in the form of documents."""
    from aotpack.graph.literals import literal_argument

    return value if isinstance(value, list) else msgspec.to_builtins(literal_argument(value))


def _metadata(data: Any) -> Json:
    from aotpack.model.subclasses import _data as written

    return msgspec.to_builtins(written(data, "metadata", "a class"))


def described(leaves: list[Json], tensors: Mapping[str, torch.Tensor], prefix: str, classes: Mapping[str, type]) -> list[Any]:
    """The descriptions of recorded leaves. This is the inverse of :func:`recorded`."""
    owned: dict[str, Own] = {}
    found: list[Any] = []

    def leaf(item: Json) -> Any:
        if "same" in item:
            return found[item["same"]]
        if "value" in item:
            value = item["value"]
            return value if isinstance(value, list) else literal(msgspec.convert(value, schema.Scalar))
        if "class" in item:
            parts = {name: leaf(part) for name, part in item["parts"].items()}
            return Held(
                classes[item["class"]],
                parts,
                plain_data(msgspec.convert(item["metadata"], schema.Data)),
                item.get("requires_grad", False),
            )
        name = item["memory"]
        flags = {key: item.get(key, False) for key in ("requires_grad", "computed")}
        memory = owned.setdefault(name, Own(tensors[f"{prefix}.{name}"], **flags))
        return Seen(memory, **item["view"]) if "view" in item else memory

    for item in leaves:
        found.append(leaf(item))
    return found
