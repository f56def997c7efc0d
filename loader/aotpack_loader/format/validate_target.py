"""Rules of a target: whether its executables fit the graphs of the program."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

from ..errors import Problem
from . import donations, schema, subclasses
from .validate import in_range, refuse
from .validate_expressions import too_long, unknown_symbols

KERNEL_NAME: Final = re.compile(r"[A-Za-z0-9_]{1,200}")
"""Names of kernels become names of files."""


def validate_target(target: schema.Target, program: schema.Program, where: str) -> None:
    """Check a target against its program.

    C14: its executables take and return the same values as the program's graphs. C27: they
    overwrite only what is donated. C13: its constraints are valid. C44: names of kernels are names of files.

    Raises:
        CorruptBundleError: lists every executable and constraint that does not fit.
    """
    stated = (text for constraints in target.constraints.values() for text in constraints)
    problems: list[Problem] = [*too_long(stated, "$.constraints")]
    refuse(where, problems)
    for name, constraints in target.constraints.items():
        known = {symbol.name for symbol in program.methods[name].symbols} if name in program.methods else ()
        problems += unknown_symbols(((f".constraints.{name}", text) for text in constraints), known, "$")
    entries = {entry.name: entry for entry in program.state}
    described = {key.rpartition(".")[0] for key in (*target.executables, *target.sequences)}
    for name, method in program.methods.items():
        if name not in described:
            continue
        arities = {f"{name}.forward": subclasses.forward_arity(method, entries)}
        if method.backward is not None:
            arities[f"{name}.backward"] = subclasses.backward_arity(method.backward)
        for key, (inputs, outputs) in arities.items():
            sequence, executable = target.sequences.get(key), target.executables.get(key)
            if sequence is not None:
                problems += _sequence_problems(sequence, target, inputs, outputs, f"$.sequences[{key!r}]")
            if executable is None:
                continue
            at = f"$.executables[{key!r}]"
            if sequence is not None:
                problems.append(Problem(at, "C14: the graph is run by a sequence as well"))
            problems += in_range(at, "C14", [(item.index, inputs) for item in executable.inputs])
            if len(executable.outputs) != outputs:
                problems.append(Problem(at, f"C14: {len(executable.outputs)} outputs for a graph with {outputs}"))
            allowed = donations.private(method) if key.endswith(".backward") else donations.of_update(method)
            problems += _overwritten_problems(executable, allowed, at)
        parts = {call.part for key in arities if key in target.sequences for call in target.sequences[key].calls}
        for part in sorted(parts & target.executables.keys()):
            problems += _overwritten_problems(target.executables[part], (), f"$.executables[{part!r}]")
    problems += [
        Problem(f"$.executables[{key!r}].kernels", f"C44: {name[:100]!r} is no name of a kernel")
        for key, executable in target.executables.items()
        for name in executable.kernels
        if not KERNEL_NAME.fullmatch(name)
    ]
    refuse(where, problems)


def _overwritten_problems(executable: schema.Executable, allowed: Collection[int], at: str) -> Iterator[Problem]:
    """C27: code overwrites only what is donated to it."""
    inputs = [item.index if isinstance(item, schema.GivenInput) else None for item in executable.inputs]
    return donations.problems("C27", executable.donated, inputs, allowed, at)


def _sequence_problems(sequence: schema.Sequence, target: schema.Target, inputs: int, outputs: int, at: str) -> Iterator[Problem]:
    """C14: each part is an executable, takes only values that exist by then, and returns the values that are used."""
    values = inputs
    for i, call in enumerate(sequence.calls):
        where = f"{at}.calls[{i}]"
        part = target.executables.get(call.part)
        if part is None:
            yield Problem(where, f"C14: there is no executable {call.part!r}")
            return
        yield from in_range(where, "C14", [(number, values) for number in call.inputs])
        yield from in_range(where, "C14", [(item.index, len(call.inputs)) for item in part.inputs])
        values += len(part.outputs)
    yield from in_range(at, "C14", [(number, values) for number in sequence.outputs])
    if len(sequence.outputs) != outputs:
        yield Problem(at, f"C14: {len(sequence.outputs)} outputs for a graph with {outputs}")
