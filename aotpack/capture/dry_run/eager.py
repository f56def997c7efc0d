"""Runs copies of the model in eager, to warm it up before a build and to explain why it cannot be traced."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.utils._pytree as pytree

from aotpack_loader.errors import BuildError, CaptureError, Problem

from ..._torch.api.functional_call import functional_call
from .. import source_lines
from . import repeat


class Mode(Protocol):
    """A mode: train or eval, with gradients on or off."""

    @property
    def training(self) -> bool: ...

    @property
    def grad(self) -> bool: ...


def run_on_copies(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call ``model`` on copies of its arguments and state.

    The global random state does not change.
    """
    return _call_on_copies(model, args, kwargs)[0]


def _call_on_copies(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, list[torch.Tensor]]:
    """Return the result, and the copies that require a gradient."""
    state = {name: copy_of(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    args, kwargs = pytree.tree_map_only(torch.Tensor, copy_of, (args, kwargs))
    leaves = [x for x in pytree.tree_leaves((state, args, kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad]
    with torch.random.fork_rng(devices=[]):
        return functional_call(model, state, args, kwargs), leaves


def explained(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], refusal: CaptureError) -> CaptureError:
    """Return ``refusal``, or the model's own error if it also fails in eager.

    The model runs in the current modes of the model and of torch.
    """
    mode = f"{'train' if model.training else 'eval'} mode{'' if torch.is_grad_enabled() else ', without gradients'}"
    try:
        with repeat.unchanged(model):
            result, leaves = _call_on_copies(model, args, kwargs)
    except Exception as error:
        own = CaptureError(
            f"The model fails on its example inputs in {mode}: {type(error).__name__}: {error}",
            [Problem("", line) for line in source_lines.frames_of(error)],
            hint="This is the model's own error in eager. Where it is expected, build without this mode (--method).",
        )
        own.__cause__ = error
        return own
    if reason := _error_of_backward(result, leaves):
        return CaptureError(
            f"The model's backward fails on its example inputs in {mode}: {reason}",
            hint="This is the model's own error in eager: it writes to a value that a gradient needs. Write to a clone.",
        )
    return refusal


def _error_of_backward(result: Any, leaves: Sequence[torch.Tensor]) -> str:
    """What autograd says in the backward of ``result`` about a value that was written to, or an empty string."""
    results = [x for x in pytree.tree_leaves(result) if isinstance(x, torch.Tensor) and x.requires_grad]
    if not results or not leaves:
        return ""
    try:
        torch.autograd.grad(results, leaves, [torch.ones_like(x) for x in results], allow_unused=True)
    except Exception as error:  # the refusal itself tells of others
        text = str(error).partition(" Hint:")[0]
        return text if "modified by an inplace operation" in text else ""
    return ""


@contextlib.contextmanager
def warmed_up(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], modes: Sequence[tuple[Mode, bool]]) -> Iterator[Any]:
    """Yield a copy of ``model`` that was called in each of ``modes``, so that its caches are filled.

    Each mode comes with a flag that says whether a failure of the model is an error.

    Values that every call changes, such as the statistics of BatchNorm, are restored. If a first
    call changes a value that the second call does not, it has set up the model. Then all values
    keep what the first call wrote.

    Raises:
        BuildError: the model cannot be copied, or it fails.
    """
    is_module = isinstance(model, torch.nn.Module)
    with repeat.unchanged(model if is_module else _Function(model)):
        try:
            warm = copy.deepcopy(model) if is_module else model
        except Exception as error:
            raise BuildError(
                "The model cannot be copied, which a warm-up needs.", [Problem("copy.deepcopy", str(error))]
            ) from error
        for mode, required in modes:
            with contextlib.nullcontext() if required else contextlib.suppress(CaptureError):
                _call_twice(warm, args, kwargs, training=mode.training, grad=mode.grad)
        if is_module:
            flags = {name: module.training for name, module in model.named_modules()}
            for name, module in warm.named_modules():
                module.training = flags.get(name, module.training)
        yield warm


class _Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self._function = function


def _call_twice(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, training: bool, grad: bool) -> None:
    """Call the model twice and restore values that every call changes.

    The second call shows which these are.
    """
    if isinstance(model, torch.nn.Module) and model.training != training:
        model.train(training)
    before = _values(model)
    _call(model, args, kwargs, grad=grad)
    once = _values(model)
    _call(model, args, kwargs, grad=grad)
    twice = _values(model)
    changed = {name for name in before if not _same(before[name], once.get(name))}
    resized = any(once[name].shape != before[name].shape for name in changed if name in once)
    sets_up = resized or any(_same(once[name], twice.get(name)) for name in changed if name in once)
    _restore(model, once if sets_up else {**once, **before})


def _call(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, grad: bool) -> None:
    args, kwargs = pytree.tree_map_only(torch.Tensor, copy_of, (args, kwargs))
    try:
        with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(grad):
            model(*args, **kwargs)
    except Exception as error:
        problems = [Problem("", line) for line in source_lines.frames_of(error)]
        raise CaptureError(f"The model fails in its warm-up: {type(error).__name__}: {error}", problems) from error


def _values(model: Any) -> dict[str, torch.Tensor]:
    if not isinstance(model, torch.nn.Module):
        return {}
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in named if not _is_lazy(tensor)}


def _restore(model: Any, values: Mapping[str, torch.Tensor]) -> None:
    if not isinstance(model, torch.nn.Module):
        return
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if not tensor.is_leaf:  # a buffer that the call assigned
                tensor.detach_()
            if name in values and not _same(values[name], tensor):
                tensor.copy_(values[name])


def _is_lazy(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, (torch.nn.UninitializedParameter, torch.nn.UninitializedBuffer))


def _same(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    return b is not None and a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that is a leaf where ``tensor`` is one: only other tensors may be written to."""
    leaf = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return leaf if tensor.is_leaf else leaf.clone()
