"""Traces assignments of new tensors to buffers: the new value is written to the buffer at the end of the call."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence, Set
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.grad_mode import _unsafe_preserve_version_counter

from ... import origin
from ..api.fake_tensors import is_plain_tensor
from ..api.patching import hooked
from ..api.torch_types import StorageWeakRef


class SideEffectError(Exception):
    """The model changes something that the graphs of a bundle do not hold."""


ASSIGNS_STATE = "assigns a new tensor to a buffer or parameter; write into it with copy_() or another in-place operation"
_SHARES = "assigns to the buffer {name!r} a tensor that shares memory with {owner}; assign a clone() of it"
_CALL = "_call_impl"
_UNTIES = "assigns a new tensor to the buffer {name!r}, which shared memory with {owner}; write into it with copy_()"
_RESIZES = (
    "assigns to the buffer {name!r} of shape {owner} a tensor of another shape or dtype; if only the first call does, "
    "make that call before the build (warm_up=True)"
)
_KEEPS = "returns the tensor that was the buffer {name!r} before a new one was assigned; return a clone() of it"


PASSABLE = (ASSIGNS_STATE, "assigns to the buffer", "returns the tensor that was the buffer")
"""Parts of the errors that :func:`passed_as_arguments` avoids."""

_Key = tuple[int, str]
"""A buffer: the identity of its module, and its name there."""

_passed: ContextVar[Set[_Key]] = ContextVar("passed", default=frozenset())


class _Assigned(NamedTuple):
    """A buffer that a call has replaced, its name in the model, the tensor that it was before, and the user's line."""

    module: torch.nn.Module
    name: str
    path: str
    before: torch.Tensor
    line: str

    @property
    def now(self) -> torch.Tensor:
        return self.module._buffers[self.name]  # type: ignore[return-value]


@contextlib.contextmanager
def passed_as_arguments(keys: Set[_Key]) -> Iterator[None]:
    """Ignore assignments to these buffers: the model takes and returns them beside its arguments and results."""
    token = _passed.set(keys)
    try:
        yield
    finally:
        _passed.reset(token)


@contextlib.contextmanager
def kept_state_changes(model: torch.nn.Module, *, only_names: bool = False) -> Iterator[Set[str]]:
    """While the model runs without Dynamo, let it assign tensors to its buffers.

    At the end of its call, hooks included, the buffers are again the tensors that they were, with
    the new values. Until then the old tensors keep their old ones. Yields the names of the buffers
    to which the model has assigned so far. With ``only_names`` new values are not written to the old
    tensors, and may require gradients or share memory.

    Raises:
        SideEffectError: the new value has another shape or dtype, requires gradients, replaces a
            parameter, or shares memory with what the caller can see.
    """
    assignments = _Assignments(model, only_names=only_names)
    hook = hooked("fake-runs", torch.nn.Module, "__setattr__", assignments.setter())
    with hook, _with_call(model, assignments.settled_after):
        yield assignments.names


class _Assignments:
    """The buffers to which a model assigns during a call, and the depth of calls of the model in one another."""

    def __init__(self, model: torch.nn.Module, *, only_names: bool) -> None:
        self.names = set[str]()
        self._only_names = only_names
        self._model = model
        self._paths = {id(module): prefix for prefix, module in model.named_modules()}
        self._of_this_call: dict[_Key, _Assigned] = {}
        self._of_all_calls: dict[_Key, _Assigned] = {}
        self._depth = 0

    def setter(self) -> Callable[[torch.nn.Module, str, Any], None]:
        """``nn.Module.__setattr__``, which also records or refuses a new value of a buffer or parameter."""
        original = torch.nn.Module.__setattr__

        def recorded(module: torch.nn.Module, name: str, value: Any) -> None:
            buffer = module.__dict__.get("_buffers", {}).get(name)
            parameter = module.__dict__.get("_parameters", {}).get(name)
            is_new = (buffer is not None or parameter is not None) and value is not buffer and value is not parameter
            if is_new and (id(module), name) not in _passed.get():
                self._record(module, name, buffer, value)
            original(module, name, value)

        return recorded

    def _record(self, module: torch.nn.Module, name: str, buffer: torch.Tensor | None, value: Any) -> None:
        if buffer is None or not isinstance(value, torch.Tensor) or (value.requires_grad and not self._only_names):
            raise SideEffectError(ASSIGNS_STATE)
        if not self._depth or id(module) not in self._paths:  # no call of the model would settle it
            raise SideEffectError(ASSIGNS_STATE)
        key, line = (id(module), name), origin.current_line()
        path = f"{self._paths[id(module)]}.{name}".lstrip(".")
        first = _Assigned(module, name, path, buffer, line)
        if value.shape != buffer.shape or value.dtype != buffer.dtype:
            raise _error(_RESIZES, first, f"{[*buffer.shape]}, {buffer.dtype}".replace("torch.", "dtype "))
        first = self._of_this_call.setdefault(key, first)
        self._of_all_calls[key] = first._replace(line=line)
        self.names.add(path)

    def settled_after(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call of the model after which its buffers are the tensors of before, with the new values."""

        @functools.wraps(call)
        def called(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                return call(*args, **kwargs) if self._depth > 1 else self._outermost(call, args, kwargs)
            finally:
                self._depth -= 1
                if not self._depth:
                    self._restore()

        return called

    def _outermost(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._copy_buffers()
        buffers = _buffers(self._model)
        result = call(*args, **kwargs)
        now = _buffers(self._model)
        unseen = {key: buffer for key, buffer in buffers.items() if buffer is not None and key not in self._of_this_call}
        if any(now.get(key) is not buffer for key, buffer in unseen.items()):
            raise SideEffectError(ASSIGNS_STATE)  # without ``setattr``, as in ``self._buffers["mean"] = x``
        if self._of_this_call and not self._only_names:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                _settle([*self._of_this_call.values()], self._model, (args, kwargs), result)
        return result

    def _copy_buffers(self) -> None:
        """Let the model work on copies of the buffers to which an earlier call assigned.

        A tensor that the backward needs would otherwise get the new value while it is traced.
        """
        for key, each in self._of_all_calls.items():
            buffer = each.module._buffers[each.name]
            if buffer is not None:
                self._of_this_call[key] = each._replace(before=buffer)
                with torch._C.DisableTorchFunction():
                    each.module._buffers[each.name] = buffer.detach().clone()

    def _restore(self) -> None:
        for each in self._of_this_call.values():
            each.module._buffers[each.name] = each.before
        self._of_this_call.clear()


@contextlib.contextmanager
def _with_call(model: torch.nn.Module, wrapped: Any) -> Iterator[None]:
    """Wrap the call of a model that has buffers, with its hooks, as an attribute of the instance."""
    if next(model.buffers(), None) is None:
        yield
        return
    own = model.__dict__.get(_CALL)
    model.__dict__[_CALL] = wrapped(getattr(model, _CALL))
    try:
        yield
    finally:
        del model.__dict__[_CALL]
        if own is not None:
            model.__dict__[_CALL] = own


def _buffers(model: torch.nn.Module) -> dict[_Key, torch.Tensor | None]:
    return {(id(module), name): buffer for module in model.modules() for name, buffer in module._buffers.items()}


def _settle(assigned: list[_Assigned], model: torch.nn.Module, call: Any, result: Any) -> None:
    """Write the assigned values to the buffers that were there before."""
    _refuse_shared(assigned, model, call, result)
    before = {id(each.before) for each in assigned}
    values = [each.now.clone() if {id(each.now), id(each.now._base)} & before else each.now for each in assigned]
    for each, value in zip(assigned, values, strict=True):
        with _unsafe_preserve_version_counter(each.before):  # eager does not write to the old tensor
            each.before.copy_(value)


def _refuse_shared(assigned: list[_Assigned], model: torch.nn.Module, call: Any, result: Any) -> None:
    """Refuse values that a caller could change through another tensor. Only fake tensors show it."""
    replaced = {(id(each.module), each.name) for each in assigned}
    owners = [(name, _storage(parameter)) for name, parameter in model.named_parameters()]
    for prefix, module in model.named_modules():
        buffers = [(name, x) for name, x in module._buffers.items() if (id(module), name) not in replaced]
        owners += [(f"{prefix}.{name}".lstrip("."), _storage(buffer)) for name, buffer in buffers]
    owners += [("an argument", _storage(x)) for x in pytree.tree_leaves(call)]
    results = [storage for x in pytree.tree_leaves(result) if (storage := _storage(x)) is not None]
    for each in assigned:
        value, old = _storage(each.now), _storage(each.before)
        others = [(other.path, _storage(other.before)) for other in assigned if other is not each]
        if owner := _owner(value, owners):
            raise _error(_SHARES, each, owner)
        if owner := _owner(old, owners + others):
            raise _error(_UNTIES, each, owner)
        if value is not None and value in results:
            raise _error(_SHARES, each, "a result")
        if old is not None and old in results:
            raise _error(_KEEPS, each)


def _owner(storage: StorageWeakRef | None, owners: Sequence[tuple[str, StorageWeakRef | None]]) -> str:
    return next((name for name, owned in owners if storage is not None and owned == storage), "")


def _error(text: str, assigned: _Assigned, owner: str = "") -> SideEffectError:
    error = SideEffectError(text.format(name=assigned.path, owner=owner))
    error.add_note(assigned.line)
    return error


def _storage(value: Any) -> StorageWeakRef | None:
    plain = isinstance(value, FakeTensor) and is_plain_tensor(value) and value.layout == torch.strided
    return StorageWeakRef(value.untyped_storage()) if plain else None
