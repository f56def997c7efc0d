"""Describes the model's parameters and buffers: their entries in the program, and the tensors to store."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Literal

import torch

from aotpack_loader.errors import Problem, UnsupportedError
from aotpack_loader.format import schema
from aotpack_loader.format.validate import RESERVED
from aotpack_loader.module.program import LoadedProgram
from aotpack_loader.runtime.memory import bytes_of

from .._torch.api.compiled_modules import is_compiled, is_script
from .._torch.api.fake_tensors import is_plain_tensor, is_wrapper_subclass
from .._torch.api.tensor_hooks import hooks_of
from ..graph.literals import dtype_name, is_held
from . import subclasses

Kind = Literal["parameter", "buffer"]


@dataclass
class StoredTensors:
    """The tensors for the weights blobs, by name and in order.

    They are contiguous and on the CPU.
    """

    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def add_constant(self, tensor: torch.Tensor) -> str:
        """Store a tensor that the model closes over, and return its name.

        Equal contents share one name.
        """
        value = tensor.detach().cpu().contiguous()
        content = bytes_of(value)
        header = f"{value.dtype}{tuple(value.shape)}".encode()
        name = "constant." + hashlib.sha256(header + content.numpy().tobytes()).hexdigest()[:24]
        self.tensors.setdefault(name, value)
        return name


def describe_state(model: torch.nn.Module, stored: StoredTensors) -> list[schema.StateEntry]:
    """List all parameters and buffers in ``state_dict`` order, and add their elements to ``stored``.

    The same tensor under two names is stored once (``tied_to``). Distinct tensors that share a
    storage still share it when loaded.
    """
    _refuse_loaded(model)
    _refuse_compiled(model)
    _refuse_uninitialised(model)
    _refuse_hooked(model)
    entries: list[schema.StateEntry] = []
    first_name: dict[int, str] = {}
    storages: dict[int, tuple[str, int]] = {}
    shared = _shared_storages(model)
    problems: list[Problem] = []
    for name, kind, tensor, persistent in named_state(model):
        if name.partition(".")[0] in RESERVED:
            problems.append(
                Problem(name, f"begins with {name.partition('.')[0]!r}, which the loaded module uses itself; rename it")
            )
            continue
        if not is_wrapper_subclass(tensor) and tensor.layout != torch.strided:
            problems.append(Problem(name, f"a {tensor.layout} tensor; a bundle stores dense tensors"))
            continue
        if not is_held(tensor.dtype):
            problems.append(Problem(name, f"is of type {tensor.dtype}, which a bundle does not hold"))
            continue
        value = tensor.detach()
        tied_to = first_name.setdefault(id(tensor), name)
        subclass = None
        if tied_to != name:
            original = next(entry for entry in entries if entry.name == tied_to)
            storage, offset, subclass = original.storage, original.offset, original.subclass
        elif is_plain_tensor(tensor):
            storage, offset = _store(name, value, stored, storages, shared)
        else:
            storage, offset, subclass = "", 0, _store_parts(name, value, stored, storages, shared)
        entries.append(
            schema.StateEntry(
                name=name,
                kind=kind,
                dtype=dtype_name(value.dtype),
                shape=list(value.shape),
                stride=list(value.stride()),
                storage=storage,
                offset=offset,
                requires_grad=tensor.requires_grad,
                persistent=persistent,
                tied_to=None if tied_to == name else tied_to,
                subclass=subclass,
            )
        )
    if problems:
        raise UnsupportedError("Some of the model's parameters or buffers cannot be stored.", problems)
    return entries


def _refuse_loaded(model: torch.nn.Module) -> None:
    """Refuse a model that is or holds a loaded bundle.

    Raises:
        UnsupportedError: names each.
    """
    found = [
        Problem(name, f"was loaded from {m.aotpack.path}") for name, m in model.named_modules() if isinstance(m, LoadedProgram)
    ]
    if found:
        raise UnsupportedError(
            "The model holds a loaded bundle, which cannot be traced again.",
            found,
            hint="Build from the original of that part, or call the two bundles one after the other.",
        )


def _refuse_compiled(model: torch.nn.Module) -> None:
    """Refuse what ``torch.compile`` or ``torch.jit`` made of a module: a build traces Python code.

    Raises:
        UnsupportedError: names each, and how to get at the original.
    """
    if is_compiled(model):
        raise UnsupportedError(
            "The model is what torch.compile made of a module, and a build compiles the module itself.",
            hint="Build from the original: model._orig_mod.",
        )
    scripts = [Problem(name or "the model", "is a ScriptModule") for name, m in model.named_modules() if is_script(m)]
    if scripts:
        raise UnsupportedError(
            "The model holds modules of torch.jit, and a build traces Python code.",
            scripts,
            hint="Build from the original modules.",
        )


def _refuse_uninitialised(model: torch.nn.Module) -> None:
    """Refuse lazy modules that were never called, because their parameters have no sizes yet.

    Raises:
        UnsupportedError: names all parameters and buffers without sizes.
    """
    lazy = [Problem(name, "has no size yet") for name, _, tensor, _ in named_state(model) if torch.nn.parameter.is_lazy(tensor)]
    if lazy:
        raise UnsupportedError(
            "The model has lazy modules that were never called.", lazy, hint="Call the model once on its example inputs."
        )


def _refuse_hooked(model: torch.nn.Module) -> None:
    """Refuse hooks on parameters and buffers: the loaded bundle has tensors of its own.

    Raises:
        UnsupportedError: names all that have hooks.
    """
    found = [Problem(name, f"has a hook, {hook}") for name, _, tensor, _ in named_state(model) for hook in hooks_of(tensor)]
    if found:
        raise UnsupportedError(
            "The model has hooks on parameters, and a bundle does not hold them.",
            found,
            hint="Remove them for the build (handle.remove()), and register them on the parameters of the loaded bundle.",
        )


def named_state(model: torch.nn.Module) -> list[tuple[str, Kind, torch.Tensor, bool]]:
    """Return ``(name, kind, tensor, persistent)`` of all parameters and buffers in ``state_dict`` order, with duplicates."""
    found: list[tuple[str, Kind, torch.Tensor, bool]] = []
    for prefix, module in model.named_modules(remove_duplicate=False):
        dot = f"{prefix}." if prefix else ""
        found += [(dot + n, "parameter", p, True) for n, p in module._parameters.items() if p is not None]
        transient = module._non_persistent_buffers_set
        found += [(dot + n, "buffer", b, n not in transient) for n, b in module._buffers.items() if b is not None]
    return found


def _shared_storages(model: torch.nn.Module) -> set[int]:
    """Return the addresses of storages that more than one distinct tensor uses."""
    owners: dict[int, set[int]] = {}
    for tensor in (part for _, _, owner, _ in named_state(model) for part in subclasses.plain_tensors(owner)):
        if tensor.numel() and tensor.layout == torch.strided:
            owners.setdefault(tensor.untyped_storage().data_ptr(), set()).add(id(tensor))
    return {address for address, tensors in owners.items() if len(tensors) > 1 and address}


def _store_parts(
    name: str, value: torch.Tensor, stored: StoredTensors, storages: dict[int, tuple[str, int]], shared: set[int]
) -> schema.Subclass | None:
    """Store the inner tensors of a subclass, each under its attribute path."""

    def inner(path: str, part: torch.Tensor) -> schema.InnerTensor:
        if part.layout != torch.strided or part.is_quantized:
            raise subclasses.refuse(name + path, f"a {part.layout} tensor; a bundle stores dense tensors")
        storage, offset = _store(name + path, part, stored, storages, shared)
        return schema.InnerTensor(dtype_name(part.dtype), list(part.shape), list(part.stride()), storage, offset)

    return subclasses.describe(value, name, None, inner)


def _store(
    name: str, value: torch.Tensor, stored: StoredTensors, storages: dict[int, tuple[str, int]], shared: set[int]
) -> tuple[str, int]:
    """Store the elements of ``value``. Return the stored name and the offset in elements."""
    address = value.untyped_storage().data_ptr() if value.numel() else 0
    if address in shared:
        whole = torch.empty(0, dtype=value.dtype, device=value.device).set_(value.untyped_storage())
        if address not in storages:
            stored.tensors[name] = whole.cpu()
            storages[address] = (name, value.element_size())
        shared_name, element_size = storages[address]
        if element_size != value.element_size():
            raise UnsupportedError(f"{name} shares its storage with {shared_name} under another element size.")
        return shared_name, int(value.storage_offset())
    if value.is_contiguous():
        stored.tensors[name] = value.cpu()
    else:
        span = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
        stored.tensors[name] = value.as_strided((span,), (1,), value.storage_offset()).cpu().contiguous()
    return name, 0
