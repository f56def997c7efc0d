"""Rules of the optimizers of a program (C42), and what the arguments of an update mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from ..errors import Problem
from ..text import shown
from . import schema

PARAMETER: Final = "params"
"""In ``initial``: the state begins as a copy of the parameter. No option has this name: it is a group's key of its parameters."""


class Arguments(NamedTuple):
    """The arguments of an update: the parameter, its gradient, its state by name, and the numbers of its group by path."""

    parameter: schema.TensorLeaf
    gradient: schema.TensorLeaf
    state: Mapping[str, schema.TensorLeaf]
    numbers: Mapping[str, schema.TensorLeaf]


def arguments_of(method: schema.Method) -> Arguments:
    """The arguments of an update.

    Raises:
        ValueError: it takes others.
    """
    leaves = [leaf for leaf in method.leaves if isinstance(leaf, schema.TensorLeaf)]
    args = getattr(getattr(method.inputs, "items", [None])[0], "items", [])
    if len(args) != 4 or len(leaves) != len(method.leaves):
        raise ValueError("it takes other arguments than an update")
    names: list[list[str]] = []
    for tree in args[2:]:
        if not isinstance(tree, schema.DictNode) or not all(isinstance(item, schema.LeafNode) for item in tree.items):
            raise ValueError("its state and numbers are no dictionaries of tensors")
        names.append([str(key) for key in tree.keys])
    state, numbers = names
    if len(leaves) != 2 + len(state) + len(numbers):
        raise ValueError("it takes other arguments than an update")
    parts = dict(zip(state, leaves[2:], strict=False)), dict(zip(numbers, leaves[2 + len(state) :], strict=True))
    return Arguments(leaves[0], leaves[1], *parts)


def problems(program: schema.Program) -> Iterator[Problem]:
    """C42: each update is a method for it, and its parameters and options exist."""
    steps = {name for name, method in program.methods.items() if method.step}
    for name in steps:
        if program.methods[name].serves:
            yield Problem(f"$.methods[{shown(name)}].serves", "C42: an update serves no mode")
    used: set[str] = set()
    parameters = {entry.name for entry in program.state if entry.kind == "parameter"}
    for name, optimizer in program.optimizers.items():
        at = f"$.optimizers[{shown(name)}]"
        known = [parameter for group in optimizer.groups for parameter in group.parameters]
        updated = [(update.group, parameter) for update in optimizer.updates for parameter in update.parameters]
        of_groups = [(i, parameter) for i, group in enumerate(optimizer.groups) for parameter in group.parameters]
        if not parameters.issuperset(known) or len(set(known)) < len(known):
            yield Problem(f"{at}.groups", "C42: they hold parameters of the program, each once")
        if sorted(updated) != sorted(of_groups):
            yield Problem(f"{at}.updates", "C42: each parameter of a group has one update")
            continue
        for i, update in enumerate(optimizer.updates):
            used.add(update.method)
            if update.method not in steps:
                yield Problem(f"{at}.updates[{i}]", f"C42: {update.method!r} is no method for an update")
            else:
                text = _wrong(update, program.methods[update.method], optimizer.groups[update.group])
                if text:
                    yield Problem(f"{at}.updates[{i}]", f"C42: {text}")
    for name in sorted(steps - used):
        yield Problem(f"$.methods[{shown(name)}]", "C42: no optimizer has this update")


def _wrong(update: schema.OptimizerUpdate, method: schema.Method, group: schema.OptimizerGroup) -> str:
    """What is wrong with an update and its method, or an empty string."""
    try:
        parameter, gradient, state, numbers = arguments_of(method)
    except ValueError as error:
        return str(error)
    own = [parameter, gradient, *state.values()]
    if (gradient.shape, gradient.dtype) != (parameter.shape, parameter.dtype):
        return "the gradient differs from the parameter"
    if numbers.keys() != group.numbers.keys() or any((x.shape, x.dtype) != ([], "float64") for x in numbers.values()):
        return "the numbers are float64, without dimensions, and those of the group"
    if not numbers.keys() <= {*_paths(group.options)}:
        return "the numbers are options of the group"
    if update.initial.keys() != state.keys() or not set(update.integers) <= state.keys():
        return "initial and integers name its state"
    copies = [name for name, value in update.initial.items() if value == PARAMETER]
    if any(state[name].shape != parameter.shape or name in update.integers for name in copies):
        return "a state that begins as its parameter has its sizes"
    paths = {value for value in update.initial.values() if isinstance(value, str) and value != PARAMETER}
    if not {*paths, *group.first} <= numbers.keys():
        return "initial and first name numbers of the group"
    if any((state[name].shape, state[name].dtype) != ([], "int64") for name in update.integers):
        return "integers are int64, without dimensions"
    varying = [leaf for leaf in own if leaf.shape and not all(isinstance(size, int) for size in leaf.shape)]
    sizes = [symbol.name for symbol in method.symbols]
    if update.flat and (len(sizes) != 1 or any(leaf.shape not in ([], sizes) for leaf in own) or parameter.shape != sizes):
        return "a flat update takes tensors of one dimension, which varies"
    if not update.flat and (varying or sizes or update.sparse != "never"):
        return "only a flat update takes sizes that vary, and sparse gradients"
    if any(leaf.subclass is not None or leaf.requires_grad or leaf.stride is None for leaf in own) or method.backward is not None:
        return "it takes plain tensors, and has no backward"
    taken = (schema.InputPrimal, schema.ConstantPrimal)
    returns = any(not isinstance(result, schema.ConstantResult) for result in method.results)
    if not all(isinstance(primal, taken) for primal in method.primals) or returns or method.constraints or method.output_symbols:
        return "it takes arguments and constants alone, and returns nothing"
    primals = dict(enumerate(method.primals))
    written = [getattr(primals.get(mutation.primal), "leaf", -1) for mutation in method.mutations]
    if len({*written}) < len(written) or not {*written} <= {0, *range(2, 2 + len(state))}:
        return "it writes to the parameter and to the state, once"
    if any(mutation.kind != "data" for mutation in method.mutations):
        return "it writes data"
    return ""


def _paths(options: Mapping[str, schema.Data]) -> Iterator[str]:
    """The paths of options that hold numbers."""
    for name, value in options.items():
        items = [(name, value)]
        if isinstance(value, schema.DataSequence):
            items = [(f"{name}.{i}", item) for i, item in enumerate(value.items)]
        for path, item in items:
            if isinstance(item, (int, schema.FloatArg)) and not isinstance(item, bool):
                yield path
