"""What a caller sees of a program: the trees of its arguments (A1), and the data for tools beside its call (N5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..errors import CorruptBundleError, Problem
from ..text import shown
from . import schema
from .subclasses import data_problem

ASSIGNED = "aotpack_state"
"""The keyword argument that holds the buffers to which a call assigns (N6)."""
MAX_PARAMETERS = 2**16
"""Of ``forward``. A load makes an object for each of them."""


def problems(program: schema.Program) -> Iterator[Problem]:
    """N5: values are plain data, and paths are those of modules. N6: assigned buffers are an argument."""
    yield from assigned_problems(program)
    parameters = program.signature or []
    if len(parameters) > MAX_PARAMETERS:
        yield Problem("$.signature", f"N5: there are more than {MAX_PARAMETERS} parameters")
        return
    for i, parameter in enumerate(parameters):
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


def assigned_problems(program: schema.Program) -> Iterator[Problem]:
    """N6: assigned buffers are buffers, and each call takes and changes a dictionary of them."""
    if not program.assigned:
        return
    buffers = {entry.name for entry in program.state if entry.kind == "buffer" and entry.tied_to is None}
    if not buffers >= {*program.assigned} or len({*program.assigned}) < len(program.assigned):
        yield Problem("$.assigned", "N6: they are buffers that are not tied, each named once")
    for name, method in program.methods.items():
        if method.role != "call":
            continue
        try:
            _, kwargs = call_trees(method.inputs)
        except CorruptBundleError:  # A1 is refused by its own name
            continue
        if ASSIGNED not in kwargs.keys:
            yield Problem(f"$.methods[{shown(name)}]", f"N6: it takes no {ASSIGNED}")
            continue
        number = kwargs.keys.index(ASSIGNED)
        given = kwargs.items[number]
        changed = [update.tree for update in method.updates if update.path == [1, number]]
        if any(not isinstance(tree, schema.DictNode) or tree.keys != program.assigned for tree in (given, *changed)):
            yield Problem(f"$.methods[{shown(name)}]", f"N6: {ASSIGNED} is no dictionary of the assigned buffers")


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
