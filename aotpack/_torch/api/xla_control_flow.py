"""Builds XLA loops and branches around programs with torch_xla's builder of computations.

Tried on: torch_xla 2.9.0.

A program takes arrays and returns a tuple of them. The body of a ``while`` takes and returns one
tuple, its state: here the number of the turn, and groups of arrays. A branch of a ``conditional``
takes one tuple too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .xla import SEED_FACTOR, SEED_STEP, call_computation, xla_builder
from .xla import call as call_program

Op = Any
"""A value in a computation under construction: an ``xla_builder.Op``, which has no type
annotations.
"""
Group = Sequence[Op]
Tensors = Sequence[torch.Tensor]
Operands = Sequence[torch.Tensor | None]
Type = tuple[torch.dtype, Sequence[int]]

_Op = xla_builder.Op


@dataclass(frozen=True)
class Program:
    """A program that control flow runs.

    ``inputs``: for each parameter the index of its operand; None: a seed. ``outputs``: for each
    output the index of its result; None: no value. ``types``: the types of the results.
    """

    hlo: bytes
    inputs: Sequence[int | None]
    outputs: Sequence[int | None]
    types: Sequence[Type]

    @property
    def seeds(self) -> int:
        """How many seeds the program takes."""
        return list(self.inputs).count(None)


def call(program: Program, operands: Operands, seeds: Tensors) -> list[torch.Tensor | None]:
    """Record a call.

    An operand that the program does not read is None, and so is a result without a value; also
    below.
    """
    left = iter(seeds)
    results = call_program(program.hlo, [next(left) if i is None else operands[i] for i in program.inputs])  # type: ignore[misc]
    return [None if index is None else results[index] for index in program.outputs]


def scan(combine: Program, carry: Tensors, xs: Tensors, additional: Operands, seeds: Tensors) -> list[torch.Tensor | None]:
    """Record a ``while`` that implements a scan, or a map, which is a scan without a carry
    (spec/control-flow.md).

    Each turn derives its own seeds from ``seeds``.
    """
    step = _Callable(combine)
    length = xs[0].shape[0]
    types = [combine.types[index] for index in combine.outputs[len(carry) :] if index is not None]

    def build(builder: Any, seeds: Group, carry: Group, xs: Group, kept: Group) -> list[Op]:
        def goes_on(index: Op, *_: Group) -> Op:
            return index < _constant(index.builder(), length, torch.int32)

        def turn(index: Op, carry: Group, rows: Group, seeds: Group, xs: Group, kept: Group) -> Sequence[Group]:
            operands = [*carry, *(_row(x, index) for x in xs), *_where(additional, kept)]
            results = step(operands, _seeds_of_turn(seeds, index), index.builder())
            added = [result for result in results[len(carry) :] if result is not None]
            return results[: len(carry)], [_with_row(*item, index) for item in zip(rows, added, strict=True)], seeds, xs, kept

        empty = [_constant(builder, 0, dtype).broadcast([length, *sizes]) for dtype, sizes in types]
        last, rows, *_ = _while(builder, goes_on, turn, [carry, empty, seeds, xs, kept])
        return [*last, *rows]

    found = iter(_record(build, [seeds, carry, xs, _there(additional)]))
    return [None if index is None else next(found) for index in combine.outputs]


def while_loop(
    condition: Program,
    body: Program,
    carried: Tensors,
    additional: Operands,
    of_condition: Tensors,
    of_body: Tensors,
) -> list[torch.Tensor | None]:
    """Record a ``while`` (spec/control-flow.md), with seeds for the condition and for the body."""
    asks, step = _Callable(condition), _Callable(body)

    def build(builder: Any, *state: Group) -> list[Op]:
        def goes_on(index: Op, carried: Group, kept: Group, seeds: Group, _: Group) -> Op:
            (answer,) = asks([*carried, *_where(additional, kept)], _seeds_of_turn(seeds, index), index.builder())
            return _truth(answer)

        def turn(index: Op, carried: Group, kept: Group, of_condition: Group, seeds: Group) -> Sequence[Group]:
            results = step([*carried, *_where(additional, kept)], _seeds_of_turn(seeds, index), index.builder())
            return results, kept, of_condition, seeds

        return list(_while(builder, goes_on, turn, state)[0])

    return list(_record(build, [carried, _there(additional), of_condition, of_body]))


def cond(
    predicate: torch.Tensor,
    branches: Sequence[Program],
    operands: Operands,
    seeds: Sequence[Tensors],
) -> list[torch.Tensor | None]:
    """Record a ``conditional`` (spec/control-flow.md); the first branch runs if ``predicate`` is
    true. Each branch has seeds.
    """

    def build(builder: Any, predicate: Group, kept: Group, *seeds: Group) -> list[Op]:
        computations, given = [], []
        for branch, own in zip(branches, seeds, strict=True):
            given.append(_Op.tuple([*own, *kept], builder=builder))
            computations.append(_branch(_Callable(branch), given[-1], len(own), operands))
        result = _truth(predicate[0]).conditional(*given, *computations)
        return [result.get_tuple_element(i) for i in range(len(_present(branches[0].outputs)))]

    found = iter(_record(build, [[predicate], _there(operands), *seeds]))
    return [None if index is None else next(found) for index in branches[0].outputs]


def _branch(run: _Callable, given: Op, seeds: int, operands: Operands) -> Any:
    """The computation of one branch of a ``conditional``.

    Its tuple ``given`` has the seeds, then the existing operands.
    """
    builder = xla_builder.create_builder("branch")
    parameter = xla_builder.mkparam(builder, 0, given.shape())
    values = _elements(parameter)
    results = run(list(_where(operands, values[seeds:])), values[:seeds], builder)
    return _Op.tuple(_present(results), builder=builder).build("branch")


class _Callable:
    """A program as a computation that other computations call."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._computation = xla_builder.computation_from_module_proto("aotpack", program.hlo)

    def __call__(self, operands: Sequence[Op | None], seeds: Group, builder: Any) -> list[Op | None]:
        left = iter(seeds)
        given = [next(left) if i is None else operands[i] for i in self._program.inputs]
        results = _Op.call(self._computation, given, builder=builder)
        return [None if index is None else results.get_tuple_element(index) for index in self._program.outputs]


def _record(build: Callable[..., Sequence[Op]], groups: Sequence[Tensors]) -> list[torch.Tensor]:
    """Build a computation and record a call of it.

    ``build`` gets a builder, and each group of tensors as parameters.
    """
    builder = xla_builder.create_builder("control_flow")
    tensors = [tensor for group in groups for tensor in group]
    parameters = [xla_builder.mkparam(builder, i, xla_builder.tensor_shape(tensor)) for i, tensor in enumerate(tensors)]
    results = build(builder, *_grouped(parameters, groups))
    return call_computation(_Op.tuple(results, builder=builder).build("control_flow"), tensors)


def _while(
    builder: Any, goes_on: Callable[..., Op], turn: Callable[..., Sequence[Group]], state: Sequence[Group]
) -> Sequence[Group]:
    """Build a ``while``; returns the groups of ``state`` after the last turn."""
    index = _constant(builder, 0, torch.int32)
    initial = _Op.tuple([index, *(op for group in state for op in group)], builder=builder)

    def condition(parameter: Op) -> Op:
        index, *values = _elements(parameter)
        return goes_on(index, *_grouped(values, state))

    def body(parameter: Op) -> Op:
        index, *values = _elements(parameter)
        after = turn(index, *_grouped(values, state))
        following = index + _constant(index.builder(), 1, torch.int32)
        return _Op.tuple([following, *(op for group in after for op in group)], builder=index.builder())

    computations = []
    for name, function in (("condition", condition), ("body", body)):
        inner = xla_builder.create_builder(name)
        computations.append(function(xla_builder.mkparam(inner, 0, initial.shape())).build(name))
    return _grouped(_elements(initial.while_loop(*computations))[1:], state)


def _elements(several: Op) -> list[Op]:
    return [several.get_tuple_element(i) for i in range(several.shape().tuple_size())]


def _grouped(values: Iterable[Op], groups: Sequence[Sequence[Any]]) -> list[list[Op]]:
    """Split values into groups of the same lengths as ``groups``."""
    left = iter(values)
    return [[next(left) for _ in group] for group in groups]


def _there(operands: Operands) -> list[torch.Tensor]:
    return [operand for operand in operands if operand is not None]


def _where(operands: Operands, kept: Group) -> Iterator[Op | None]:
    """One value for each operand: the next of ``kept``, or None if the operand is None."""
    left = iter(kept)
    return (None if operand is None else next(left) for operand in operands)


def _present(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _constant(builder: Any, value: int, dtype: torch.dtype) -> Op:
    return _Op.constant(builder, torch.tensor(value, dtype=dtype))


def _truth(value: Op) -> Op:
    """Convert a value with one element of any type to a truth value without dimensions."""
    scalar = value.reshape([])
    return scalar != scalar.zeros_like()


def _first(index: Op, rank: int) -> list[Op]:
    """The indices at which a row starts."""
    return [index, *[_constant(index.builder(), 0, torch.int32)] * (rank - 1)]


def _row(values: Op, index: Op) -> Op:
    sizes = list(values.shape().sizes)
    return values.dynamic_slice(_first(index, len(sizes)), [1, *sizes[1:]]).reshape(sizes[1:])


def _with_row(values: Op, row: Op, index: Op) -> Op:
    sizes = list(values.shape().sizes)
    return values.dynamic_update_slice(row.reshape([1, *sizes[1:]]), _first(index, len(sizes)))


def _seeds_of_turn(seeds: Group, index: Op) -> list[Op]:
    if not seeds:
        return []
    factor, step = (_constant(index.builder(), value, torch.int64) for value in (SEED_FACTOR, SEED_STEP))
    return [seed * factor + index.cast(xla_builder.Type.S64) * step for seed in seeds]
