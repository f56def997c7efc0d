"""Rules N1 to N4, on the modules of a program. The document lists modules, but not what they compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..errors import Problem
from ..text import shown
from . import schema
from .subclasses import data_problem

MAX_DEPTH = 64
"""Of modules in modules, shared ones counted wherever they stand: torch walks them recursively."""
MAX_MODULES = 2**17
"""Modules of a program, shared ones counted wherever they stand: torch walks all of these paths, as for `repr`."""
MAX_ATTRIBUTES = 2**18
"""Attributes of all modules of a program. A load sets each of them."""


def problems(program: schema.Program) -> Iterator[Problem]:
    """Check the modules, and the state and flags that name them."""
    known = {module.name: module for module in program.modules}
    for name, method in program.methods.items():
        for path in method.flags.keys() - (known.keys() - {""}):
            yield Problem(f"$.methods[{shown(name)}].flags", f"N4: {path!r} is no submodule")
    if not program.modules:
        return
    broken = [*_order_problems(program), *_class_problems(program)]
    yield from broken
    if not broken:
        yield from _state_problems(program, known)


def resolve(path: str, modules: Mapping[str, schema.Module]) -> str | None:
    """The path under which the module at ``path`` is listed: the first path of a shared module.

    None if it does not exist.
    """
    found = ""
    for step in path.split(".") if path else ():
        found = f"{found}.{step}" if found else step
        module = modules.get(found)
        if module is None:
            return None
        found = found if module.same_as is None else module.same_as
    return found


def _order_problems(program: schema.Program) -> Iterator[Problem]:
    """N1: modules are listed depth first, each below its parent.

    N2: a shared module is complete before it is shared.
    """
    above: list[str] = []
    sizes: dict[str, int] = {}
    heights: dict[str, int] = {}
    shared: set[str] = set()
    for i, module in enumerate(program.modules):
        at, name = f"$.modules[{i}]", module.name
        parent = name.rpartition(".")[0]
        while above and above[-1] != parent:
            above.pop()
        if name in sizes or (i == 0) != (name == "") or (name and not above) or parent in shared:
            yield Problem(at, f"N1: {name!r} is used twice, or does not follow its parent")
            return
        if name and not all(step and min(step) > "\x1f" for step in name.split(".")):
            yield Problem(at, f"N1: {name!r} is not a valid module name")
        size, height = 1, 1
        if module.same_as is not None:
            if module.same_as not in sizes or module.same_as in (*above, name) or module.same_as in shared:
                yield Problem(
                    at, f"N2: same_as {module.same_as!r} is not an earlier module, is shared itself, or contains this one"
                )
                return
            shared.add(name)
            size, height = sizes[module.same_as], heights[module.same_as]
        if len(above) + height > MAX_DEPTH:
            yield Problem(at, f"N1: it is nested more than {MAX_DEPTH} deep")
            return
        sizes[name], heights[name] = size, height
        for levels, path in enumerate(reversed(above), 1):
            sizes[path] += size
            heights[path] = max(heights[path], levels + height)
        above.append(name)
    if sum(len(module.attributes) for module in program.modules) > MAX_ATTRIBUTES:
        yield Problem("$.modules", f"N1: they have more than {MAX_ATTRIBUTES} attributes")
    if sizes[""] > MAX_MODULES:
        yield Problem("$.modules", f"N2: there are more than {MAX_MODULES} modules, shared ones counted wherever they stand")


def _class_problems(program: schema.Program) -> Iterator[Problem]:
    taken = {*(module.name for module in program.modules), *(entry.name for entry in program.state)}
    for i, module in enumerate(program.modules):
        if module.kind >= len(program.module_classes):
            yield Problem(f"$.modules[{i}].kind", f"N1: there are {len(program.module_classes)} classes")
        for name, value in module.attributes.items():
            if problem := data_problem(value):
                yield Problem(f"$.modules[{i}].attributes[{shown(name)}]", f"N1: its value {problem}")
            if (f"{module.name}.{name}" if module.name else name) in taken:
                yield Problem(f"$.modules[{i}].attributes[{shown(name)}]", "N1: a submodule, parameter or buffer has this name")


def _state_problems(program: schema.Program, known: Mapping[str, schema.Module]) -> Iterator[Problem]:
    """N3: each parameter or buffer belongs to a module. In a shared module it is one tensor under all names."""
    held: dict[tuple[str, str], schema.StateEntry] = {}
    for i, entry in enumerate(program.state):
        at = f"$.state[{i}]"
        path, _, key = entry.name.rpartition(".")
        owner = resolve(path, known)
        if owner is None or entry.name in known:
            yield Problem(at, f"N3: {entry.name!r} belongs to no module, or is a module itself")
            continue
        first = held.setdefault((owner, key), entry)
        if first is not entry and entry.tied_to != (first.tied_to or first.name):
            yield Problem(at, f"N3: {entry.name!r} has the same module and name as {first.name!r}, but is another tensor")
