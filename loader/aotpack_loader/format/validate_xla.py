"""Rules for computations of XLA: C14, C25 and C26, numbered and cited as in :mod:`.validate`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import Problem
from . import donations, schema, subclasses
from .computations import computations, of_method
from .validate import in_range, refuse


def validate_computations(target: schema.Target, program: schema.Program, where: str) -> None:
    """Check rules C14, C25 and C26 of a target's computations.

    Raises:
        CorruptBundleError: lists every computation that does not fit.
    """
    problems: list[Problem] = []
    if target.specializations and target.kind != "xla":
        problems.append(Problem("$.specializations", "C14: only code for XLA has sizes of its own"))
    arities = _arities(program)
    for path, key, computation in computations(target):
        if key in arities:
            problems += _computation_problems(computation, *arities[key], f"$.{path}")
    for name, method in program.methods.items():
        problems += _specialization_problems(target.specializations.get(name, []), method, f"$.specializations[{name!r}]")
    refuse(where, problems)  # the checks below rely on indices
    for name, method in program.methods.items():
        for found in of_method(name, target):
            if (forward := found.get(f"{name}.forward")) is not None:
                problems += _donation_problems(method, forward, found.get(f"{name}.backward"), f"$.xla[{name!r}]")
    refuse(where, problems)


def _arities(program: schema.Program) -> dict[str, tuple[int, int]]:
    """Number of inputs and outputs of each graph, by its key."""
    entries = {entry.name: entry for entry in program.state}
    found = {f"{name}.forward": subclasses.forward_arity(method, entries) for name, method in program.methods.items()}
    for name, method in program.methods.items():
        if method.backward is not None:
            found[f"{name}.backward"] = subclasses.backward_arity(method.backward)
    return found


def _computation_problems(computation: schema.XlaExecutable, inputs: int, outputs: int, at: str) -> Iterator[Problem]:
    """C14: a computation takes inputs of the graph. Each output is one of its results or an input."""
    taken = [parameter.input for parameter in computation.parameters if parameter.input is not None]
    passed = [item.index for item in computation.outputs if isinstance(item, schema.GivenInput)]
    yield from in_range(at, "C14", [(index, inputs) for index in taken + passed])
    made = [item for item in computation.outputs if isinstance(item, int)]
    made += [item.result for item in computation.outputs if isinstance(item, schema.ResultView)]
    yield from in_range(at, "C14", [(position, len(computation.results)) for position in made])
    if len(set(taken)) != len(taken):
        yield Problem(at, "C14: an input of the graph is two parameters")
    if len(computation.outputs) != outputs:
        yield Problem(at, f"C14: {len(computation.outputs)} outputs for a graph with {outputs}")
    if computation.results and computation.hlo is None and computation.code is None:
        yield Problem(at, "C14: there are results and no computation")


def _donation_problems(
    method: schema.Method, forward: schema.XlaExecutable, backward: schema.XlaExecutable | None, at: str
) -> Iterator[Problem]:
    """C26: donated inputs are private or overwritten. C14 must hold already."""
    halves = [(forward, donations.of_forward(method, forward), f"{at}.forward")]
    if backward is not None and method.backward is not None:
        halves.append((backward, donations.of_backward(method, forward), f"{at}.backward"))
    for computation, allowed, where in halves:
        inputs = [parameter.input for parameter in computation.parameters]
        yield from donations.problems("C26", computation.donated, inputs, allowed, where)


def _specialization_problems(codes: Sequence[schema.Specialization], method: schema.Method, at: str) -> Iterator[Problem]:
    """C25: sizes are valid for their symbols, each set once. C14: the same graphs have computations."""
    symbols = {symbol.name: symbol for symbol in method.symbols}
    for i, code in enumerate(codes):
        where = f"{at}[{i}]"
        if (code.backward is None) != (method.backward is None):
            yield Problem(where, "C14: there is a computation for each graph of the method")
        if code.sizes.keys() != symbols.keys() or not symbols:
            yield Problem(where, "C25: there is a size for each symbol of the method")
        elif not all(symbols[name].takes(size) for name, size in code.sizes.items()):
            yield Problem(where, "C25: a size is not in the range of its symbol")
        if any(other.sizes == code.sizes for other in codes[:i]):
            yield Problem(where, "C25: these sizes are there twice")
