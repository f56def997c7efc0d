"""Describes the model's modules for the program: their classes, modes and plain attributes.

The loaded model shows them to code that reads or edits modules.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from aotpack_loader.format import schema
from aotpack_loader.format.validate import RESERVED

from .. import origin
from ..graph.literals import NOT_A_LITERAL, literal_argument

_OWN = frozenset(vars(nn.Module())) | frozenset(dir(nn.Module))
"""The attributes that every module has."""
_DEPTH = 8
_TEXT = 2000
"""Characters of a module's text that are kept."""
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]+")
_SEQUENCES: dict[type, Any] = {tuple: "tuple", list: "list", torch.Size: "size"}


def describe_modules(model: nn.Module) -> tuple[list[schema.Module], list[schema.ModuleClass]]:
    """Describe all modules, depth first, and their classes.

    Strings are kept for torch's own classes only.
    """
    classes: dict[type, tuple[int, set[str]]] = {}
    found = dict(_walk(model, ""))
    first = {id(module): name for name, module in reversed(found.items())}
    after = {mode: modes_after(model, mode) for mode in (True, False)}
    modules: list[schema.Module] = []
    numbers: dict[int, int] = {}
    for name, module in found.items():
        if first[id(module)] != name:
            modules.append(schema.Module(name, modules[numbers[id(module)]].kind, same_as=first[id(module)]))
            continue
        numbers[id(module)] = len(modules)
        attributes = {key: value for key, value in vars(module).items() if key not in _OWN}
        number, names = classes.setdefault(type(module), (len(classes), set(_class_names(type(module)))))
        plain = {key: _plain(value, strings=_is_torch_class(type(module))) for key, value in attributes.items()}
        names |= {key for key, value in plain.items() if value is NOT_A_LITERAL}
        plain |= _absent(module)
        modules.append(
            schema.Module(
                name=name,
                kind=number,
                training=module.training,
                trains=after[True].get(id(module), True),
                evaluates=not after[False].get(id(module), False),
                text=_text(module),
                attributes={key: value for key, value in plain.items() if value is not NOT_A_LITERAL},
            )
        )
    described = [_describe_class(kind, names) for kind, (_, names) in classes.items()]
    return modules, described


def _walk(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules by path. The children of a repeated module are not listed again."""
    seen: set[int] = set()

    def below(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
        yield path, module
        if id(module) in seen:
            return
        seen.add(id(module))
        for name, child in module._modules.items():
            if child is not None and (path or name not in RESERVED):
                yield from below(child, f"{path}.{name}" if path else name)

    return below(module, path)


def modes_after(model: nn.Module, mode: bool) -> dict[int, bool]:
    """Return the modules' flags after ``train()`` or ``eval()`` of the model.

    Empty unless a class overrides these, and if they are no methods that set the mode.
    """
    modules = list(model.modules())
    if all(type(m).train is nn.Module.train and type(m).eval is nn.Module.eval for m in modules):
        return {}
    before = [(m, m.training, [p.requires_grad for p in m._parameters.values() if p is not None]) for m in modules]
    try:
        model.train() if mode else model.eval()
        return {id(m): m.training for m in modules}
    except (NotImplementedError, TypeError):
        return {}
    finally:
        for m, training, required in before:
            m.training = training
            for parameter, needed in zip([p for p in m._parameters.values() if p is not None], required, strict=True):
                parameter.requires_grad_(needed)


def _absent(module: nn.Module) -> dict[str, Any]:
    """Return the parameters, buffers and submodules of a torch module that are None, so that they can be read as None."""
    held = (module._parameters, module._buffers, module._modules)
    return {name: None for items in held for name, value in items.items() if value is None and _is_torch_class(type(module))}


def _describe_class(kind: type, names: set[str]) -> schema.ModuleClass:
    return schema.ModuleClass(origin.class_name(kind), _base(kind), sorted(names))


def _base(kind: type) -> str:
    """Return the name of the nearest base class that ``torch.nn`` exports."""
    for base in kind.__mro__:
        if base is not nn.Module and base in _EXPORTED:
            return _EXPORTED[base]
    return ""


_EXPORTED = {getattr(nn.modules, name): name for name in nn.modules.__all__ if name in vars(nn)}


def _is_torch_class(kind: type) -> bool:
    return kind.__module__.startswith("torch.nn.")


def _class_names(kind: type) -> Iterator[str]:
    """Yield the attributes of a user's own class: methods and values that its code may read."""
    for base in kind.__mro__:
        file = getattr(sys.modules.get(base.__module__), "__file__", None) or ""
        if not base.__module__.startswith("torch.") and base is not object and origin.is_users_own(file):
            yield from (name for name in vars(base) if not (name.startswith("__") and name.endswith("__")) and name not in _OWN)


def _plain(value: Any, *, strings: bool, depth: int = _DEPTH) -> Any:
    """Return a value as plain data, or ``NOT_A_LITERAL``.

    ``strings`` is set for torch's own classes only, because strings of others may contain paths or
    secrets.
    """
    kind = type(value)
    if kind in _SEQUENCES and depth:
        items = [_plain(item, strings=strings, depth=depth - 1) for item in value]
        return NOT_A_LITERAL if NOT_A_LITERAL in items else schema.DataSequence(_SEQUENCES[kind], items)
    if kind is dict and depth and strings and all(type(key) in (str, int, bool) for key in value):
        items = [_plain(item, strings=strings, depth=depth - 1) for item in value.values()]
        return NOT_A_LITERAL if NOT_A_LITERAL in items else schema.DataMapping(list(value), items)
    if value is None or kind in (bool, float) or (kind is int and -(2**62) < value < 2**62):
        return literal_argument(value)
    if strings and (kind is str or isinstance(value, (torch.dtype, torch.device))):
        return literal_argument(value)
    return NOT_A_LITERAL


def _text(module: nn.Module) -> str:
    """Return what ``extra_repr`` shows, bounded. A text with an address would differ in every build, so it is left out."""
    if type(module).extra_repr is nn.Module.extra_repr:
        return ""
    try:
        text: Any = module.extra_repr()
    except Exception:  # a subclass may lack attributes that its base shows; the text is only for display
        return ""
    if not isinstance(text, str) or _ADDRESS.search(text):
        return ""
    return text if len(text) <= _TEXT else text[:_TEXT] + "…"
