"""Records what a caller can see of a call as plain data, and compares two such records."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

import torch
import torch.utils._pytree as pytree

from aotpack_loader.runtime.memory import is_dense

from .._torch.api.addresses import storage_address

Tensors = dict[str, torch.Tensor]
Same = Callable[[str, torch.Tensor, torch.Tensor], bool]
"""Whether two values of the same type and size are equal but for rounding: path, eager's, the other's."""


def walk(value: Any, path: str) -> Iterator[tuple[str, str, Any]]:
    """``(path, kind, leaf)`` of everything inside ``value``, containers first.

    Replacements of records count as the records.
    """
    if isinstance(value, Mapping):
        kind = "dict" if type(value) in (dict, OrderedDict, defaultdict) else f"mapping{_as_torch_sees(value)}"
        yield path, f"{kind}{list(value.keys())}", None
        for key in value.keys():  # noqa: SIM118 - a model output's iteration is over keys, but its items() is not needed
            yield from walk(value[key], f"{path}[{key!r}]")
    elif names := _tuple_fields(value):
        yield path, f"named tuple{_as_torch_sees(value)}{list(names)}", None
        for name in names:
            yield from walk(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, (tuple, list)):
        yield path, f"{type(value).__name__}[{len(value)}]", None
        for i, item in enumerate(value):
            yield from walk(item, f"{path}[{i}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [f.name for f in dataclasses.fields(value)]
        yield path, f"object{_as_torch_sees(value)}{fields}", None
        for name in fields:
            yield from walk(getattr(value, name), f"{path}.{name}")
    else:
        yield path, "leaf", value


def _as_torch_sees(value: Any) -> str:
    """The properties of a record that torch's tree functions, DDP and FSDP read."""
    structure = pytree.tree_structure(value)
    dataclass = "a dataclass" if dataclasses.is_dataclass(value) else "no dataclass"
    return f" ({dataclass}, {'one leaf' if structure.is_leaf() else f'{structure.num_children} children'})"


def _tuple_fields(value: Any) -> tuple[str, ...]:
    """Field names of a named tuple, of its replacement, or of a type of ``torch.return_types``."""
    if not isinstance(value, tuple):
        return ()
    is_return_type = type(value).__module__ == "torch.return_types"
    return tuple(type(value).__match_args__ if is_return_type else getattr(value, "_fields", ()))  # type: ignore[attr-defined]


def tensors_in(value: Any, path: str) -> Tensors:
    """The tensors inside ``value`` by path."""
    return {where: leaf for where, _, leaf in walk(value, path) if isinstance(leaf, torch.Tensor)}


def with_parts(tensors: Tensors) -> Tensors:
    """The tensors, and for each subclass also the tensors inside it."""
    found: Tensors = {}
    for path, tensor in tensors.items():
        found[path] = tensor
        if hasattr(tensor, "__tensor_flatten__"):
            names = tensor.__tensor_flatten__()[0]
            found |= with_parts({f"{path}.{name}": getattr(tensor, name) for name in names})
    return found


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the elements on the CPU.

    An emptied storage has no elements, and torch does not check that. A subclass has no elements of
    its own.
    """
    if hasattr(tensor, "__tensor_flatten__"):
        return torch.empty(0)
    with torch.no_grad():
        if tensor.device.type == "xla":
            return tensor.detach().cpu()
        if tensor.layout == torch.strided and tensor.numel() and not tensor.untyped_storage().nbytes():
            return torch.empty(0)
        return tensor.detach().cpu().resolve_conj().resolve_neg().clone()


@dataclass(frozen=True)
class Facts:
    """The properties of one tensor at the time of recording."""

    value: torch.Tensor
    about: dict[str, Any]

    @staticmethod
    def of(tensor: torch.Tensor, *, copy: bool = True) -> Facts:
        """Record ``tensor``. Without ``copy`` nobody may write to it later."""
        value = copied(tensor) if copy else tensor.detach()
        about: dict[str, Any] = {
            "dtype": tensor.dtype,
            # A bundle on an XLA device is compared with eager on the CPU.
            "device": "cpu" if tensor.device.type == "xla" else tensor.device.type,
            "shape": tuple(tensor.shape),
            "requires_grad": tensor.requires_grad,
            "is_leaf": tensor.is_leaf,
            "parameter": isinstance(tensor, torch.nn.Parameter),
            "conj": tensor.is_conj(),
            "neg": tensor.is_neg(),
            "class": type(tensor).__name__,
            "metadata": tensor.__tensor_flatten__()[1] if hasattr(tensor, "__tensor_flatten__") else None,
        }
        if tensor.layout != torch.strided:
            about["layout"] = tensor.layout
            if tensor.layout == torch.sparse_coo:
                about["sparse_dim"], about["coalesced"] = tensor.sparse_dim(), tensor.is_coalesced()
        elif tensor.numel() and is_dense(tensor.shape, tensor.stride()):
            # A dimension of size 1 has any stride.
            about["stride"] = tuple(s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1)
        return Facts(value, about)


def largest(value: torch.Tensor) -> float:
    """The largest finite absolute value; 0 if there is none."""
    finite = value[value.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def relations(tensors: Tensors) -> set[str]:
    """Relations between tensors: identity, shared storage with its offset, and views."""
    found = set()
    for (a, left), (b, right) in _related(tensors):
        if left is right:
            found.add(f"{a} is {b}")
            continue
        if storage_address(left) == storage_address(right) != 0:
            has_address = left.device.type != "xla" and left.numel() and right.numel()
            distance = right.data_ptr() - left.data_ptr() if has_address else "some"
            found.add(f"{a} shares storage with {b} at {distance} bytes")
        if left._base is not None and left._base is right:
            found.add(f"{a}._base is {b}")
        if right._base is not None and right._base is left:
            found.add(f"{b}._base is {a}")
        if left._base is not None and left._base is right._base:
            found.add(f"{a}._base is {b}._base")
    return found


_Named = tuple[str, torch.Tensor]


def _related(tensors: Tensors) -> set[tuple[_Named, _Named]]:
    """The pairs that may be related, in order. A large model has far more pairs than that."""
    groups: dict[object, list[_Named]] = defaultdict(list)
    for named in tensors.items():
        tensor = named[1]
        base = tensor if tensor._base is None else tensor._base
        for key in ("base", id(base)), ("storage", storage_address(tensor)):
            groups[key].append(named)
    groups.pop(("storage", 0), None)
    return {pair for group in groups.values() for pair in combinations(group, 2)}


@dataclass
class Observation:
    """Everything observed of one call.

    ``generator`` has the states of the default generator. ``error`` is the exception that the call
    raised. ``classes`` are the subclasses of its tensors.
    """

    structure: list[tuple[str, str]] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Facts] = field(default_factory=dict)
    relations: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    after: dict[str, torch.Tensor | None] = field(default_factory=dict)
    generator: list[torch.Tensor] = field(default_factory=list)
    error: BaseException | None = None
    phase: str = "forward"
    classes: set[type] = field(default_factory=set)

    @cached_property
    def largest_gradients(self) -> dict[torch.dtype, float]:
        """The largest finite number among the dense gradients of each type. Ask when the call is over."""
        found: dict[torch.dtype, float] = {}
        for path, value in self.after.items():
            if not path.endswith(".grad") or value is None or value.layout != torch.strided:
                continue
            if value.dtype.itemsize > 1 and value.dtype != torch.complex32:  # torch compares no numbers of these types
                found[value.dtype] = max(found.get(value.dtype, 0.0), largest(value))
        return found

    def see_result(self, result: Any) -> None:
        """Record the structure of the call's result."""
        for path, kind, leaf in walk(result, "out"):
            is_tensor = isinstance(leaf, torch.Tensor)
            self.structure.append((path, "tensor" if is_tensor else kind))
            if kind == "leaf" and not is_tensor:
                self.constants[path] = (type(leaf).__name__, leaf)

    def see_tensors(self, tensors: Tensors, given: Tensors, final: Collection[str] = ()) -> None:
        """Record tensors and their relations. For tensors that existed before the call, record the offset too.

        Nobody writes to those in ``final`` after the call, so they are not copied.
        """
        tensors = with_parts(tensors)
        self.classes = {type(tensor) for tensor in tensors.values() if hasattr(tensor, "__tensor_flatten__")}
        self.tensors = {path: Facts.of(tensor, copy=path not in final) for path, tensor in tensors.items()}
        for path, tensor in given.items():
            self.tensors[path].about["offset"] = tensor.storage_offset()
        self.relations = relations(tensors)


def differences(eager: Observation, bundle: Observation, same: Same | None = None) -> list[str]:
    """Properties of ``eager`` that ``bundle`` does not have, one a line.

    ``same`` decides which values are equal but for rounding. By default a tolerance does. Results whose graph the
    model has freed (``torch.autograd.grad`` in ``forward``) have no gradients in eager, so only the results are compared.
    """
    same = same or _within_tolerance
    is_freed = bundle.error is None and eager.phase == "backward" and _FREED in str(eager.error)
    if not is_freed and (eager.error is not None or bundle.error is not None):
        return _error_difference(eager, bundle)
    found = [f"structure: eager {eager.structure}, bundle {bundle.structure}"] * (eager.structure != bundle.structure)
    found += [
        f"{path}: eager {value!r}, bundle {bundle.constants.get(path)!r}"
        for path, value in eager.constants.items()
        if repr(bundle.constants.get(path)) != repr(value)
    ]
    found += [line for path in eager.tensors for line in _facts_difference(path, eager, bundle, same)]
    found += [f"only in eager: {line}" for line in sorted(eager.relations - bundle.relations)]
    found += [f"only in the bundle: {line}" for line in sorted(bundle.relations - eager.relations)]
    if is_freed:
        return found
    found += [f"{path}: version counter moved in eager only" for path in sorted(eager.written - bundle.written)]
    found += [f"{path}: version counter moved in the bundle only" for path in sorted(bundle.written - eager.written)]
    states = zip(("forward", "backward"), eager.generator, bundle.generator, strict=False)
    found += [f"generator: another state after the {phase}" for phase, a, b in states if not torch.equal(a, b)]
    for path, value in eager.after.items():
        found += _value_difference(path, value, bundle.after.get(path), same)
    return found


_FREED = "backward through the graph a second time"


def _error_difference(eager: Observation, bundle: Observation) -> list[str]:
    if eager.error is None:
        return [f"eager works; the bundle's {bundle.phase} raises {type(bundle.error).__name__}: {bundle.error}"]
    if bundle.error is None:
        return [f"eager's {eager.phase} raises {type(eager.error).__name__}: {eager.error}; the bundle works"]
    if eager.phase != bundle.phase:
        return [f"eager raises in {eager.phase}, the bundle in {bundle.phase} ({bundle.error})"]
    return []


def _facts_difference(path: str, eager: Observation, bundle: Observation, same: Same) -> list[str]:
    ours, theirs = eager.tensors[path], bundle.tensors.get(path)
    if theirs is None:
        return [f"{path}: no such tensor in the bundle's result"]
    about = [
        f"{path}.{key}: eager {value}, bundle {theirs.about.get(key)}"
        for key, value in ours.about.items()
        if theirs.about.get(key) != value
    ]
    return about + _value_difference(path, ours.value, theirs.value, same)


_TOLERANCES = dict.fromkeys((torch.bfloat16, torch.float16, torch.complex32), 2e-2)
_TOLERANCES |= dict.fromkeys((torch.float64, torch.complex128), 1e-9)
"""Relative and absolute; 1e-5 of other types."""


def _value_difference(path: str, eager: torch.Tensor | None, bundle: torch.Tensor | None, same: Same) -> list[str]:
    if eager is None or bundle is None:
        return [] if eager is bundle else [f"{path}: eager {_short(eager)}, bundle {_short(bundle)}"]
    if eager.shape != bundle.shape or eager.dtype != bundle.dtype:
        return [f"{path}: eager {eager.dtype}{list(eager.shape)}, bundle {bundle.dtype}{list(bundle.shape)}"]
    if eager.layout != torch.strided or bundle.layout != torch.strided:
        if eager.layout != bundle.layout:
            return [f"{path}: eager {eager.layout}, bundle {bundle.layout}"]
        eager, bundle = eager.to_dense(), bundle.to_dense()
    if same(path, eager, bundle):
        return []
    if eager.dtype == torch.complex32:  # torch cannot print this dtype
        eager, bundle = eager.to(torch.complex64), bundle.to(torch.complex64)
    return [f"{path}: values differ, eager {_short(eager)}, bundle {_short(bundle)}{_by(eager, bundle)}"]


def _within_tolerance(path: str, eager: torch.Tensor, bundle: torch.Tensor) -> bool:
    tolerance = _TOLERANCES.get(eager.dtype, 1e-5)
    if eager.dtype == torch.complex32:  # torch cannot compare this dtype
        eager, bundle = eager.to(torch.complex64), bundle.to(torch.complex64)
    return torch.equal(eager, bundle) or torch.allclose(eager, bundle, rtol=tolerance, atol=tolerance, equal_nan=True)


def _by(eager: torch.Tensor, bundle: torch.Tensor) -> str:
    """The largest difference of real numbers, next to the largest of them."""
    if not eager.is_floating_point() or not (eager.isfinite().all() and bundle.isfinite().all()):
        return ""
    return f", by up to {(eager - bundle).abs().max():.2g} of {eager.abs().max():.2g}"


def _short(value: torch.Tensor | None) -> str:
    return "None" if value is None else f"{value.flatten()[:4].tolist()}…"
