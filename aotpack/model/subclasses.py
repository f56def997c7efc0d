"""Describes traceable wrapper subclasses of tensors: their class name, inner tensors, and metadata as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from aotpack_loader.errors import Problem, UnsupportedError
from aotpack_loader.format import schema

from .._torch.api.fake_tensors import is_nested_size, is_plain_tensor, is_wrapper_subclass
from .._torch.api.torch_types import ShapeEnv, StorageWeakRef
from ..graph.expressions import size_expression
from ..graph.literals import NOT_A_LITERAL, dtype_name, literal_argument

_PLAIN = "numbers, strings, dtypes, devices, and tuples, lists and dictionaries of them"

Inner = Callable[[str, torch.Tensor], schema.InnerTensor]
"""A function that describes a plain inner tensor.

It gets the attribute path (``.a.b``) and the tensor.
"""


def describe(tensor: torch.Tensor, where: str, shape_env: ShapeEnv | None, inner: Inner | None = None) -> schema.Subclass | None:
    """Return the format's description of a subclass, or None for a plain tensor.

    ``where`` is what an error names: the path of an argument, the name of a parameter, or the
    user's line.

    Raises:
        UnsupportedError: the class cannot be flattened into inner tensors, or needs more than
            plain data to be rebuilt.
    """
    if is_plain_tensor(tensor):
        return None
    return _describe(tensor, where, "", shape_env, inner or (lambda path, part: inner_tensor(part, shape_env)))


def refuse(where: str, message: str) -> UnsupportedError:
    """Return the error for a subclass that a bundle does not support."""
    return UnsupportedError("A tensor subclass is used in a way that a bundle does not support.", [Problem(where, message)])


def plain_tensors(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the inner tensors of a subclass in order, with those of nested subclasses.

    For a plain tensor, yield itself.
    """
    if not is_wrapper_subclass(tensor):
        yield tensor
        return
    for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
        yield from plain_tensors(getattr(tensor, name))


def check_memory_is_separate(named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Check that inner tensors of subclasses share memory with nothing else.

    A trace would merge one tensor at two paths.

    Raises:
        UnsupportedError: names both paths.
    """
    distinct = {id(tensor): (name, tensor) for name, tensor in reversed(list(named))}
    holders: dict[int, tuple[str, bool]] = {}
    for name, tensor in reversed(distinct.values()):
        for path, part in _paths(tensor, name):
            address = StorageWeakRef(part.untyped_storage()).cdata if part.numel() and part.layout == torch.strided else 0
            other, other_is_plain = holders.setdefault(address, (path, is_plain_tensor(tensor)))
            if address and other != path and not (other_is_plain and is_plain_tensor(tensor)):
                raise refuse(path, f"shares its memory with {other}; use a clone() for one of them")


def _paths(tensor: torch.Tensor, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if not is_wrapper_subclass(tensor):
        yield path, tensor
        return
    for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
        yield from _paths(getattr(tensor, name), f"{path}.{name}")


def _describe(tensor: torch.Tensor, where: str, path: str, shape_env: ShapeEnv | None, inner: Inner) -> schema.Subclass:
    kind = type(tensor)
    if not is_wrapper_subclass(tensor):
        raise refuse(
            where + path,
            f"a {kind.__qualname__}, a subclass of Tensor without __tensor_flatten__, which a build needs",
        )
    if tensor.layout != torch.strided or any(map(is_nested_size, (*tensor.shape, *tensor.stride()))):
        raise refuse(where + path, f"a {kind.__qualname__} with sizes that differ along a dimension (layout {tensor.layout})")
    attributes, metadata = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    parts: list[schema.InnerTensor | schema.Subclass] = []
    for name in attributes:
        value, at = getattr(tensor, name), f"{path}.{name}"
        if not isinstance(value, torch.Tensor):
            raise refuse(where + at, f"a {type(value).__qualname__} among the tensors of a {kind.__qualname__}")
        parts.append(inner(at, value) if is_plain_tensor(value) else _describe(value, where, at, shape_env, inner))
    return schema.Subclass(
        name=f"{kind.__module__}.{kind.__qualname__}",
        attributes=list(attributes),
        parts=parts,
        shape=[size_expression(size, shape_env) for size in tensor.shape],
        stride=[size_expression(size, shape_env) for size in tensor.stride()],
        metadata=_data(metadata, f"{where}{path}.__tensor_flatten__()[1]", kind.__qualname__),
    )


def inner_tensor(tensor: torch.Tensor, shape_env: ShapeEnv | None) -> schema.InnerTensor:
    """Describe an inner tensor of a subclass: its element type, sizes and strides."""
    return schema.InnerTensor(
        dtype_name(tensor.dtype),
        [size_expression(size, shape_env) for size in tensor.shape],
        [size_expression(size, shape_env) for size in tensor.stride()],
    )


_SEQUENCES: dict[type, Any] = {tuple: "tuple", list: "list", torch.Size: "size"}


def _data(value: Any, where: str, owner: str) -> schema.Data:
    """Return metadata as plain data.

    Only exact types are accepted, so that the loader restores exactly the same values.
    """
    if type(value) in _SEQUENCES:
        items = [_data(item, f"{where}[{i}]", owner) for i, item in enumerate(value)]
        return schema.DataSequence(_SEQUENCES[type(value)], items)
    if type(value) is dict:
        if foreign := [key for key in value if type(key) not in (str, int, bool)]:
            raise refuse(where, f"the metadata of {owner} has a key of type {type(foreign[0]).__qualname__}")
        return schema.DataMapping(list(value), [_data(item, f"{where}[{key!r}]", owner) for key, item in value.items()])
    literal = literal_argument(value)
    is_number = type(value) in (bool, int, str, float, complex)
    if literal is NOT_A_LITERAL or (isinstance(value, (bool, int, str, float, complex)) and not is_number):
        raise refuse(where, f"the metadata of {owner} holds a {type(value).__qualname__}; a bundle keeps {_PLAIN}")
    return literal  # type: ignore[no-any-return]
