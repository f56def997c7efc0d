"""All private or release-dependent torch APIs that the loader uses."""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
import torch.utils._pytree as pytree
from torch.autograd import forward_ad

_LATE = {"torch_nn": "torch.nn.modules.linear_cross_entropy"}
"""Namespaces of operators that torch registers only when a function of its own is first called, and by which module."""

_F = TypeVar("_F", bound=Any)

is_traced = torch.compiler.is_dynamo_compiling  # noqa: TID251 - a function of torch itself, which imports no compiler
"""Whether Dynamo traces the caller. It is False in every call that runs."""

is_exported = torch.compiler.is_exporting  # noqa: TID251 - as above
"""Whether ``torch.export`` traces the caller."""

_jit_trace = torch._C._get_tracing_state
_count_modes = torch._C._len_torch_dispatch_stack
_hooks: Any = torch.nn.modules.module
_mode = torch._C._get_dispatch_mode
_PROXY, _FAKE, _FUNCTIONAL = (getattr(torch._C._TorchDispatchModeKey, name) for name in ("PROXY", "FAKE", "FUNCTIONAL"))
_running_transform = torch._C._functorch.peek_interpreter_stack


def register_lazy_operators(namespace: str) -> None:
    """Register operators of torch that torch itself registers only at their first use."""
    if namespace in _LATE and find_spec(_LATE[namespace]) is not None:  # an earlier torch has neither
        import_module(_LATE[namespace])


def opaque(function: _F) -> _F:
    """Exclude a function and all functions it calls from ``torch.compile``, with a graph break.

    It does what ``torch.compiler.disable`` does, without importing the compiler and without a cost
    per call.
    """
    vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg="a loaded bundle is compiled already")
    return skipped(function)


def skipped(function: _F) -> _F:
    """Exclude a function and all functions it calls from ``torch.compile`` when it runs. A trace of its caller may enter it."""
    evaluation: Any = torch._C._dynamo.eval_frame
    skip = evaluation._FrameAction.SKIP
    evaluation.set_code_exec_strategy(function.__code__, evaluation._FrameExecStrategy(skip, skip))
    return function


def constant_while_tracing(function: _F) -> _F:
    """Let Dynamo run a function while it traces, and take the result for a constant.

    It does what ``torch._dynamo.assume_constant_result`` does, without importing the compiler.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function


MODULES_ARE_CONSTANTS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Whether a function of :func:`constant_while_tracing` can take a module. Older releases of Dynamo have a constant for none."""


def graph_break(reason: str) -> NoReturn:
    """End the caller's graph while Dynamo traces; an error with this reason under ``fullgraph=True``."""
    torch._dynamo.graph_break(msg=reason)  # noqa: TID251 - Dynamo is what calls this
    raise AssertionError("only a trace comes here")


def break_while_faking(reason: str) -> NoReturn:
    """End the caller's graph from within an operator's fake kernel, as :func:`graph_break` does."""
    raise torch._dynamo.exc.Unsupported(reason)  # noqa: TID251 - Dynamo is what calls this


def operator(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Register an operator that compilers neither look into, nor run twice, nor leave out."""
    return torch.library.custom_op(name, mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))


def has_global_hooks() -> bool:
    """Whether hooks for the modules of all models are registered (``register_module_forward_hook``)."""
    return bool(
        _hooks._global_forward_hooks
        or _hooks._global_forward_pre_hooks
        or _hooks._global_backward_hooks
        or _hooks._global_backward_pre_hooks
    )


def may_be_recorded() -> bool:
    """Whether a tool of torch may record the operators that this thread calls. A run on fake tensors need not show here."""
    return _count_modes() > 0 or _jit_trace() is not None


def recorder() -> str:
    """The tool of torch that records the operators that this thread calls, to run them again; empty if there is none.

    Native code calls no operators, so its results would be recorded as constants.
    """
    if _jit_trace() is not None:
        return "torch.jit.trace"
    if is_exported():
        return "torch.export"
    if _mode(_PROXY) is not None:
        return "make_fx"
    return "" if _mode(_FAKE) is None and _mode(_FUNCTIONAL) is None else "A run on fake tensors"


def recorded_call(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Record a call of ``module`` as one node of a graph that ``torch.fx`` traces symbolically.

    None if it traces nothing, or ``module`` itself.
    """
    proxy: Any = sys.modules.get("torch.fx.proxy")
    if proxy is None:
        return None
    found = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, proxy.Proxy)]
    tracer: Any = found[0].tracer if found else None
    if getattr(tracer, "root", module) is module:
        return None
    return tracer.create_proxy("call_module", tracer.path_of_module(module), args, kwargs)


def backward_is_compiled() -> bool:
    """Whether compiled autograd is enabled. It supports Python's autograd nodes but not those of foreign libraries."""
    module: Any = sys.modules.get("torch._dynamo.compiled_autograd")
    return module is not None and module.compiled_autograd_enabled


def keeps_graph() -> bool:
    """Whether the running backward was called with ``retain_graph=True``."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def hooks_of(tensor: torch.Tensor) -> dict[int, Any]:
    """The dictionary that holds the hooks of a computed tensor, now and later, as ``register_hook`` makes it."""
    if tensor._backward_hooks is None:
        tensor._backward_hooks = OrderedDict()
        tensor.grad_fn._register_hook_dict(tensor)  # type: ignore[union-attr]
    return tensor._backward_hooks


def node_runs(node: Any) -> bool:
    """Whether the running backward runs a node of the autograd graph, or returns the gradient of its leaf."""
    if not hasattr(node, "variable"):
        return torch._C._will_engine_execute_node(node)
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # torch.autograd.grad() asks for the gradient of this leaf
        return True


def saved_tensors_are_hooked() -> bool:
    """Whether hooks of the caller are active for saved tensors. Such hooks may keep the tensors."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def stops_recomputation(error: BaseException) -> bool:
    """Whether ``torch.utils.checkpoint`` raised ``error``: its recomputation has all saved tensors that it needs."""
    module: Any = sys.modules.get("torch.utils.checkpoint")
    kind = getattr(module, "_StopRecomputationError", None)
    return kind is not None and isinstance(error, kind)


def changed_saved_tensor(ctx: Any) -> int | None:
    """Index of the first saved tensor of a function that was changed in place.

    None if none was, if they were freed, or if this torch does not tell.
    """
    try:
        saved = ctx._raw_saved_tensors
    except RuntimeError:
        return None
    for i, value in enumerate(saved if hasattr(torch._C._autograd.SavedTensor, "unpack") else ()):
        try:
            value.unpack()
        except RuntimeError:
            return i
    return None


def release_saved_tensors(ctx: Any) -> None:
    """Release a function's saved tensors now, unless the graph is kept. They then live only while they are in use."""
    ctx.maybe_clear_saved_tensors()


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the version counter, by which autograd detects writes to a tensor."""
    torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))


def have_one_version(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether a write to one counts as a write to the other: one is a view of the other, or detached from it.

    Tensors of ``set_`` and ``data`` share memory, but count their own writes.
    """
    if first is second:
        return True
    if first.is_inference() or second.is_inference():
        return False
    before, version = second._version, first._version
    torch.autograd.graph.increment_version(first)
    is_one = second._version != before
    set_version(first, version)
    return is_one


def is_plain_tensor(value: Any) -> bool:
    """Whether ``value`` is a plain tensor or parameter, not a subclass that intercepts operations."""
    kind = type(value)
    return kind is torch.Tensor or kind is torch.nn.Parameter or kind is torch.nn.Buffer


def likeness(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Return a function that compares other tensors with these, one by one, and rejects duplicates.

    It compares class, dtype, device, sizes, strides, ``requires_grad`` and lazy negation or
    conjugation. It keeps no reference to the tensors.
    """
    guards = torch._C._dynamo.guards.TensorGuards(*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None)
    return guards.check


def in_transform() -> bool:
    """Whether a transform of ``torch.func`` or forward-mode differentiation is active."""
    return _running_transform() is not None or forward_ad._current_level >= 0


def is_batched(tensor: torch.Tensor) -> bool:
    """Whether a tensor is batched, as gradients are under ``is_grads_batched=True``. It has no memory to read."""
    return not torch._C._has_storage(tensor)


def with_memory(value: Any) -> Any:
    """A tensor; inside a transform of ``torch.func`` the unwrapped tensor that has memory."""
    while isinstance(value, torch.Tensor) and is_batched(value):
        value = torch._C._functorch.get_unwrapped(value)
    return value


def sparse_tensor(indices: torch.Tensor, values: torch.Tensor, sizes: tuple[int, ...], *, checked: bool) -> torch.Tensor:
    """An uncoalesced sparse tensor; ``checked``: raise if an index is outside of ``sizes``.

    Checked indices are copied first: they may be memory that the next call of the bundle writes to.
    In torch 2.11 the public constructor warns that nobody chose whether to check, also where the
    caller did.
    """
    if checked:
        indices = indices.clone()
        torch._validate_sparse_coo_tensor_args(indices, values, sizes)
    return torch.ops.aten._sparse_coo_tensor_unsafe(indices, values, sizes, is_coalesced=False)  # type: ignore[no-any-return]


def is_one_storage(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors are views of one storage object. On some devices a storage has no address."""
    same: bool = first.untyped_storage()._cdata == second.untyped_storage()._cdata
    return same


def is_dispatched(operator: torch._ops.OpOverload) -> bool:
    """Whether the operator is in torch's dispatcher, and not only in TorchScript's interpreter."""
    return torch._C._dispatch_has_kernel(operator.name())


def register_tree(
    kind: type,
    flatten: Callable[[Any], tuple[list[Any], Any]],
    unflatten: Callable[[Any, Any], Any],
    names: Callable[[Any], Sequence[str]],
    *,
    keyed: bool,
) -> None:
    """Register ``kind`` with torch's tree functions.

    ``names`` returns the keys of a context's values, or their attributes.
    """
    key = pytree.MappingKey if keyed else pytree.GetAttrKey

    def with_keys(record: Any) -> tuple[list[tuple[Any, Any]], Any]:
        values, context = flatten(record)
        return [(key(name), value) for name, value in zip(names(context), values, strict=True)], context

    pytree.register_pytree_node(kind, flatten, unflatten, flatten_with_keys_fn=with_keys)


def return_type(name: str, fields: int) -> Callable[[Any], Any] | None:
    """The class of torch's own named results, such as that of ``torch.max``, by its qualified name; None if unknown."""
    known: dict[str, Any] = {f"torch.return_types.{kind.__name__}": kind for kind in torch.return_types.all_return_types}
    kind = known.get(name)
    return None if kind is None or kind.n_fields != fields else kind


def aoti_runner(package: Path, index: int = -1) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    """Open an unpacked AOTInductor package; ``index`` is the number of its GPU. The runner takes ownership of its inputs."""
    return torch._C._aoti.AOTIModelPackageLoader(str(package), "model", False, 1, index).boxed_run


def cuda_driver() -> tuple[int, int]:
    """The release of CUDA that the installed driver is of: ``(13, 0)``."""
    found: int = torch._C._cuda_getDriverVersion()  # type: ignore[attr-defined]
    return found // 1000, found % 1000 // 10


def profiler_is_on() -> bool:
    """Whether a profiler of torch records this thread."""
    return torch._C._autograd._profiler_enabled()


def profiled(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """Return a function that does the same inside an event of torch's profiler."""
    event = torch._C._profiler._RecordFunctionFast

    def run(*args: Any, **kwargs: Any) -> Any:
        with event(name):
            return function(*args, **kwargs)

    return run


def load_hooks(module: torch.nn.Module) -> list[tuple[torch.nn.Module, dict[int, Any]]]:
    """The modules that have pre-hooks of ``load_state_dict``, each with its hooks."""
    found = [(one, one._load_state_dict_pre_hooks) for one in module.modules()]
    return [(one, hooks) for one, hooks in found if hooks]


def has_post_load_hooks(module: torch.nn.Module) -> bool:
    """Whether a module has hooks that run after ``load_state_dict``. They may clear what it reports as missing."""
    return any(one._load_state_dict_post_hooks for one in module.modules())


@contextlib.contextmanager
def without_load_hooks(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Disable the pre-hooks of ``load_state_dict`` of these modules inside the block."""
    kept = [(module, module._load_state_dict_pre_hooks) for module in modules]
    for module in modules:
        vars(module)["_load_state_dict_pre_hooks"] = OrderedDict()
    try:
        yield
    finally:
        for module, hooks in kept:
            vars(module)["_load_state_dict_pre_hooks"] = hooks


def as_part(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as an operator of a tensor subclass makes its parts.

    On XLA devices that is without torch's wrapper for views: with it, autograd fails to copy such a
    gradient.
    """
    return torch._from_functional_tensor(tensor) if torch._is_functional_tensor(tensor) else tensor
