"""Describes nested arguments and results as the format's trees, with a readable path for every leaf."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any

import torch

from aotpack_loader.errors import UnsupportedError
from aotpack_loader.format import schema

from .._torch.api.argument_records import is_leaf_outside_builds
from .._torch.tracing.aot_autograd import tree_children
from ..capture.returned import Opened
from ..origin import class_name


def describe_arguments(spec: Any, names: list[str]) -> tuple[schema.Tree, list[str]]:
    """Describe the arguments of a call, a tuple or a dictionary, as :func:`describe` does.

    ``names`` are their names.
    """
    items, paths = _describe_all(tree_children(spec), names)
    return (schema.DictNode(list(spec.context), items) if spec.type is dict else schema.TupleNode(items)), paths


def describe(spec: Any, path: str) -> tuple[schema.Tree, list[str]]:
    """Turn a ``torch.utils._pytree.TreeSpec`` into a tree and the paths of its leaves, in order.

    Raises:
        UnsupportedError: a container's fields have no names, or a mapping has keys that are not
            strings or integers.
    """
    if spec.is_leaf():
        return schema.LeafNode(), [path]
    children = tree_children(spec)
    kind = spec.type
    if kind in (tuple, list, torch.Size):
        items, paths = _describe_all(children, [f"{path}[{i}]" for i in range(len(children))])
        return (schema.ListNode(items) if kind is list else schema.TupleNode(items, size=kind is torch.Size)), paths
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
    if kind is Opened:
        shown, names = spec.context
        items, paths = _describe_all(children, [f"{path}.{name}" for name in names])
        if issubclass(shown, Mapping):
            nones = [field.name for field in dataclasses.fields(shown) if field.name not in names]
            return schema.RecordNode(class_name(shown), list(names), items, "mapping", nones), paths
        return schema.RecordNode(class_name(shown), list(names), items, leaf=True), paths
    fields, nones = _field_names(spec, len(children))
    if fields is None:
        raise UnsupportedError(
            f"{path} is a {kind.__module__}.{kind.__qualname__}, a container without names for its fields.",
            hint="Use a tuple, list, dictionary, named tuple or dataclass in its place.",
        )
    items, paths = _describe_all(children, [f"{path}.{field}" for field in fields])
    shown = spec.context if isinstance(spec.context, type) else kind
    name = class_name(shown)
    sort = "tuple" if _is_tuple(spec) else "mapping" if isinstance(kind, type) and issubclass(kind, Mapping) else "object"
    return schema.RecordNode(name, fields, items, sort, nones, is_leaf_outside_builds(kind)), paths  # type: ignore[arg-type]


def _is_tuple(spec: Any) -> bool:
    """Whether a spec is a named tuple.

    Its type is the class itself, or ``collections.namedtuple`` with it as context.
    """
    return any(isinstance(kind, type) and issubclass(kind, tuple) for kind in (spec.type, spec.context))


def _describe_all(children: list[Any], paths: list[str]) -> tuple[list[schema.Tree], list[str]]:
    described = [describe(child, path) for child, path in zip(children, paths, strict=True)]
    return [tree for tree, _ in described], [leaf for _, leaves in described for leaf in leaves]


def _field_names(spec: Any, count: int) -> tuple[list[str] | None, list[str]]:
    """Return the field names of a named tuple, dataclass or model output, and those of fields that are always None."""
    context = spec.context
    nones: list[str] = []
    if isinstance(spec.type, type) and dataclasses.is_dataclass(spec.type):
        pair = isinstance(context, (list, tuple)) and len(context) == 2
        if pair and all(isinstance(part, (list, tuple)) for part in context):
            nones = [str(name) for name in context[1]]  # torch's registration: fields with a value, fields that are None
        elif isinstance(context, (list, tuple)) and all(isinstance(name, str) for name in context):  # a model output's keys
            nones = [field.name for field in dataclasses.fields(spec.type) if field.name not in context]
    candidates = [getattr(context, "_fields", None), getattr(context, "__match_args__", None)]
    candidates += [getattr(spec.type, "_fields", None), getattr(spec.type, "__match_args__", None), context]
    candidates += list(context) if isinstance(context, (list, tuple)) else []
    for candidate in candidates:
        fits = isinstance(candidate, (list, tuple)) and len(candidate) == count
        if candidate is not None and fits and all(isinstance(name, str) and name.isidentifier() for name in candidate):
            return list(candidate), nones
    return None, nones
