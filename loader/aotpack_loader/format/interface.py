"""Rule N5, on the data that a program provides to tools in addition to its call."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import Problem
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
