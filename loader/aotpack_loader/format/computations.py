"""A target's computations of XLA: one for each graph, or one for each graph and set of sizes."""

from __future__ import annotations

from collections.abc import Iterator

from . import schema


def computations(target: schema.Target) -> Iterator[tuple[str, str, schema.XlaExecutable]]:
    """Each computation of a target, with its path in the document and the graph's key (``train.forward``)."""
    for key, computation in target.xla.items():
        yield f"xla[{key!r}]", key, computation
    for name, codes in target.specializations.items():
        for i, code in enumerate(codes):
            for key, computation in of_sizes(name, code).items():
                yield f"specializations[{name!r}][{i}].{key.rpartition('.')[2]}", key, computation


def of_sizes(name: str, code: schema.Specialization) -> dict[str, schema.XlaExecutable]:
    """The computations of the method called ``name`` for one set of sizes, keyed as a target's ``xla``."""
    found = {f"{name}.forward": code.forward}
    return found if code.backward is None else {**found, f"{name}.backward": code.backward}


def of_method(name: str, target: schema.Target) -> list[dict[str, schema.XlaExecutable]]:
    """The computations of a method in groups: one for any sizes, or one for each set of sizes.

    A group has the keys of a target's ``xla``.
    """
    fixed = {key: target.xla[key] for key in (f"{name}.forward", f"{name}.backward") if key in target.xla}
    return [*([fixed] if fixed else []), *(of_sizes(name, code) for code in target.specializations.get(name, []))]
