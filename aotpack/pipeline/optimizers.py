"""Traces the steps of the optimizers that a user asked for, and describes them.

A method is traced for each kind of parameter: those of one element type whose groups have the same algorithm. An
elementwise update takes tensors of any size, so one graph serves all parameters of a kind. Others,
such as Muon's, are traced for each size.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from msgspec import structs

from aotpack_loader.errors import CaptureError, Problem, UnsupportedError
from aotpack_loader.format import schema

from ..capture.inputs.dynamic_shapes import resolve as resolve_shapes
from ..capture.inputs.synthetic_bases import Arrangement
from ..graph.literals import literal_argument
from ..optimizer.asked import AskedOptimizer, Group
from ..optimizer.first_steps import FirstStep, check_alone, first_step, is_elementwise, takes_sparse
from ..optimizer.update import Update
from .context import BuildContext
from .options import MethodPlan
from .traced_methods import TracedMethod, trace_once

_FLAT: Final = 6
"""Elements of the flat example. No other size of an update is so large that it could be taken for this one."""


@dataclass(frozen=True)
class TracedOptimizers:
    """The methods of all optimizers, and their documents by name."""

    methods: list[TracedMethod]
    documents: Mapping[str, schema.Optimizer]


@dataclass(frozen=True)
class _Kind:
    """A traced update, and what it assumes."""

    method: TracedMethod
    flat: bool
    start: FirstStep
    conditions: Mapping[str, schema.OptimizerNumber]


def trace(context: BuildContext, optimizers: Mapping[str, AskedOptimizer]) -> TracedOptimizers:
    """Trace the steps of the optimizers.

    Raises:
        UnsupportedError: an update does something that a graph cannot hold.
    """
    tracer = _Tracer(context)
    documents = {name: tracer.optimizer(name, asked) for name, asked in optimizers.items()}
    return TracedOptimizers(tracer.methods, documents)


def check_gradients(methods: Sequence[TracedMethod], optimizers: Mapping[str, schema.Optimizer]) -> None:
    """Check that the optimizers take the gradients that the methods compute, sparse or dense.

    Raises:
        UnsupportedError: lists the parameters whose optimizer does not.
    """
    found: dict[str, set[bool]] = {}  # by parameter, whether its gradients are sparse
    for method in (one.convention.method for one in methods):
        if method.backward is not None:
            sparse = {gradient.primal for gradient in method.backward.sparse}
            for i, (primal, output) in enumerate(zip(method.primals, method.backward.gradients, strict=True)):
                if output is not None and isinstance(primal, schema.ParameterPrimal):
                    found.setdefault(primal.name, set()).add(i in sparse)
    problems = []
    for optimizer in optimizers.values():
        for update in optimizer.updates:
            refused = {"never": True, "required": False}.get(update.sparse)
            kind = "sparse" if refused else "dense"
            text = f"has {kind} gradients, with which a step of {optimizer.name} with these options cannot be in a bundle"
            problems += [Problem(name, text) for name in update.parameters if refused in found.get(name, ())]
    if problems:
        hint = "For sparse gradients take SparseAdam, SGD without momentum, or Adagrad; for others sparse=False."
        raise UnsupportedError("The optimizer does not take the gradients of the model.", problems, hint=hint)


class _Tracer:
    def __init__(self, context: BuildContext) -> None:
        self._context = context
        self._kinds: dict[Hashable, list[_Kind]] = {}
        self._flat: dict[Hashable, bool] = {}
        self.methods: list[TracedMethod] = []

    def optimizer(self, name: str, asked: AskedOptimizer) -> schema.Optimizer:
        groups: list[schema.OptimizerGroup] = []
        updates: list[schema.OptimizerUpdate] = []
        for i, group in enumerate(asked.groups):
            members: dict[str, tuple[_Kind, list[str]]] = {}
            conditions = dict.fromkeys(group.numbers, schema.OptimizerNumber())
            first: dict[str, float] = {}
            for path, parameter in zip(group.names, group.parameters, strict=True):
                kind = self._kind(name, asked, group, parameter)
                members.setdefault(kind.method.plan.name, (kind, []))[1].append(path)
                conditions |= {path: number for path, number in kind.conditions.items() if number != schema.OptimizerNumber()}
                first |= kind.start.first
            options = {option: _data(value) for option, value in group.options.items()}
            numbers = {path: schema.FloatArg(value) for path, value in first.items()}
            groups.append(schema.OptimizerGroup([*group.names], options, conditions, numbers))
            for kind, names in members.values():
                dtype = group.parameters[group.names.index(names[0])].dtype
                sparse = takes_sparse(asked, group, dtype) if kind.flat else "never"
                updates.append(self._update(kind, i, names, sparse))
        return schema.Optimizer(type(asked.optimizer).__name__, groups, updates)

    def _kind(self, name: str, asked: AskedOptimizer, group: Group, parameter: torch.Tensor) -> _Kind:
        """The update of a parameter: an earlier one, if its graph is right for this one, too."""
        flat = self._is_flat(asked, group, parameter)
        fixed = repr(sorted(group.traced(dict.fromkeys(group.numbers)).items()))
        sizes = () if flat else (parameter.shape, parameter.stride())
        kinds = self._kinds.setdefault((name, fixed, parameter.dtype, flat, sizes), [])
        for kind in kinds:
            if all(kind.conditions[path].takes(value) for path, value in group.numbers.items()):
                return kind
        kinds.append(self._traced(f"{name}.{len(self.methods)}", asked, group, parameter, flat=flat))
        self.methods.append(kinds[-1].method)
        return kinds[-1]

    def _is_flat(self, asked: AskedOptimizer, group: Group, parameter: torch.Tensor) -> bool:
        """Whether the update is elementwise. It is found out once for each number of dimensions."""
        key = id(group), parameter.dim(), parameter.dtype
        if key not in self._flat:
            self._flat[key] = is_elementwise(asked, group, parameter.detach())
        return self._flat[key]

    def _traced(self, name: str, asked: AskedOptimizer, group: Group, parameter: torch.Tensor, *, flat: bool) -> _Kind:
        like = torch.zeros(_FLAT, dtype=parameter.dtype) if flat else parameter.detach().clone()
        check_alone(asked, group, like)
        start = first_step(asked, group, like)
        try:
            return self._with_step(name, asked, group, like, start, flat=flat, capturable=False)
        except CaptureError:
            if "capturable" not in group.options:
                raise
        # This step computes with tensors where the other branches on numbers.
        return self._with_step(name, asked, group, like, start, flat=flat, capturable=True)

    def _with_step(
        self,
        name: str,
        asked: AskedOptimizer,
        group: Group,
        like: torch.Tensor,
        start: FirstStep,
        *,
        flat: bool,
        capturable: bool,
    ) -> _Kind:
        conditions: dict[str, schema.OptimizerNumber] = {}
        update = Update(asked, group, start.integers, conditions, capturable=capturable)
        numbers = {path: torch.tensor(value, dtype=torch.float64) for path, value in group.numbers.items()}
        state = {name: tensor.clone() for name, tensor in start.state.items()}
        args = (like, torch.zeros_like(like), state, numbers)
        any_size = {0: torch.export.Dim("elements", min=2)} if flat else None
        sizes = {
            "parameter": any_size,
            "gradient": any_size,
            "state": {key: any_size if x.shape == like.shape else None for key, x in state.items()},
            "numbers": dict.fromkeys(numbers),
        }
        context = replace(
            self._context,
            model=update,
            module=update,
            args=args,
            kwargs={},
            shapes=resolve_shapes(update, args, {}, sizes),
            gaps=frozenset(),
            options=replace(self._context.options, front_ends=("trace",), regional=False, branches="refuse"),
            assigned=(),
        )
        plan = MethodPlan(name, training=False, grad=False, role="step")
        method = trace_once(context, plan, Arrangement(update, args, {}))
        if method.convention.method.output_symbols:
            raise CaptureError(f"The step of {type(asked.optimizer).__name__} has sizes that depend on data.")
        return _Kind(_with_any_size(method) if flat else method, flat, start, conditions)

    def _update(self, kind: _Kind, group: int, names: Sequence[str], sparse: schema.Sparse) -> schema.OptimizerUpdate:
        start = kind.start
        initial = {name: value if isinstance(value, str) else schema.FloatArg(value) for name, value in start.initial.items()}
        return schema.OptimizerUpdate(kind.method.plan.name, group, [*names], initial, kind.flat, [*start.integers], sparse)


def _data(value: Any) -> schema.Data:
    """An option as plain data."""
    if isinstance(value, torch.Tensor):
        value = value.item()
    if isinstance(value, (list, tuple)):
        return schema.DataSequence("tuple" if isinstance(value, tuple) else "list", [_data(item) for item in value])
    literal: schema.Data = literal_argument(value)  # asked.resolve has refused what is none
    return literal


def _with_any_size(traced: TracedMethod) -> TracedMethod:
    """An elementwise update takes every number of elements: nothing of its graph differs for 0 and 1.

    Raises:
        UnsupportedError: the graph takes only some.
    """
    method = traced.convention.method
    if method.constraints or len(method.symbols) != 1:
        raise UnsupportedError(f"The update {traced.plan.name!r} takes only some sizes: {', '.join(method.constraints)}.")
    symbols = [structs.replace(symbol, minimum=0, hint=None) for symbol in method.symbols]
    return replace(traced, convention=traced.convention.changed(symbols=symbols))
