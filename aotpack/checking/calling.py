"""Calls a model and its backward, in eager or as a bundle, and records what a caller sees."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .observation import Observation, Tensors, copied, tensors_in, with_parts


@dataclass(frozen=True)
class Call:
    """How a model is called.

    ``grad`` is the caller's mode, and ``seed`` that of the random numbers. ``draws`` records the
    states of the generator. ``roots`` are the paths of the results that get gradients; null: all
    that can. ``again`` differentiates the gradients of the call, too. ``anywhere`` lets gradients go to
    leaves that are neither state nor arguments, which reentrant checkpoints ask for.
    """

    grad: bool = True
    seed: int = 0
    draws: bool = False
    roots: Sequence[str] | None = None
    again: bool = False
    anywhere: bool = False


@dataclass(frozen=True)
class Arguments:
    """Arguments of one call. ``leaves`` are further tensors whose gradients are compared, by path."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    leaves: Tensors

    @property
    def given(self) -> Tensors:
        """The tensors among the arguments by path."""
        return tensors_in(self.args, "args") | tensors_in(self.kwargs, "kwargs")


def observe(
    call: Call,
    arguments: Arguments,
    model: Callable[..., Any],
    state: Callable[[], Tensors],
    *,
    once: bool = False,
) -> Observation:
    """Call ``model`` and record what a caller sees, before and after the backward.

    ``state`` returns the parameters and buffers by path. With ``once``, nothing is called after this
    with the same state and arguments, so less is copied, and gradients go to these tensors alone.
    """
    seen = Observation()
    given, held = arguments.given, state()
    versions = {path: tensor._version for path, tensor in (given | held).items()}
    torch.manual_seed(call.seed)
    try:
        with torch.set_grad_enabled(call.grad):
            result = model(*arguments.args, **arguments.kwargs)
        if call.draws:
            seen.generator.append(torch.get_rng_state())
        outputs = tensors_in(result, "out")
        before, held = held, state()  # the model may have replaced a buffer by another tensor
        replaced = {path for path, tensor in held.items() if tensor is not before.get(path)}
        seen.see_result(result)
        seen.see_tensors(outputs | given | held, given, final=held.keys() - outputs.keys() if once else ())
        seen.written = replaced | {path for path, x in (given | held).items() if x._version != versions.get(path)}
        if call.grad:
            seen.phase = "backward"
            leaves = {**given, **held, **arguments.leaves}
            _backward(call, outputs, given, seen.written, leaves if once and not call.anywhere else None)
    except Exception as error:
        seen.error = error
    if call.draws:
        seen.generator.append(torch.get_rng_state())
    leaves = {**given, **held, **arguments.leaves}
    gradients = {f"{path}.grad": _gradient(tensor) for path, tensor in leaves.items() if tensor.is_leaf}
    seen.after = {path: None for path, gradient in gradients.items() if gradient is None}
    known = with_parts({path: gradient for path, gradient in gradients.items() if gradient is not None})
    known |= {f"{path} afterwards": tensor for path, tensor in with_parts(given if once else {**given, **held}).items()}
    seen.after |= {path: tensor.detach() if once else copied(tensor) for path, tensor in known.items()}
    return seen


def _gradient(leaf: torch.Tensor) -> torch.Tensor | None:
    with warnings.catch_warnings(action="ignore"):
        return leaf.grad


def _backward(call: Call, outputs: Tensors, given: Tensors, written: set[str], leaves: Tensors | None) -> None:
    """Send a gradient through the chosen results, and through inputs that now have a history.

    The call gives an input a history by writing to it. Of ``leaves``, if there are any, only these
    get gradients.
    """
    generator = torch.Generator().manual_seed(7)
    roots = {path: tensor for path, tensor in outputs.items() if call.roots is None or path in call.roots}
    roots |= {path: tensor for path, tensor in given.items() if path in written and (call.roots is None or path in call.roots)}
    distinct = {id(tensor): tensor for tensor in roots.values() if tensor.requires_grad and tensor.grad_fn is not None}
    gradients = [random_like(tensor, generator) for tensor in distinct.values()]
    if not distinct:
        return
    wanted = None
    if leaves is not None:
        wanted = list({id(leaf): leaf for leaf in leaves.values() if leaf.requires_grad and leaf.is_leaf}.values())
        if not wanted:
            return
    if not call.again:
        torch.autograd.backward(list(distinct.values()), gradients, inputs=wanted)
        return
    assert wanted is not None
    first: Any = torch.autograd.grad(list(distinct.values()), wanted, gradients, create_graph=True, allow_unused=True)
    roots_again = [gradient for gradient in first if gradient is not None and gradient.requires_grad]
    if roots_again:
        again = [random_like(gradient, generator) for gradient in roots_again]
        torch.autograd.backward(roots_again, again, inputs=wanted)


def random_like(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A tensor of random numbers with the same size and type. A subclass gets random parts."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return torch.randn(tensor.shape, generator=generator, device="cpu").to(tensor)
    names, metadata = tensor.__tensor_flatten__()
    inner = {name: random_like(getattr(tensor, name), generator) for name in names}
    return type(tensor).__tensor_unflatten__(inner, metadata, tensor.shape, tensor.stride())  # type: ignore[attr-defined,no-any-return]


def state_of(model: Any) -> Tensors:
    """The parameters and buffers of a module by path, none of a function."""
    if not isinstance(model, torch.nn.Module):
        return {}
    named = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    return {f"state.{name}": tensor for name, tensor in named.items()}
