"""Runs a model on fake tensors, to reject what eager rejects but tracing without Dynamo would
accept.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CodeType
from typing import Any, NamedTuple

import torch
import torch._dynamo
import torch._inductor
import torch._inductor.lowering
import torch.utils.checkpoint
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.eval_frame import skip_code
from torch._dynamo.tensor_version_op import _tensor_version, _unsafe_set_version_counter
from torch._guards import CompileContext
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode

from ... import origin
from ..api.constants import KnownConstants
from ..api.fake_tensors import blank_like
from ..api.functional_call import functional_call
from ..api.own_gradients import refused_accumulation
from ..api.patching import hooked
from ..api.writes import operator_of, written
from ..fixes.aot_autograd.overlaps import OverlapMutationMode
from ..refusals.undefined_gradients import UndefinedGradients
from .state_assignments import SideEffectError


class VersionedWrites(NamedTuple):
    """Inputs whose version counter moves when the model runs: argument leaves by number, parameters
    and buffers by name.
    """

    leaves: frozenset[int]
    names: frozenset[str]


class FakeRun(NamedTuple):
    """Outcome of a run on fake tensors.

    ``result``: what the model returns. ``leaves``: the fake tensors that replaced tensor arguments,
    by leaf number. ``touched``: inputs whose version counter moved. ``records``: whether autograd
    recorded a new node for a result or input. ``reads_nodes``: whether the model reads ``grad_fn``.
    """

    result: Any
    leaves: Mapping[int, torch.Tensor]
    touched: VersionedWrites
    records: bool
    reads_nodes: bool


class SetsRequiresGradError(SideEffectError):
    """The model calls ``requires_grad_()`` on arguments (``leaves``: their numbers), and a call
    must repeat that.
    """

    def __init__(self, leaves: frozenset[int]) -> None:
        super().__init__("calls requires_grad_() on an argument while it runs, which this front end cannot trace")
        self.leaves = leaves


class OperatorCall(NamedTuple):
    """An operator that a model calls; ``strides`` are its first argument's, if the operator's
    result depends on them.
    """

    operator: torch._ops.OpOverload
    strides: tuple[int, ...] | None = None


_COUNTING = {
    getattr(torch.ops.aten, name)
    for name in ("as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter", "resize", "resize_", "resize_as_")
}


def is_compiling() -> bool:
    """Whether Dynamo is active: it traces the caller, or its own Python code is running (``CompileContext``)."""
    return torch.compiler.is_compiling() or CompileContext.try_get() is not None


@contextlib.contextmanager
def suspended_while_compiling(
    codes: Iterable[CodeType], suspend: Callable[[], None], resume: Callable[[], None]
) -> Iterator[None]:
    """Hide functions with these ``codes``, which ``resume`` patches into Python, from Dynamo; it
    traces any code that runs.
    """
    for code in codes:
        skip_code(code)
    handler = torch._dynamo.callback.callback_handler
    start = handler.register_start_callback(lambda _: suspend())
    end = handler.register_end_callback(lambda _: resume())
    try:
        yield
    finally:
        for callbacks, callback in ((handler.start_callbacks, start), (handler.end_callbacks, end)):
            if callback in callbacks:  # torch._dynamo.reset() removes all callbacks
                callbacks.remove(callback)


def run_on_fake_tensors(
    mode: FakeTensorMode,
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    strict: bool = True,
    operators: list[OperatorCall] | None = None,
    watch: TorchFunctionMode | None = None,
) -> FakeRun:
    """Run the model eagerly on fake tensors, to reject what eager rejects but tracing without
    Dynamo would accept.

    ``strict=False`` only lets the model set up what it sets up at its first call. Called operators
    that are not views are appended to ``operators``. ``watch`` is active while the model itself
    runs.

    Only a run shows which version counters move. Kernels may write without declaring it
    (BatchNorm's statistics), and in-place operators may have nothing to do.

    Raises:
        SideEffectError: the model changes ``data`` of a tensor, or ``requires_grad`` of one that
            outlives the call.
        SetsRequiresGradError: arguments are made to require gradients, and nothing else is wrong.
        UndefinedGradientError: a custom backward tells undefined gradients from zeros.
        Exception: whatever the model raises.
    """
    try:
        return _run(mode, model, args, kwargs, strict, operators, watch)
    except RuntimeError as error:
        reads_values = isinstance(error, (DataDependentOutputException, GuardOnDataDependentSymNode))
        if not reads_values and "data is not allocated" not in str(error):
            raise
    with (
        enable_python_dispatcher()
    ):  # a C++ composite reads values (istft, tensor_split); its Python decomposition, which is traced, may not
        return _run(mode, model, args, kwargs, strict, operators, watch)


def _run(
    mode: FakeTensorMode,
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    strict: bool,
    operators: list[OperatorCall] | None,
    watch: TorchFunctionMode | None,
) -> FakeRun:
    def twin(tensor: torch.Tensor) -> torch.Tensor:
        copy = blank_like(tensor).requires_grad_(tensor.requires_grad)
        with torch.enable_grad():
            return copy if tensor.is_leaf else blank_like(tensor).copy_(copy)  # a clone would drop gaps between elements

    with mode:
        twins: dict[int, torch.Tensor] = {}
        args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: twins.setdefault(id(t), twin(t)), (args, kwargs))
        state = {name: twin(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
        leaves = {
            i: leaf for i, leaf in enumerate(torch.utils._pytree.tree_leaves((args, kwargs))) if isinstance(leaf, torch.Tensor)
        }
        inputs = (*leaves.values(), *state.values())
        before = {id(tensor): tensor._version for tensor in inputs}
        known = [tensor.grad_fn for tensor in inputs]
        watched, undefined = _RefusedFunctions(leaves, state), UndefinedGradients()
        with contextlib.ExitStack() as stack:
            if operators is not None:
                operators.clear()
                stack.enter_context(_recorded_operators(mode, operators))
            if watch is not None:
                if begin := getattr(watch, "begin", None):
                    begin({f"argument {i}": leaf for i, leaf in leaves.items()} | state)
                stack.enter_context(_internal_calls_hidden(mode))
                stack.enter_context(watch)
            stack.enter_context(KnownConstants())
            if strict:
                stack.enter_context(OverlapMutationMode())
                stack.enter_context(undefined.watched())
                stack.enter_context(refused_accumulation())
                stack.enter_context(watched)  # entered last, so called first: it inspects the caller's frame
            result = functional_call(model, state, args, kwargs)
        if strict and watched.made_to_require:
            raise SetsRequiresGradError(frozenset(watched.made_to_require))
        watched.check_results(result)
        undefined.check([leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)])
        touched = VersionedWrites(
            frozenset(i for i, tensor in leaves.items() if tensor._version != before[id(tensor)]),
            frozenset(name for name, x in state.items() if x._version != before[id(x)]),
        )
        reached = [leaf for leaf in torch.utils._pytree.tree_leaves((result, inputs)) if isinstance(leaf, torch.Tensor)]
        records = any(tensor.requires_grad and all(tensor.grad_fn is not one for one in known) for tensor in reached)
        return FakeRun(result, leaves, touched, records, watched.reads_nodes)


@contextlib.contextmanager
def _recorded_operators(mode: FakeTensorMode, operators: list[OperatorCall]) -> Iterator[None]:
    """Record the operators that the model calls, except views; of views only ``as_strided``
    matters.

    A dispatch mode of our own could record them too, but Dynamo, which eager runs for control flow,
    supports no extra mode.
    """
    dispatch, depth = mode.dispatch, 0

    def noting(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        nonlocal depth
        if not depth and isinstance(func, torch._ops.OpOverload):
            if func.overloadpacket in _COUNTING:
                operators.append(OperatorCall(func, tuple(args[0].stride())))
            elif not func.is_view and func.namespace != "prim":
                operators.append(OperatorCall(func))
        depth += 1  # ignore nested calls: they depend on torch's caches
        try:
            return dispatch(func, types, args, kwargs)
        finally:
            depth -= 1

    with hooked("fake-runs", mode, "dispatch", noting):
        yield


@contextlib.contextmanager
def _internal_calls_hidden(mode: FakeTensorMode) -> Iterator[None]:
    """Hide calls that ``mode`` makes itself from torch function modes: these calls depend on
    torch's caches.
    """
    dispatch = mode.dispatch

    def silent(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return dispatch(*args, **kwargs)

    with hooked("fake-runs", mode, "dispatch", silent):
        yield


_GET_NODE = vars(torch._C.TensorBase)["grad_fn"].__get__


class _RefusedFunctions(TorchFunctionMode):
    """Rejects operations that change autograd state or storage outside the graph; records whether
    ``grad_fn`` is read.

    A caller can see ``requires_grad`` of arguments (``leaves``, by number), of parameters and
    buffers (``state``) and of results. For any other tensor of the model, ``requires_grad`` ends
    with the call, and tracing follows it. ``made_to_require``: numbers of the arguments that the
    model calls ``requires_grad_()`` on before it uses them.
    """

    reads_nodes = False

    _sets_requires_grad = frozenset({torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__})  # type: ignore[attr-defined]
    _refused = _sets_requires_grad | {torch.Tensor.data.__set__}  # type: ignore[attr-defined]

    def __init__(self, leaves: Mapping[int, torch.Tensor], state: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.made_to_require: set[int] = set()
        self._arguments: dict[int, list[int]] = {}
        for i, tensor in leaves.items():
            self._arguments.setdefault(id(tensor), []).append(i)
        self._state = {id(tensor): name for name, tensor in state.items()}
        self._changed: list[torch.Tensor] = []
        self._any_requires_grad = any(tensor.requires_grad for tensor in (*leaves.values(), *state.values()))
        self._used: set[int] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _tensor_version:  # Dynamo's form of a write that keeps the version counter
            return args[0]._version
        if func is _unsafe_set_version_counter:
            return torch._C._autograd._unsafe_set_version_counter(*args)
        # Frames are read only where they are needed: Dynamo, which traces this around control flow,
        # does not support them.
        if func == _GET_NODE and torch.is_grad_enabled():  # checkpoints of torch 2.11 read it for themselves
            self.reads_nodes |= sys._getframe(1).f_globals.get("__name__") != torch.utils.checkpoint.__name__
        if func == torch.Tensor.storage_offset and origin.is_model(sys._getframe(1).f_code.co_filename):
            raise SideEffectError("reads the storage_offset of an argument, which may differ at each call")
        if func in self._refused and not _changes_nothing(func, *args, **(kwargs or {})):
            if func not in self._sets_requires_grad:
                name = getattr(func, "__name__", str(func))
                raise SideEffectError(f"calls {name} on a tensor while it runs, which a bundle cannot repeat")
            self._see_change(args[0])
        if func == torch.Tensor.detach_ and args[0].requires_grad and id(args[0]) in self._arguments.keys() | self._state.keys():
            raise SideEffectError("calls detach_() on an argument or on the model's state; use detach() of it")
        result = func(*args, **(kwargs or {}))
        for tensor in written(func, args, kwargs or {}) if _changes_without_version(func) else []:
            torch.autograd.graph.increment_version(tensor)
        self._note_uses(args, kwargs, result)
        return result

    def _see_change(self, tensor: torch.Tensor) -> None:
        """Handle a change of ``tensor.requires_grad``: reject it if a call could not repeat it."""
        if id(tensor) in self._arguments:
            if tensor.requires_grad:
                raise SideEffectError("calls requires_grad_(False) on an argument; use detach() of it")
            if id(tensor) in self._used:
                raise SideEffectError("calls requires_grad_() on an argument after using it; call it before")
            self.made_to_require.update(self._arguments[id(tensor)])
        elif id(tensor) in self._state:
            raise SideEffectError(f"changes requires_grad of {self._state[id(tensor)]} while it runs; change it before the build")
        elif not (isinstance(tensor, FakeTensor) or torch._C._functorch.is_functorch_wrapped_tensor(tensor)):
            raise SideEffectError("changes requires_grad of a tensor that existed before the call; use detach() or clone() of it")
        else:
            self._changed.append(tensor)

    def _note_uses(self, args: Any, kwargs: Any, result: Any) -> None:
        """Record the arguments that were used in a computation while they required no gradient."""
        if not self._arguments or not any(isinstance(leaf, torch.Tensor) for leaf in torch.utils._pytree.tree_leaves(result)):
            return
        for leaf in torch.utils._pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and leaf is not result and id(leaf) in self._arguments and not leaf.requires_grad:
                self._used.add(id(leaf))

    def check_results(self, result: Any) -> None:
        """Reject a leaf as a result: its caller could read its gradient, and a graph's results are
        never leaves.
        """
        returned = {id(leaf) for leaf in torch.utils._pytree.tree_leaves(result)}
        if any(tensor.requires_grad and id(tensor) in returned for tensor in self._changed):
            raise SideEffectError("returns a tensor that it calls requires_grad_() on; return detach() of it")
        leaves = [leaf for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if self._changed and not self._any_requires_grad and any(leaf.requires_grad for leaf in leaves):
            raise SideEffectError(
                "returns a result that requires a gradient but depends on no argument or parameter; return detach() of it"
            )


def _changes_without_version(func: Any) -> bool:
    """Whether an operator's writes move no version counter of fake tensors.

    Custom operators may not write in their fake implementations. Operators on lists move no version
    counters (torch 2.13).
    """
    operator = operator_of(func)
    custom = operator is not None and operator.namespace not in ("aten", "prims")
    return custom or getattr(func, "__name__", "").startswith(("_foreach_", "_fused_"))


def _changes_nothing(func: Any, tensor: torch.Tensor, value: Any = True, *, requires_grad: Any = None) -> bool:
    """Whether ``requires_grad`` is set to the value that it already has."""
    return func is not torch.Tensor.data.__set__ and tensor.requires_grad == (value if requires_grad is None else requires_grad)  # type: ignore[attr-defined]
