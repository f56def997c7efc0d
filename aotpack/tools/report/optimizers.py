"""What the optimizers of a bundle are, and how they differ from those of another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aotpack_loader.format import schema
from aotpack_loader.format.optimizers import arguments_of

from .describe import constant_text, tensor_type


@dataclass(frozen=True)
class OptimizerText:
    """An optimizer, its groups and its updates, each as a line."""

    name: str
    kind: str
    groups: list[str]
    updates: list[str]


def optimizer_texts(program: schema.Program) -> list[OptimizerText]:
    """The optimizers of a program."""
    return [
        OptimizerText(
            name,
            optimizer.name,
            [_group(group) for group in optimizer.groups],
            [_update(update, program.methods[update.method]) for update in optimizer.updates],
        )
        for name, optimizer in program.optimizers.items()
    ]


def changes(first: schema.Program, second: schema.Program) -> Iterator[tuple[str, str, bool]]:
    """Where optimizers differ, how, and whether the first one's state no longer fits."""
    for name in sorted(first.optimizers.keys() | second.optimizers.keys()):
        old, new = first.optimizers.get(name), second.optimizers.get(name)
        if old is None or new is None:
            yield name, "optimizer added" if old is None else "optimizer removed", new is None
            continue
        if old.name != new.name:
            yield name, f"{old.name} is now {new.name}", True
        if [group.parameters for group in old.groups] != [group.parameters for group in new.groups]:
            yield name, "its groups have other parameters", True
            continue
        for i, (before, after) in enumerate(zip(old.groups, new.groups, strict=True)):
            for option in sorted(before.options.keys() | after.options.keys()):
                texts = [_value(group.options.get(option)) for group in (before, after)]
                if texts[0] != texts[1]:
                    yield name, f"group {i}: {option} is {texts[1]}, before {texts[0]}", False


def _group(group: schema.OptimizerGroup) -> str:
    numbers = {path.partition(".")[0] for path in group.numbers}
    options = ", ".join(f"{name} {_value(value)}" for name, value in group.options.items() if value is not None)
    varying = ", ".join(name for name in group.options if name in numbers)
    return f"{len(group.parameters)} parameters: {options}" + (f"; can change: {varying}" if varying else "")


def _update(update: schema.OptimizerUpdate, method: schema.Method) -> str:
    parameter, _, state, _ = arguments_of(method)
    own = "any size" if update.flat else tensor_type("", parameter.shape)
    held = (
        f"{name} {leaf.dtype}, {own if leaf.shape == parameter.shape else tensor_type('', leaf.shape)}"
        for name, leaf in state.items()
    )
    return f"{update.method}: {len(update.parameters)} parameters of {parameter.dtype}, {own}; state: {'; '.join(held) or 'none'}"


def _value(data: schema.Data) -> str:
    if isinstance(data, schema.DataSequence):
        return f"({', '.join(map(_value, data.items))})"
    return constant_text(data)
