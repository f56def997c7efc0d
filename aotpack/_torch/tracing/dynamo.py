"""Captures a model with Dynamo's export front end, and records the side effects that the graph does
not contain.
"""

from __future__ import annotations

import contextlib
import inspect
import operator
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch._dynamo
import torch._inductor
import torch._inductor.lowering
from torch._dynamo import _trace_wrapped_higher_order_op, functional_export
from torch._guards import tracing

from aotpack_loader.errors import UnsupportedError

from ..api.counting import counted
from ..api.messages import message_functions
from ..api.patching import hooked, with_items
from ..api.shape_env import fixed_sources
from ..fixes.applying import apply_fixes
from ..refusals.changes import Change, as_written, refuse_changes, refuse_kept, state_after_a_call, watched_changes
from ..refusals.size_caches import NEAR
from .state_assignments import ASSIGNS_STATE, SideEffectError

_SIMPLER = "enable_dynamo_decompositions"
_AS_IN_EAGER = {_SIMPLER: False} if hasattr(torch._dynamo.config, _SIMPLER) else {}
"""``addcmul_`` and similar operators are not decomposed: their decompositions round differently."""


def capture_with_dynamo(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.GraphModule:
    """Trace with Dynamo's export front end; keeps pytrees, parameter names and activation
    checkpoints.

    A first call may set up Python values; the heads of transformers, for example, record which loss
    their labels need. A bundle does not hold such values. If a model reads and changes them, it is
    traced again with the changed values. That trace must give the same graph, and must not read a
    value that it changes. Values that the model keeps for the sizes of a call are computed in each call
    (:mod:`..refusals.size_caches`); :data:`KEPT` names them.

    Raises:
        UnsupportedError: the model's results depend on a Python value that it changes.
    """
    captured, changes = _capture(model, args, kwargs)
    _refuse_changed_arguments(model, changes)
    read = {change.name for change in changes.values() if change.read}
    known = all(change.owner is not None for change in changes.values())
    if read and known and any(change.kept is not None for change in changes.values()):
        if _keeps_for_sizes(captured, changes.values(), lambda: _capture(model, args, kwargs)):
            captured.meta[SIDE_EFFECTS] = ()
            captured.meta[KEPT] = {(id(change.owner), change.attribute): change.value for change in changes.values()}
            return captured
        if all(change.kept is not None for change in changes.values() if change.read):
            refuse_kept(changes.values())
    elif read and known:
        with state_after_a_call(changes.values()):
            again, changes = _capture(model, args, kwargs)
        if _code(captured) == _code(again) and not any(change.read for change in changes.values()):
            return again
    refuse_changes(read)
    return captured


def _keeps_for_sizes(
    captured: torch.fx.GraphModule,
    changes: Collection[Change],
    capture: Callable[[], tuple[torch.fx.GraphModule, dict[str, Change]]],
) -> bool:
    """Whether the model takes what it keeps only at the sizes for which that was computed, and else computes it again."""
    sizes = {size for change in changes if change.kept is not None for size in change.kept.sizes}
    for further in NEAR:
        with state_after_a_call([change.after(further) for change in changes]):
            try:
                again, _ = capture()
            except torch._dynamo.exc.TorchDynamoException:  # the model takes what it keeps at sizes that it does not fit
                return False
        at_these_sizes_alone = further == 0 and sizes <= fixed_sources(again.meta["fake_mode"])
        if not at_these_sizes_alone and _code(captured) != _code(again):
            return False
    return True


def assumes_layouts(graph_module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """Return the calls of custom autograd functions whose backward reads the strides of its gradients.

    Dynamo does not know these strides when it traces the backward. It makes each gradient contiguous first
    (``torch._dynamo._trace_wrapped_higher_order_op.autograd_function_backward_rewritten``).
    """
    calls = graph_module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.autograd_function_apply)
    backwards = [(call, getattr(graph_module, call.args[1].target).graph) for call in calls]
    return [
        call
        for call, graph in backwards
        if any(map(_is_added_by_dynamo, graph.find_nodes(op="call_method", target="contiguous")))
    ]


def _is_added_by_dynamo(node: torch.fx.Node) -> bool:
    return _trace_wrapped_higher_order_op.__file__ in node.meta.get("stack_trace", "")


def _refuse_changed_arguments(model: torch.nn.Module, changes: Iterable[str]) -> None:
    """Reject changes of containers among the arguments, which the graph does not hold; the model's
    own ``**rest`` is allowed.

    Raises:
        SideEffectError: names the containers, or a tensor was assigned to a buffer or parameter.
    """
    if any(".__dict__['_buffers']" in name or ".__dict__['_parameters']" in name for name in changes):
        raise SideEffectError(ASSIGNS_STATE)
    rest = [p.name for p in inspect.signature(model.forward).parameters.values() if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    code = getattr(model.forward, "__code__", None)  # the first parameter of a method may have another name than self
    itself = code.co_varnames[0] if inspect.ismethod(model.forward) and code and code.co_argcount else "self"
    own = re.compile(rf"L\['(self|{itself})'\]|L\['({'|'.join(rest)})'\](\[[^\]]*\])?$")
    if found := sorted(name for name in changes if name.startswith("L['") and not own.match(name)):
        raise SideEffectError(f"changes a container among its arguments: {', '.join(found)}")


def _code(captured: torch.fx.GraphModule) -> list[list[str]]:
    """The nodes of each graph; Dynamo of 2.15 orders the model's inputs by their first use."""
    found = [_nodes(part) for part in captured.modules() if isinstance(part, torch.fx.GraphModule)]
    inputs = len(captured.graph.find_nodes(op="placeholder"))
    return [sorted(found[0][:inputs]), found[0][inputs:], *found[1:]]


def _nodes(module: torch.fx.GraphModule) -> list[str]:
    """The nodes as text, but for comparisons of sizes that nothing reads."""
    unread = set[torch.fx.Node]()
    for node in reversed(module.graph.nodes):
        is_number = isinstance(node.meta.get("example_value"), (int, torch.SymInt, torch.SymBool))
        if is_number and node.op == "call_function" and unread >= node.users.keys():
            unread.add(node)
    kept = [node for node in module.graph.nodes if node not in unread]
    return [f"{node.op} {node.name} {node.target} {node.args} {node.kwargs}" for node in kept]


def _capture(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[torch.fx.GraphModule, dict[str, Change]]:
    """Return the graph, and the Python values that the model changes.

    A bundle's graphs cannot hold messages, so calls that only print, warn or log are left out of
    the trace.
    """
    graph_capture = functional_export.dynamo_graph_capture_for_export
    torch._dynamo.reset()
    with (
        torch._dynamo.config.patch(
            {
                "specialize_int": True,
                "assume_static_by_default": True,
                "automatic_dynamic_shapes": False,
                "capture_scalar_outputs": True,
                "use_numpy_random_stream": True,  # makes NumPy's random numbers an error; otherwise torch would draw them
                "ignore_logging_functions": torch._dynamo.config.ignore_logging_functions | message_functions(),
                **_AS_IN_EAGER,
            }
        ),
        warnings.catch_warnings(record=True) as caught,
        _watched_identity() as compared,
        watched_changes() as changes,
        apply_fixes("dynamo"),
        _offsets_refused(),
    ):
        warnings.simplefilter("always")
        captured: torch.fx.GraphModule = graph_capture(model)(*args, **kwargs)
    _remove_global(captured)
    if any(node.kwargs.get("dirty_idx") for node in captured.graph.nodes):
        raise NotImplementedError("an autograd.Function marks a tensor as dirty, and this front end loses its gradient")
    if _returns_arrays(captured):
        raise SideEffectError("returns a NumPy array, which is no value of a graph; return the tensor")
    captured.meta[SIDE_EFFECTS] = _side_effects([str(warning.message) for warning in caught], changes)
    captured.meta[COMPARES] = bool(compared)
    return captured, changes


def _remove_global(captured: torch.fx.GraphModule) -> None:
    """Remove from the model's module the variable by which Dynamo's code would call the graph.

    Torch leaves it there, with the graph, all that Dynamo recorded, and the model's parameters.
    """
    results = getattr(captured, "_dynamo_bytecode_unflatten", None)
    if results is not None:
        results.f_globals.pop(results.out.backend_input.backend_id, None)


def _returns_arrays(captured: torch.fx.GraphModule) -> bool:
    """Whether Dynamo's code for the results turns a tensor of the graph into a NumPy array. On fake tensors it does not."""
    results = getattr(captured, "_dynamo_bytecode_unflatten", None)
    return results is not None and "to_numpy_helper" in results.out.graph_capture_output.bytecode.co_names


@contextlib.contextmanager
def _offsets_refused() -> Iterator[None]:
    """Make Dynamo reject ``storage_offset()``.

    Torch 2.15 makes it a guarded constant; a bundle has no such guard.
    """
    tensor = torch._dynamo.variables.TensorVariable
    if not hasattr(tensor, "tp_methods"):
        yield
        return
    with with_items("dynamo-state", tensor, "tp_methods", without=("storage_offset",)):
        yield


REFUSED = (UnsupportedError, torch._dynamo.exc.TorchDynamoException)
"""What :func:`capture_with_dynamo` raises for models that it cannot capture, or that fail with these arguments."""

COMPARES = "aotpack_compares"
KEPT = "aotpack_kept"
"""Where a capture has what the model keeps for sizes: attributes of objects, with their values at the example's sizes."""


@contextlib.contextmanager
def _watched_identity() -> Iterator[list[str]]:
    """Record where Dynamo lets the identity of tensors decide: ``is``, ``id()``, keys of
    dictionaries and sets.
    """
    found: list[str] = []
    builtin, tensor = torch._dynamo.variables.BuiltinVariable, torch._dynamo.variables.TensorVariable
    hash_name = "hash_impl" if hasattr(tensor, "hash_impl") else "get_python_hash"
    comparison, identity, hashed = builtin._comparison_with_tensor, builtin.call_id, getattr(tensor, hash_name)

    def watched_comparison(self: Any, tx: Any, left: Any, right: Any) -> Any:
        are_tensors = isinstance(left, tensor) and isinstance(right, tensor)
        if self.fn in (operator.is_, operator.is_not) and are_tensors and left.source and right.source:
            found.append(self.fn.__name__)
        return comparison(self, tx, left, right)

    def watched_identity(self: Any, tx: Any, *args: Any) -> Any:
        found.extend("id" for arg in args if isinstance(arg.realize(), tensor) and arg.source)
        return identity(self, tx, *args)

    def watched_hash(self: Any, *args: Any) -> Any:
        found.extend(["hash"] if self.source else [])
        return hashed(self, *args)

    with (
        hooked("dynamo-state", builtin, "_comparison_with_tensor", counted("dynamo-state", watched_comparison)),
        hooked("dynamo-state", builtin, "call_id", counted("dynamo-state", watched_identity)),
        hooked("dynamo-state", tensor, hash_name, counted("dynamo-state", watched_hash)),
    ):
        _forget_handlers()
        try:
            yield found
        finally:
            _forget_handlers()


def _forget_handlers() -> None:
    """Clear Dynamo's caches of handlers for built-in functions."""
    torch._dynamo.variables.BuiltinVariable._binop_handlers.cache_clear()
    torch._dynamo.variables.BuiltinVariable.call_function_handler_cache.clear()


SIDE_EFFECTS = "aotpack_side_effects"


def _side_effects(messages: Sequence[str], changes: Iterable[str]) -> tuple[str, ...]:
    """What the model changes besides tensors: what Dynamo warns of, and the recorded ``changes``, which have globals too.

    Dynamo's export front end drops these changes; state must not be lost that way.

    Raises:
        SideEffectError: a tensor was assigned to a buffer or parameter.
    """
    effects = " ".join(message for message in messages if "side effects" in message)
    if "._buffers" in effects or "._parameters" in effects:
        raise SideEffectError(ASSIGNS_STATE)
    warned = re.findall(r"\bL\[[^\s,\"]+", effects)
    named = [*changes, *(name for name in warned if not any(change.startswith(name) for change in changes))]
    return tuple(dict.fromkeys(map(as_written, named)))


@contextlib.contextmanager
def dynamo_contexts(captured: torch.fx.GraphModule) -> Iterator[None]:
    """The fake mode and tracing context in which AOTAutograd processes a Dynamo capture."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(tracing(captured.meta["tracing_context"]))
        stack.enter_context(captured.meta["fake_mode"])
        yield
