"""Connects a method to autograd as one node of its graph. ``csrc/`` has twins of functions here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .._torch_compat import (
    changed_saved_tensor,
    is_batched,
    keeps_graph,
    opaque,
    release_saved_tensors,
    saved_tensors_are_hooked,
    sparse_tensor,
    stops_recomputation,
)
from ..format import expressions, schema
from .backward_inputs import Environment, SavedValues, Tangent
from .views import detach_outputs, detached_outputs

if TYPE_CHECKING:
    from .checks import Checks, Remembered
    from .second import Before, SecondDerivative

Executable = Callable[[list[Any]], list[Any]]


class RecomputationStopped(Exception):  # noqa: N818 - the call goes on, and raises the cause of this at its end
    """``torch.utils.checkpoint`` needs nothing more of this call. The original would have written to its state by now."""

    def __init__(self, outputs: list[Any]) -> None:
        super().__init__()
        self.outputs = outputs


class Differentiable:
    """A method's forward and backward executables, and the values passed between them."""

    def __init__(
        self,
        method: schema.Method,
        convention: schema.Backward,
        forward: Executable,
        backward: Executable,
        checks: Checks | None = None,
        *,
        native: bool = False,
    ) -> None:
        self.forward, self.backward, self.checks, self.native = forward, backward, checks, native
        self.method = method
        # Code that reuses the memory of saved tensors has a second form that keeps them, for a
        # retained graph.
        self.retaining: Executable = getattr(backward, "retaining", backward)
        self.untrusted: bool = getattr(forward, "is_untrusted", False)
        self.second: SecondDerivative | None = None
        self.order = "first"
        self.visible = _visible_outputs(method)
        self.saved = SavedValues(convention.saved)
        self.gradients = convention.gradients
        self.sparse = [
            (gradient.primal, position, gradient.indices)
            for gradient in convention.sparse
            if (position := convention.gradients[gradient.primal]) is not None
        ]
        positions = {output: i for i, output in enumerate(self.visible)}
        self.tangents = [Tangent(positions[tangent.output], tangent) for tangent in convention.tangents]
        self.depends = [frozenset(tangents) for tangents in convention.depends]
        non_differentiable = frozenset(method.non_differentiable)
        self.non_differentiable = [i for i, output in enumerate(self.visible) if output in non_differentiable]
        self.detached_outputs = detached_outputs(method.results)
        sources = [self._primals_behind(tangent) for tangent in range(len(self.tangents))]
        # Some operators of torch give undefined gradients, so an output may lead back to no primal.
        # Such an output requires grad as in eager.
        self.sources = [found or range(len(self.gradients)) for found in sources]
        self.detached = [gradient is None and bool(sources) and all(sources) for gradient in self.gradients]
        self.tangent_writes = convention.tangent_writes
        self.state_writes = convention.state_writes

    def __call__(self, primals: list[torch.Tensor], environment: Environment) -> list[Any]:
        """Run the forward. Outputs that require grad are attached to autograd."""
        # A primal without a gradient is detached, so that autograd does not walk its history
        # (AOTAutograd, "Detaching inputs that never need gradients").
        arguments = [
            primal.detach() if detached and primal.requires_grad else primal
            for primal, detached in zip(primals, self.detached, strict=True)
        ]
        call = _DifferentiableCall(self, environment)
        if self.second is not None:
            call.primals, call.before = arguments, self.second.before(arguments)
        call.anchors = [_Anchor.apply(primal) for primal in arguments if primal.grad_fn is not None]  # type: ignore[no-untyped-call]
        try:
            attached = _Step.apply(call, *arguments)  # type: ignore[no-untyped-call]
        except Exception as error:
            if not stops_recomputation(error):
                raise
            raise RecomputationStopped(self._outputs(call, call.returned)) from error
        return self._outputs(call, attached)

    def _outputs(self, call: _DifferentiableCall, attached: Sequence[Any]) -> list[Any]:
        """The outputs of a call, with those that autograd or the caller sees as ``attached``."""
        outputs, call.outputs, call.returned = call.outputs, [], ()
        for position, value in zip(self.visible, attached, strict=True):
            outputs[position] = value
        return outputs

    def without_gradient(self, primals: Sequence[torch.Tensor]) -> list[int]:
        """Indices of the visible outputs that require no grad in a call with these primals.

        These are the outputs that never require grad, and those whose primals require no grad in
        this call.
        """
        idle = [
            tangent.position
            for tangent, sources in zip(self.tangents, self.sources, strict=True)
            if not any(primals[i].requires_grad for i in sources)
        ]
        return self.non_differentiable + idle

    def _primals_behind(self, tangent: int) -> list[int]:
        """Primals whose gradient depends on ``tangent``: the tangent's output was computed from them."""
        return [
            i
            for i, gradient in enumerate(self.gradients)
            if gradient is not None and (not self.depends or tangent in self.depends[gradient])
        ]


def _visible_outputs(method: schema.Method) -> list[int]:
    """Indices of the forward outputs that autograd or the caller sees, in order.

    These are values written back, fresh results and bases of aliases.
    """
    seen = {mutation.output for mutation in method.mutations if mutation.kind != "metadata"}
    for result in method.results:
        if isinstance(result, (schema.FreshResult, schema.AliasResult)) and result.output is not None:
            seen.add(result.output)
    return sorted(seen)


class _DifferentiableCall:
    """One call in progress.

    ``autograd.Function`` takes tensors only as arguments and results; this carries the rest.
    """

    __slots__ = (
        "anchors",
        "before",
        "environment",
        "hooked",
        "method",
        "outputs",
        "primals",
        "remembered",
        "returned",
        "shapes",
        "sizes",
        "state",
        "unchecked",
    )

    def __init__(self, method: Differentiable, environment: Environment) -> None:
        self.method = method
        self.environment = environment
        self.anchors: list[torch.Tensor] = []
        self.outputs: list[Any] = []
        self.shapes: list[torch.Size] = []
        self.sizes: list[tuple[torch.Size, torch.dtype]] = []
        self.state: list[torch.Tensor] = []
        self.unchecked: list[Any] | None = None
        self.hooked = False
        self.remembered: Remembered = []
        self.returned: tuple[Any, ...] = ()
        self.primals: list[torch.Tensor] = []
        self.before: Before = ([], None)


class _Step(torch.autograd.Function):
    """The one autograd node of a call. It returns the gradients of the primals, in order."""

    @staticmethod
    def forward(ctx: Any, call: _DifferentiableCall, *primals: torch.Tensor) -> tuple[Any, ...]:
        method = call.method
        if method.checks is None:
            outputs = method.forward(list(primals))
        else:
            outputs = method.checks.run_forward(method.forward, primals, call.environment)
            call.remembered = method.checks.remember(primals, outputs)
        if method.untrusted or method.sparse:
            call.sizes = [(primal.shape, primal.dtype) for primal in primals]
        _save(ctx, call, primals, outputs)
        detach_outputs(outputs, method.detached_outputs, primals)
        idle = method.without_gradient(primals)
        returned = _without_shared_bases([outputs[position] for position in method.visible], idle)
        call.shapes = [returned[tangent.position].shape for tangent in method.tangents]
        ctx.mark_non_differentiable(*[returned[i] for i in idle])
        ctx.set_materialize_grads(False)
        # Metadata-only updates need these outputs' sizes and strides. The caller gets all other
        # outputs through autograd.
        if call.hooked:
            call.returned = returned  # a hook may stop the call
        call.outputs = [value if position not in method.visible else None for position, value in enumerate(outputs)]
        return returned

    @staticmethod
    @opaque
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        call: _DifferentiableCall = ctx.call
        return _gradients(ctx, call, gradients)


def _gradients(ctx: Any, call: _DifferentiableCall, gradients: Sequence[torch.Tensor | None]) -> tuple[Any, ...]:
    """The gradients of the primals, in order, after a None for the call itself."""
    method = call.method
    received = {i for i, tangent in enumerate(method.tangents) if gradients[tangent.position] is not None}
    if not received:
        return (None,) * (1 + len(method.gradients))
    if method.native and any(is_batched(gradient) for gradient in gradients if gradient is not None):
        from .refused_gradients import batched_gradient_error  # an error, so not imported at every start

        raise batched_gradient_error()
    arguments = _unpack(ctx, call)
    if not method.untrusted:
        return _computed_gradients(ctx, call, gradients, arguments, received)
    try:
        return _computed_gradients(ctx, call, gradients, arguments, received)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        from ..devices.sandbox.untrusted_calls import refused  # not imported for trusted bundles

        raise refused(error) from error


def _computed_gradients(
    ctx: Any, call: _DifferentiableCall, gradients: Sequence[torch.Tensor | None], arguments: list[Any], received: set[int]
) -> tuple[Any, ...]:
    """Run the backward graph on the unpacked saved values; ``received``: the tangents that are there."""
    method = call.method
    device = next(g.device for g in gradients if g is not None)
    tangents = [
        tangent(gradients[tangent.position], shape, call.environment, device)
        for tangent, shape in zip(method.tangents, call.shapes, strict=True)
    ]
    if method.second is not None and torch.is_grad_enabled():
        return (None, *_differentiated_again(call, method.second, tangents, received))
    written = None
    if method.tangent_writes or method.state_writes:
        from .backward_writes import Writes  # few bundles have them

        written = Writes(ctx, method, gradients, received, arguments)
    arguments += [*tangents, *call.state]
    results = _run(_backward_of(call), arguments, device)
    if not method.sparse:
        _check_gradients(call, results, method.gradients)  # before the caller's gradients are written to
    if written is not None:
        written.write(results)  # also copies results that share memory with them
    if method.sparse:
        _make_sparse(results, call)
        _check_gradients(call, results, method.gradients)
    if torch.is_grad_enabled():
        from .refused_gradients import refuse_second_derivative  # only under create_graph=True

        results = refuse_second_derivative(method.order, results, [*call.anchors, *_leaves(ctx), *_differentiable(gradients)])
    # A primal that none of the received tangents reaches gets no gradient in eager, not zeros.
    for i, needed in enumerate(method.depends):
        if needed and not needed & received:
            results[i] = None
    return (None, *[None if position is None else results[position] for position in method.gradients])


def _check_gradients(call: _DifferentiableCall, results: Sequence[Any], positions: Sequence[int | None]) -> None:
    if call.method.untrusted:
        from ..devices.sandbox.untrusted_calls import require_gradients  # not imported for trusted bundles

        require_gradients(results, positions, call.sizes)


def _make_sparse(results: list[Any], call: _DifferentiableCall) -> None:
    """Replace the values of sparse gradients in ``results`` by sparse tensors with the sizes of their primals."""
    checked = call.method.untrusted or call.method.checks is not None
    made = {
        position: sparse_tensor(results[indices], results[position], call.sizes[primal][0], checked=checked)
        for primal, position, indices in call.method.sparse
    }
    for position, gradient in made.items():
        results[position] = gradient


def _differentiated_again(
    call: _DifferentiableCall, second: SecondDerivative, tangents: list[torch.Tensor], received: set[int]
) -> list[Any]:
    """The gradients, themselves differentiable (``create_graph=True``)."""
    method = call.method
    found = iter(second(call.primals, tangents, received, call.before))
    values = [None if position is None else next(found, None) for position in method.gradients]
    _check_gradients(call, values, range(len(values)))
    for i, position in enumerate(method.gradients):
        if position is not None and method.depends and method.depends[position] and not method.depends[position] & received:
            values[i] = None
    return values


def _backward_of(call: _DifferentiableCall) -> Executable:
    """The backward executable. With checks on, the checks of this call run around it."""
    method, checks = call.method, call.method.checks
    retained = call.hooked or keeps_graph()
    backward = method.retaining if retained else method.backward
    if checks is None:
        return backward
    return lambda arguments: checks.run_backward(backward, arguments, call.remembered, call.environment, retained=retained)


def _without_shared_bases(values: list[Any], idle: Sequence[int]) -> tuple[Any, ...]:
    """The outputs, with each of ``idle`` detached if it is a view of another output.

    The outputs in ``idle`` require no grad. A view requires grad if its base does, so such a view
    is detached.
    """
    for i in idle:
        base = values[i]._base
        if base is not None and any(base is value for index, value in enumerate(values) if index not in idle):
            values[i] = values[i].detach()
    return tuple(values)


def _run(backward: Executable, arguments: list[Any], device: torch.device) -> list[Any]:
    """Run the backward graph without autocast and without gradients. The graph holds its own casts."""
    if torch.is_autocast_enabled(device.type):
        with torch.no_grad(), torch.autocast(device.type, enabled=False):
            return backward(arguments)
    if torch.is_grad_enabled():
        with torch.no_grad():
            return backward(arguments)
    return backward(arguments)


def _save(ctx: Any, call: _DifferentiableCall, primals: tuple[torch.Tensor, ...], outputs: list[Any]) -> None:
    saved = call.method.saved
    call.hooked = saved_tensors_are_hooked()
    ctx.save_for_backward(*[primals[i] for i in saved.primals], *[_unaliased(outputs[i]) for i in saved.checked])
    ctx.call = call
    call.unchecked = [outputs[i] for i in saved.unchecked]
    call.state = [primals[write.primal] for write in call.method.state_writes]


def _unaliased(value: torch.Tensor) -> torch.Tensor:
    return value.detach() if value._is_view() else value


def _unpack(ctx: Any, call: _DifferentiableCall) -> list[Any]:
    """The saved inputs of the backward, in order.

    Unless the graph is kept, the returned list then holds the only references to them.
    """
    try:
        found = [*ctx.saved_tensors]
    except RuntimeError as error:
        position = None if call.hooked else changed_saved_tensor(ctx)
        if position is None:
            raise
        from .names import saved_names
        from .refused_gradients import changed_error

        raise changed_error(saved_names(call.method.method, primals_first=True)[position]) from error
    if call.unchecked is None:
        from .refused_gradients import graph_freed_error

        raise graph_freed_error()
    saved = call.method.saved
    found += call.unchecked
    found += [expressions.evaluate(size, call.environment) for size in saved.sizes]
    release_saved_tensors(ctx)
    if not keeps_graph():
        call.unchecked, call.primals = None, []
    return found if saved.order is None else [found[i] for i in saved.order]


class _Anchor(torch.autograd.Function):
    """A node without data on the history of a primal. It connects gradients of gradients to the primal."""

    @staticmethod
    def forward(ctx: Any, primal: torch.Tensor) -> torch.Tensor:
        return primal.new_empty(0)

    @staticmethod
    @opaque
    def backward(ctx: Any, gradient: Any) -> None:
        return None


def _leaves(ctx: Any) -> list[torch.Tensor]:
    """The leaf primals of a call."""
    return [node.variable for node, _ in ctx.next_functions if hasattr(node, "variable")]


def _differentiable(gradients: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    return [gradient for gradient in gradients if gradient is not None and gradient.requires_grad]
