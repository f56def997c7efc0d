"""Traces the methods of a program.

Each is captured, partitioned and given its calling convention.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
import torch.utils._pytree as pytree
from msgspec import structs

from aotpack_loader.errors import BuildError, Problem, UnsupportedError
from aotpack_loader.format import schema
from aotpack_loader.format.labels import Labels, sources_of

from .. import capture, partition, signature
from .._torch.api.fake_tensors import relate
from .._torch.api.fixed_sizes import stacks_of_fixed_sizes
from .._torch.tracing.fake_run import SetsRequiresGradError
from ..capture import assigned_state, containers
from ..capture.autocast import under_autocast
from ..capture.container_changes import Containers
from ..capture.dry_run.branches import Branch
from ..capture.inputs.aliasing import replaced, separated, sharing
from ..capture.inputs.dynamic_shapes import DynamicShapes
from ..capture.inputs.synthetic_bases import Arrangement, Writes, arrange
from ..capture.source_lines import of_stack
from ..guards import size_one, strides, zero_one
from ..partition.rng import drawn_anew
from . import double_backward
from .build_warnings import remark_on, remark_on_modes
from .check_requested import check_dynamic, check_turned_on, labelled, merged, narrowed, relations, without_one
from .context import BuildContext
from .gradients_only import ask_without_gradients
from .options import MethodPlan, RandomMode
from .progress import Run


@dataclass(frozen=True)
class TracedMethod:
    """A traced method.

    ``identical``, ``distinct``, ``second`` and ``flags`` are those of its document.
    ``gradients_only`` is true if the model does something else without gradients.
    ``made_to_require`` has the leaf numbers of the arguments on which the model calls
    ``requires_grad_()``. ``branches`` were taken as on the example inputs.
    """

    plan: MethodPlan
    convention: signature.Convention
    front_end: str
    identical: list[list[int]]
    distinct: bool
    rng: RandomMode
    gradients_only: bool = False
    second: schema.Second | None = None
    flags: Mapping[str, bool] = field(default_factory=dict)
    made_to_require: frozenset[int] = frozenset()
    branches: Sequence[Branch] = ()


def trace(context: BuildContext) -> list[TracedMethod]:
    """Trace every method of the context's function.

    With ``second_derivatives``, the method of its gradients follows each of them.
    """
    traced: list[TracedMethod] = []
    for plan in context.plans:
        with under_autocast(plan.autocast):
            found = _if_possible(context, plan)
            traced += (
                [m for first in found for m in _with_second(context, first)] if context.options.second_derivatives else found
            )
    return traced


def _if_possible(context: BuildContext, plan: MethodPlan) -> list[TracedMethod]:
    """Trace a method. Return an empty list if an optional method cannot be built.

    Raises:
        BuildError: the method cannot be built, and it is not optional.
    """
    stored = dict(context.stored.tensors)
    try:
        return [_with_flags(context, _trace_method(context, plan))]
    except BuildError as error:
        if not plan.optional:
            raise
        context.stored.tensors.clear()
        context.stored.tensors.update(stored)
        mode = f"{'train()' if plan.training else 'eval()'} with gradients {'on' if plan.grad else 'off'}"
        context.run.warn(f"no method {plan.name!r} was built, which calls under {mode} need (--method {plan.kind}): {error}")
        return []


def _with_flags(context: BuildContext, method: TracedMethod) -> TracedMethod:
    """Return the method with the modes of the submodules that it depends on. A plain function has none."""
    if context.model is not context.module:
        return method
    plan = method.plan
    with capture.as_traced(context.module, method.branches, training=plan.training), torch.set_grad_enabled(plan.grad):
        flags = capture.flags_read(context.module, context.args, context.kwargs)
    remark_on_modes(context.module, plan.name, flags, context.run, training=plan.training)
    return replace(method, flags=flags)


def _trace_method(context: BuildContext, plan: MethodPlan) -> TracedMethod:
    """Trace a method.

    If the model calls ``requires_grad_()`` on arguments, trace again with examples that require
    it.
    """
    try:
        return _trace_as_given(context, plan)
    except SetsRequiresGradError as error:
        leaves = error.leaves
    built = _trace_as_given(_with_gradients(context, leaves), plan)
    return replace(built, convention=_sets_requires_grad(built.convention, leaves), made_to_require=leaves)


def _with_gradients(context: BuildContext, leaves: Collection[int]) -> BuildContext:
    """Return the same context with examples that require gradients.

    ``leaves`` are their leaf numbers.
    """
    flat = pytree.tree_leaves((context.args, context.kwargs))
    made = {id(flat[i]): flat[i].detach().requires_grad_() for i in leaves}
    args, kwargs = replaced(context.args, context.kwargs, {i: made[id(leaf)] for i, leaf in enumerate(flat) if id(leaf) in made})
    return replace(context, args=args, kwargs=kwargs)


def _sets_requires_grad(convention: signature.Convention, leaves: Collection[int]) -> signature.Convention:
    given = convention.method.leaves
    marked = [structs.replace(leaf, sets_requires_grad=True) if i in leaves else leaf for i, leaf in enumerate(given)]
    return convention.changed(leaves=marked)


def _trace_as_given(context: BuildContext, plan: MethodPlan) -> TracedMethod:
    module, args, kwargs = context.module, context.args, context.kwargs
    shared = sharing(args, kwargs, [*module.parameters(), *module.buffers()])
    separate = separated(args, kwargs, shared, context.gaps)
    built = trace_once(context, plan, Arrangement(module, *separate))
    writes = _writes(built.convention)
    if not shared.leaves & (writes.data | writes.reshaped) and not (built.distinct and shared.identical):
        return built
    paths = [leaf.path for leaf in built.convention.method.leaves]
    compares = built.distinct
    arranged = arrange(module, args, kwargs, shared, writes, paths, grad=plan.grad, compares=compares)
    return replace(trace_once(context, plan, arranged), distinct=compares)


def _with_second(context: BuildContext, first: TracedMethod) -> list[TracedMethod]:
    """Return the method, followed by the method of its gradients if it has a backward."""
    if first.convention.backward is None or not first.plan.grad:
        return [first]
    context = _with_gradients(context, first.made_to_require)
    leaves = first.convention.method.leaves
    given = {leaf.path: leaf.subclass for leaf in leaves if isinstance(leaf, schema.TensorLeaf)}
    given |= {entry.name: entry.subclass for entry in context.state}
    if held := [Problem(path, f"a {subclass.name}") for path, subclass in given.items() if subclass is not None]:
        raise UnsupportedError("Second derivatives are not supported with tensor subclasses.", held)
    plan = replace(first.plan, name=f"{first.plan.name}.second", role="derivative")
    gradients = double_backward.Gradients(context.module, first.convention, context.args, context.kwargs)
    tensors, varying = gradients.example(first.convention, context.shapes)
    before = context.module.training
    try:
        # The other front ends expect a user's function here, and would find torch.autograd.grad.
        options = replace(context.options, front_ends=("trace",), regional=False)
        again = replace(context, module=gradients, args=tensors, kwargs={}, shapes=varying, options=options)
        built = trace_once(again, plan, Arrangement(gradients, tensors, {}))
    finally:
        context.module.training = before
    draws = double_backward.check(first.convention, built.convention)
    needed = double_backward.depends(first.convention, built.convention)
    return [replace(first, second=schema.Second(plan.name, draws, needed)), built]


def _writes(convention: signature.Convention) -> Writes:
    """Return which arguments a method writes to or changes."""
    written = [(convention.method.primals[mutation.primal], mutation) for mutation in convention.method.mutations]
    leaves = [(primal.leaf, mutation) for primal, mutation in written if isinstance(primal, schema.InputPrimal)]
    return Writes(
        data=frozenset(leaf for leaf, mutation in leaves if mutation.kind != "metadata"),
        with_gradients=frozenset(leaf for leaf, mutation in leaves if mutation.requires_grad),
        reshaped=frozenset(leaf for leaf, mutation in leaves if mutation.kind != "data"),
    )


@contextlib.contextmanager
def _containers(context: BuildContext, plan: MethodPlan) -> Iterator[Containers]:
    """Yield what the model does to its caller's containers.

    Inside the block it is traced with these changes as results.
    """
    found = Containers()
    if plan.role == "call":
        with capture.as_traced(context.module, (), training=plan.training), torch.set_grad_enabled(plan.grad):
            found = containers.find(context.module, context.args, context.kwargs, on_copies=context.options.branches == "example")
    with containers.traced(context.module, found):
        yield found


def trace_once(context: BuildContext, plan: MethodPlan, arrangement: Arrangement) -> TracedMethod:
    """Capture, partition and assemble one method, with its inputs as arranged."""
    options = context.options
    unlisted = assigned_state.unlisted(context.module, context.assigned)
    with context.run.stage("capture", plan.name), _containers(context, plan) as used, unlisted:
        captured = _captured(context, plan, arrangement)
    gradients_only = ask_without_gradients((context.module, context.args, context.kwargs), plan, context.plans, captured)
    remark_on(captured, plan.name, context.run, asked_for_regions=bool(context.options.regional))
    with context.run.stage("partition", plan.name):
        convention = _assembled(context, arrangement, captured, used)
        stated = {*convention.method.constraints, *relations(context.shapes, convention.method.leaves)}
        convention = convention.changed(constraints=sorted(stated))
    _warn_of_recomputation(context.run, plan, convention)
    if plan.role == "call":
        convention = _guarded(context, plan, convention, captured.branches)
    if convention.backward is not None and not plan.grad:
        check_turned_on(convention)
    stacks = stacks_of_fixed_sizes(captured.joint.fake_mode)
    lines = {size: of_stack(stack) for size, stack in stacks.items()}
    convention = _with_labels(context, plan, convention, lines, captured.rejected)
    identical = [list(group) for group in arrangement.identical]
    if alone := gradients_only():
        context.run.note(f"{plan.name!r} serves no calls without gradients, because the model acts differently there")
    distinct, followed = captured.joint.compares, captured.branches
    return TracedMethod(plan, convention, captured.front_end, identical, distinct, options.rng, alone, branches=followed)


def _captured(context: BuildContext, plan: MethodPlan, arrangement: Arrangement) -> capture.Captured:
    shapes, options = context.shapes, context.options
    return capture.capture(
        arrangement.model,
        arrangement.args,
        arrangement.kwargs,
        shapes.shifted(len(arrangement.bases)) if arrangement.prefix else shapes,
        training=plan.training,
        grad=plan.grad,
        decompositions=context.decompositions,
        exact_random=options.exact_random,
        front_ends=options.front_ends,
        follow_example=options.branches == "example",
        regional=options.regional,
    )


def _assembled(
    context: BuildContext, arrangement: Arrangement, captured: capture.Captured, used: Containers
) -> signature.Convention:
    """Split the joint graph, and describe how the parts are called."""
    options = context.options
    parts = partition.partition(
        captured.joint,
        partitioner=options.partitioner,
        memory_budget=options.memory_budget,
        exact_random=options.exact_random,
    )
    _relate_sizes(context.shapes, captured, parts, len(arrangement.bases))
    call = signature.UserCall(context.module, context.args, context.kwargs, arrangement, captured.returned, context.stored, used)
    return signature.assemble(captured.joint, parts, call)


def _relate_sizes(shapes: DynamicShapes, captured: capture.Captured, parts: partition.Partitioned, bases: int) -> None:
    """Make sizes of one ``Dim`` one size, whether or not the model needs it."""
    values = dict(signature.argument_values(captured.joint, parts, bases))
    for items in shapes.related().values():
        sizes = [(size, values[i] if dim is None else values[i].shape[dim]) for i, dim, size in items if i in values]
        relate([pair for pair in sizes if not pair[0].automatic])


def _warn_of_recomputation(run: Run, plan: MethodPlan, convention: signature.Convention) -> None:
    if written := ", ".join(convention.written_in_checkpoints):
        run.warn(
            f"{plan.name!r}: {written}: written inside a checkpoint; eager writes again when it recomputes, a bundle does not"
        )
    for line in drawn_anew(convention.backward):
        run.warn(f"{plan.name!r}: the backward recomputes a branch with other random numbers, as eager does: {line}")


def _with_labels(
    context: BuildContext,
    plan: MethodPlan,
    convention: signature.Convention,
    lines: Mapping[int, str],
    rejected: Sequence[Problem],
) -> signature.Convention:
    """Return the method with the user's names of its sizes, which must vary as the user asked.

    ``lines`` are those of the model that fix a size at a number, and ``rejected`` says why front ends could not trace it.
    """
    shapes, method = context.shapes, convention.method
    symbols = labelled(method.symbols, shapes, method.leaves)
    second = plan.role == "derivative"
    check_dynamic(shapes, method.leaves, symbols, method.constraints, lines, rejected=rejected, second=second)
    told = [*narrowed(shapes, method.leaves, symbols, lines), *merged(shapes, method.leaves)]
    for found in told if plan.role == "call" else ():
        context.run.warn(f"{plan.name!r}: {found}")
    if method.constraints:
        shown = ", ".join(map(Labels(symbols, sources_of(method.leaves)).text, method.constraints))
        context.run.note(f"{plan.name!r} takes only sizes with {shown}")
    refused = without_one(shapes, method.leaves, symbols, method.constraints)
    if refused and plan.role == "call":
        context.run.warn(
            f"{plan.name!r} takes no size of 1 in {', '.join(refused)}: the model's operators differ there. "
            "Give the Dim min=2, or call the model in eager for one row."
        )
    return convention.changed(symbols=symbols)


def _guarded(
    context: BuildContext, plan: MethodPlan, convention: signature.Convention, branches: Sequence[Branch]
) -> signature.Convention:
    """Return the method with what its graphs need of sizes and strides."""
    with capture.as_traced(context.module, branches, training=plan.training), torch.set_grad_enabled(plan.grad):
        convention = size_one.drop_unneeded_guards(context.module, context.args, context.kwargs, context.shapes, convention)
    return _with_layouts(context, plan, _with_zero_one_guards(context, plan, convention, branches), branches)


def _with_zero_one_guards(
    context: BuildContext, plan: MethodPlan, convention: signature.Convention, branches: Sequence[Branch]
) -> signature.Convention:
    """Return the method with constraints that exclude sizes of 0 and 1 at which its graphs differ from the model."""
    if not convention.method.symbols:
        return convention
    with (
        capture.as_traced(context.module, branches, training=plan.training),
        torch.set_grad_enabled(plan.grad),
        warnings.catch_warnings(action="ignore"),  # the model's own, at sizes that nobody passed
    ):
        found = list(zero_one.find_zero_one_guards(context.module, context.args, context.kwargs, convention))
    for guard in found:
        context.run.warn(
            f"{plan.name!r} does not take {guard.path} = {guard.size}: the model takes it, but the graph fails: {guard.reason}"
        )
    constraints = sorted({*convention.method.constraints, *(guard.constraint for guard in found)})
    return convention.changed(constraints=constraints)


def _with_layouts(
    context: BuildContext, plan: MethodPlan, convention: signature.Convention, branches: Sequence[Branch]
) -> signature.Convention:
    """Return the method with marks on what depends on the strides of its arguments."""
    with capture.as_traced(context.module, branches, training=plan.training), torch.set_grad_enabled(plan.grad):
        found = strides.sensitive(context.module, context.args, context.kwargs, convention, context.gaps)
    return strides.marked(convention, found, context.gaps)
