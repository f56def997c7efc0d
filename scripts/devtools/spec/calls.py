"""The calls of a conformance vector: how to make and observe them (spec/vectors/README.md).

:func:`run` makes a call with described arguments (``arguments.py``), and records what it does.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

import aotpack_loader
from aotpack_loader import errors
from aotpack_loader.format import schema
from aotpack_loader.runtime.inputs import LayoutWarning
from aotpack_loader.runtime.tree import flattener, unflattener

from .arguments import Held, Maker, Own, Seen, Tensors
from .containers import Watched, passed_as

Json = Any


class MismatchError(AssertionError):
    """A vector and this loader differ."""


@dataclass
class Outcome:
    """What was observed of a call: tensors by name, other results, and facts that are not elements."""

    tensors: Tensors = field(default_factory=dict)
    others: Json = field(default_factory=dict)
    facts: Json = field(default_factory=dict)


def run(model: torch.nn.Module, method: schema.Method, call: Json, leaves: list[Any]) -> Outcome:
    """Make one call of ``model``, original or loaded, with described ``leaves``, and record what can be observed."""
    maker = Maker()
    values = [maker.make(leaf) if isinstance(leaf, (Own, Seen, Held)) else leaf for leaf in leaves]
    args, kwargs = _passed(method, call, values)
    watched = Watched(method, (args, kwargs))
    _prepare(model, call)
    state = _state(model)
    named = {f"input.{i}": v for i, v in enumerate(values) if isinstance(v, torch.Tensor)} | state
    versions = {name: _version(tensor) for name, tensor in named.items()}
    if "seed" in call:
        torch.manual_seed(call["seed"])
    with _modes(call), warnings.catch_warnings():
        warnings.simplefilter("ignore", LayoutWarning)  # the call may test exactly this
        returned = called(model, method)(*args, **kwargs)
    results = flatten(method.outputs, returned)
    outcome = Outcome(others={str(i): _plain(r) for i, r in enumerate(results) if not isinstance(r, torch.Tensor)})
    outcome.facts = _facts(named, versions, results) | (_storages(state) if call.get("storages") else {}) | watched.facts()
    outcome.tensors |= watched.own(returned)
    for k, (update, container) in enumerate(zip(watched.method.updates, watched.containers, strict=True)):
        for j, leaf in enumerate(flatten(update.tree, container)):
            outcome.tensors |= _parts(f"update.{k}.{j}", leaf)
    for i, result in enumerate(results):
        if isinstance(result, torch.Tensor):
            outcome.tensors |= _parts(f"result.{i}", result)
    _between(model, call)
    with _modes({**call, "grad": True}):
        outcome.tensors |= _backward(
            call, results, [*maker.leaves.values(), *(v for v in values if _is_leaf(v)), *model.parameters()]
        )
    for name, tensor in state.items():
        if tensor.grad is not None:
            outcome.tensors |= _parts(f"gradient.{name.removeprefix('state.')}", tensor.grad)
        elif not isinstance(tensor, torch.nn.Parameter):
            outcome.tensors |= _parts(f"buffer.{name.removeprefix('state.')}", tensor)
    for number, memory in enumerate(maker.leaves.values()):
        outcome.tensors |= _parts(f"after.memory.{number}", memory)
        if memory.grad is not None:
            outcome.tensors |= _parts(f"input_gradient.memory.{number}", memory.grad)
    for i, (leaf, value) in enumerate(zip(leaves, values, strict=True)):
        if isinstance(leaf, (Seen, Held)) and _is_leaf(value) and value.grad is not None:
            outcome.tensors |= _parts(f"input_gradient.{i}", value.grad)
    return outcome


def refused(model: torch.nn.Module, method: schema.Method, call: Json, leaves: list[Any]) -> BaseException | None:
    """The error of a call that must not change anything; None if it succeeds."""
    maker = Maker()
    values = [maker.make(leaf) if isinstance(leaf, (Own, Seen, Held)) else leaf for leaf in leaves]
    args, kwargs = _passed(method, call, values)
    watched = Watched(method, (args, kwargs))
    _prepare(model, call)
    named = {f"input.{i}": v for i, v in enumerate(values) if isinstance(v, torch.Tensor)} | _state(model)
    versions = {name: (_version(tensor), tensor.requires_grad) for name, tensor in named.items()}
    restored = call["refused"]["rule"] == "S9"
    before = {name: tensor.detach().clone() for name, tensor in named.items()} if restored else {}
    try:
        with _modes(call), warnings.catch_warnings():
            warnings.simplefilter("ignore", LayoutWarning)
            returned = called(model, method)(*args, **kwargs)
            results = [r for r in torch.utils._pytree.tree_leaves(returned) if isinstance(r, torch.Tensor)]
    except errors.AotpackError as error:
        if restored:  # it has written, and must have taken that back
            if not all(torch.equal(named[name], value) for name, value in before.items()):
                raise MismatchError("the refused call has changed a tensor") from error
        elif {name: (_version(tensor), tensor.requires_grad) for name, tensor in named.items()} != versions:
            raise MismatchError("the refused call has written to a tensor, or made it require a gradient") from error
        if not watched.is_unchanged():
            raise MismatchError("the refused call has changed a container") from error
        return error
    _between(model, call)
    try:
        _backward(call, results, [v for v in [*values, *model.parameters()] if _is_leaf(v)])
    except RuntimeError as error:  # an error of torch itself, if autograd detects it
        return error
    return None


def called(model: Any, method: schema.Method) -> Callable[..., Any]:
    """What a call of ``method`` calls: the module, or a function of a loaded one. An original is the function itself."""
    if method.function and isinstance(model, aotpack_loader.LoadedProgram):
        return model.aotpack.method(method.function)
    return model  # type: ignore[no-any-return]


def flatten(tree: schema.Tree, value: Any) -> list[Any]:
    """Leaves of ``value`` in order."""
    leaves: list[Any] = []
    problems: list[errors.Problem] = []
    flattener(tree, "value")(value, leaves, problems)
    if problems:
        raise MismatchError("\n".join(map(str, problems)))
    return leaves


def _passed(method: schema.Method, call: Json, values: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as the call passes them: in the method's form, or as ``passed`` says."""
    if "passed" in call:
        passed = call["passed"]
        return tuple(values[i] for i in passed["args"]), {name: values[i] for name, i in passed["kwargs"].items()}
    args, kwargs = unflattener(method.inputs)(iter(values))
    return passed_as(call, args), kwargs


@contextlib.contextmanager
def _modes(call: Json) -> Iterator[None]:
    """Set gradient mode, autocast and deterministic algorithms for the call."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(call.get("deterministic", before))
    autocast = getattr(torch, call.get("autocast", "bfloat16"))
    try:
        with torch.set_grad_enabled(call["grad"]), torch.autocast("cpu", autocast, enabled="autocast" in call):
            yield
    finally:
        torch.use_deterministic_algorithms(before)


def _prepare(model: torch.nn.Module, call: Json) -> None:
    """Set the mode, and change state as the call specifies."""
    model.train(call["training"])
    for path, flag in call.get("flags", {}).items():
        model.get_submodule(path).train(flag)
    for change in call.get("state", ()):
        above, _, name = change["name"].rpartition(".")
        owner = model.get_submodule(above)
        tensor = getattr(owner, name)
        if change["change"] == "thaw":
            tensor.requires_grad_()
        elif change["change"] == "double":
            tensor.data = tensor.data.double()
        elif isinstance(tensor, torch.nn.Parameter):
            setattr(owner, name, torch.nn.Parameter(tensor.detach().clone()))
        else:
            setattr(owner, name, tensor.clone())


def _between(model: torch.nn.Module, call: Json) -> None:
    for name in call.get("written_between", ()):
        with torch.no_grad():
            model.get_parameter(name).mul_(2)


def _backward(call: Json, results: list[Any], leaves: list[torch.Tensor]) -> Tensors:
    """Run the backward of a call. Returns the gradients of results that it wrote to."""
    then = call.get("then", "backward")
    heads = {i: r for i, r in enumerate(results) if _has_history(r) and i in call.get("heads", range(len(results)))}
    if not heads:
        return {}
    ones = [torch.ones_like(head) for head in heads.values()]
    if then == "second":
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        first = torch.autograd.grad([*heads.values()], wanted, ones, create_graph=True, allow_unused=True)
        sum((g * g).sum() for g in first if g is not None and g.requires_grad).backward()  # type: ignore[union-attr]
        return {}
    if then == "hooked":
        for i, result in enumerate(results):
            if i not in heads and _has_history(result):
                result.register_hook(lambda gradient: None)
    if then == "expanded":
        ones = [torch.ones(()).expand_as(head) for head in heads.values()]
    torch.autograd.backward([*heads.values()], ones, retain_graph=then == "retained")
    if then in ("retained", "twice"):
        torch.autograd.backward([*heads.values()], ones)
    return {f"result_gradient.{i}": one for i, one in zip(heads, ones, strict=True) if one._version}


def _has_history(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and value.grad_fn is not None


def _is_leaf(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf


def _state(model: torch.nn.Module) -> Tensors:
    found = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {f"state.{name}": tensor for name, tensor in found}


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


# ---------------------------------------------------------------- facts


def _facts(named: Tensors, versions: Mapping[str, int], results: list[Any]) -> Json:
    """Facts about tensors other than their elements."""
    facts: Json = {}
    for name, tensor in named.items():
        if _version(tensor) > versions[name]:
            facts[name] = {"written": True, **_shape(tensor)}
    objects = {id(tensor): name for name, tensor in reversed(named.items())}
    tensors = dict(named)
    for i, result in enumerate(results):
        if not isinstance(result, torch.Tensor):
            continue
        name = f"result.{i}"
        if id(result) in objects:
            facts[name] = {"is": objects[id(result)]}
            continue
        objects[id(result)], tensors[name] = name, result
        facts[name] = {"is_view": result._is_view(), **_shape(result)}
        if result._is_view() and result._base is not None and id(result._base) in objects:
            facts[name]["base"] = objects[id(result._base)]
    groups: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        if tensor.layout is torch.strided and type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.numel():
            groups.setdefault(tensor.untyped_storage().data_ptr(), []).append(name)
    shared = sorted(sorted(group) for group in groups.values() if len(group) > 1)
    return facts | ({"shared_memory": shared} if shared else {})


def _storages(state: Tensors) -> Json:
    """Size in bytes of each parameter's and buffer's storage, from the tensor's first element on."""
    return {
        f"{name}, bytes": tensor.untyped_storage().nbytes() - tensor.storage_offset() * tensor.element_size()
        for name, tensor in state.items()
    }


def _shape(tensor: torch.Tensor) -> Json:
    found: Json = {"requires_grad": tensor.requires_grad, "is_leaf": tensor.is_leaf}
    if tensor.layout is torch.strided:
        found |= {"stride": list(tensor.stride()), "offset": tensor.storage_offset()}
    else:
        found |= {"layout": str(tensor.layout).removeprefix("torch.")}
    return found


def _parts(name: str, tensor: torch.Tensor) -> Tensors:
    """The plain tensors of a tensor by name. Sparse tensors are made dense."""
    tensor = tensor.detach()
    if hasattr(tensor, "__tensor_flatten__") and type(tensor) is not torch.Tensor:
        attributes, _ = tensor.__tensor_flatten__()
        return {n: t for a in attributes for n, t in _parts(f"{name}.{a}", getattr(tensor, a)).items()}
    if tensor.layout is not torch.strided:
        return {name: tensor.to_dense()}
    if tensor.dtype in STORED:
        return {name: tensor.clone()}
    return {f"{name}:{str(tensor.dtype).removeprefix('torch.')}": tensor.contiguous().view(torch.uint8)}


STORED = (torch.bool, torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.complex64)
"""Types of which a vector stores elements; of others it stores bytes, and the type in the name."""


def _plain(value: Any) -> Json:
    """A result that is not a tensor, as JSON."""
    finite = isinstance(value, float) and math.isfinite(value)
    return value if value is None or finite or isinstance(value, (bool, int, str)) else repr(value)
