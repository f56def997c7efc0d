"""Nested arguments and results as the format's trees, with a readable path for every leaf."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any

from aotpack_loader.errors import UnsupportedError
from aotpack_loader.format import schema

from ._torch_compat import tree_children


def describe(spec: Any, path: str) -> tuple[schema.Tree, list[str]]:
    """Turn a ``torch.utils._pytree.TreeSpec`` into a tree and the paths of its leaves, in order.

    Raises:
        UnsupportedError: a container whose fields have no names.
    """
    if spec.is_leaf():
        return schema.LeafNode(), [path]
    children = tree_children(spec)
    kind = spec.type
    if kind in (tuple, list):
        items, paths = _describe_all(children, [f"{path}[{i}]" for i in range(len(children))])
        return (schema.TupleNode(items) if kind is tuple else schema.ListNode(items)), paths
    if kind in (dict, OrderedDict, defaultdict):
        keys = list(spec.context[1] if kind is defaultdict else spec.context)
        bad = [key for key in keys if not isinstance(key, (str, int, bool))]
        if bad:
            raise UnsupportedError(
                f"{path} is a mapping with a key of type {type(bad[0]).__name__}; "
                "a bundle keeps keys that are strings or integers.",
            )
        items, paths = _describe_all(children, [f"{path}[{key!r}]" for key in keys])
        return schema.DictNode(keys, items, ordered=kind is OrderedDict), paths
    fields = _field_names(spec, len(children))
    if fields is None:
        raise UnsupportedError(
            f"{path} is a {kind.__module__}.{kind.__qualname__}, a container whose fields have no names.",
            hint="Return tuples, lists, dictionaries, named tuples or dataclasses.",
        )
    items, paths = _describe_all(children, [f"{path}.{field}" for field in fields])
    name = f"{kind.__module__}.{kind.__qualname__}"
    sort = "tuple" if issubclass(kind, tuple) else "mapping" if issubclass(kind, Mapping) else "object"
    return schema.RecordNode(name, fields, items, sort), paths  # type: ignore[arg-type]


def _describe_all(children: list[Any], paths: list[str]) -> tuple[list[schema.Tree], list[str]]:
    described = [describe(child, path) for child, path in zip(children, paths, strict=True)]
    return [tree for tree, _ in described], [leaf for _, leaves in described for leaf in leaves]


def _field_names(spec: Any, count: int) -> list[str] | None:
    """Field names of a named tuple, dataclass or model output, from its pytree registration's context."""
    for candidate in (getattr(spec.type, "_fields", None), spec.context, *_inner(spec.context)):
        fits = isinstance(candidate, (list, tuple)) and len(candidate) == count
        if fits and all(isinstance(name, str) and name.isidentifier() for name in candidate):
            return list(candidate)
    return None


def _inner(context: Any) -> list[Any]:
    return list(context) if isinstance(context, (list, tuple)) else []
