"""What a caller sees of a program: the trees of its arguments (A1), and the data for tools beside its call (N5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..errors import CorruptBundleError, Problem
from . import schema
from .subclasses import data_problem


def problems(program: schema.Program) -> Iterator[Problem]:
    """N5: values are plain data, and paths are those of modules."""
    for i, parameter in enumerate(program.signature or []):
        if problem := data_problem(parameter.default):
            yield Problem(f"$.signature[{i}]", f"N5: its default {problem}")
    recorded = program.pretrained
    if recorded is None:
        return
    values = {"config": recorded.config, "generation_config": recorded.generation_config, **recorded.attributes}
    for name, value in values.items():
        if problem := data_problem(value):
            yield Problem("$.pretrained", f"N5: {name} {problem}")
    known = {module.name for module in program.modules}
    for path in (recorded.input_embeddings, recorded.output_embeddings):
        if path is not None and path not in known:
            yield Problem("$.pretrained", f"N5: {path!r} is no module")


def call_trees(tree: schema.Tree) -> tuple[schema.TupleNode, schema.DictNode]:
    """The trees of positional and of keyword arguments (A1).

    Raises:
        CorruptBundleError: ``tree`` is something else.
    """
    if isinstance(tree, schema.TupleNode) and len(tree.items) == 2:
        args, kwargs = tree.items
        if isinstance(args, schema.TupleNode) and isinstance(kwargs, schema.DictNode) and _are_names(kwargs.keys):
            return args, kwargs
    raise CorruptBundleError("the inputs are not a tuple of positional arguments and a dict of keyword arguments")


def _are_names(keys: Iterable[object]) -> bool:
    return all(isinstance(key, str) for key in keys)
