"""The original's modules in a loaded program: replacements that hold parameters and look like the original's modules.

A replacement cannot be called. It prints like the original, and its submodules have the same names.
Modules of torch's classes are instances of them, so ``isinstance(module, nn.Linear)`` is true.
Other classes are not imported. If the caller has imported one, it appears as ``__class__``
(:mod:`.original_class`); otherwise only its name is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

from ..errors import AotpackError, ModeError
from .edits import Edits, Submodules, Watched
from .original_class import OriginalClass

if TYPE_CHECKING:
    from ..format import schema
    from .outline import EntryOutline, ModuleOutline, Outline


class Slots(dict[str, tuple[dict[str, Any], str]]):
    """For each state entry the dictionary that holds it, and its key there.

    A class of its own, because ``torch.export`` rebuilds plain dictionaries among the attributes of a module, with copies
    of what they hold.
    """


class Submodule(Watched):
    """A submodule of the original: holds its parameters and buffers under their names, and cannot be called."""

    _aotpack_base: type[nn.Module] = nn.Module
    _aotpack_text = ""
    _aotpack_is_torchs = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a plain module when a torch method constructs this class, such as for a slice of a ``ModuleList``."""
        if cls._aotpack_base is nn.Module:
            raise AotpackError(f"{cls.__name__} stands for a class of the original, which a bundle does not hold.")
        return cls._aotpack_base(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise ModeError(
            f"{self._aotpack_path}: This submodule only holds parameters: a bundle is called as a whole.",
            hint="Return its value from the model as well, or build a bundle of this submodule, with example inputs of its own.",
        )

    def extra_repr(self) -> str:
        return shown(self._aotpack_text)

    def _aotpack_can_average(self, momentum: Any) -> bool:
        from .averages import can_average  # rarely needed

        return can_average(self, self._aotpack_base, momentum) and self._aotpack_is_torchs

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise AotpackError(
            "A submodule of a loaded bundle cannot be pickled.", hint="Save its state_dict() instead, or that of the bundle."
        )


def shown(text: str) -> str:
    """A text of a bundle as ``repr`` shows it. Its lines are kept, and invisible characters are escaped."""
    from ..text import visible_lines  # nothing is shown at a start

    return visible_lines(text)


def add_modules(root: Watched, modules: list[ModuleOutline], edits: Edits) -> None:
    """Add the original's modules below ``root``, in their recorded modes."""
    first = modules[0] if modules else None
    vars(root)["_aotpack_names"] = root._aotpack_names.union(first.names if first else ())
    vars(root)["_aotpack_text"] = first.text if first else ""
    root._aotpack_watch(edits, "", first.attributes if first else {})
    made: dict[str, nn.Module] = {"": root}
    for module in modules[1:]:
        parent, _, name = module.name.rpartition(".")
        same = module.same_as
        made[module.name] = child = made[same] if same is not None else _stand_in(module, edits)
        dict.__setitem__(made[parent]._modules, name, child)


def add_state(root: Watched, entries: list[EntryOutline], state: Mapping[str, torch.Tensor], edits: Edits) -> Slots:
    """Add the tensors at the original's paths. Missing parent modules are created."""
    # Writes into the dictionaries directly: register_parameter and add_module refuse names that
    # nn.Module uses itself (``half``), but a ParameterList or ParameterDict of the original may
    # contain them.
    made: dict[str, torch.Tensor] = {}
    slots = Slots()
    for entry in entries:
        owner, name = _owner(root, entry.name, edits)
        value = made[entry.tied_to] if entry.tied_to else state[entry.name]
        if entry.kind == "parameter":
            if not isinstance(value, nn.Parameter):
                value = nn.Parameter(value, requires_grad=entry.requires_grad)
            holder: dict[str, Any] = owner._parameters
        else:
            if entry.requires_grad:
                value.requires_grad_()
            holder = owner._buffers
            if not entry.persistent:
                owner._non_persistent_buffers_set.add(name)
        holder[name] = made[entry.name] = value
        owner._aotpack_held.add(name)
        slots[entry.name] = holder, name
    return slots


def computed_state(root: Watched, entries: list[schema.StateEntry], names: list[str]) -> dict[str, Any]:
    """Values that eager reads for removed parameters or buffers: attributes, parametrizations or None."""
    known = {entry.name: entry for entry in entries}
    computed: dict[tuple[nn.Module, str], Any] = {}
    state: dict[str, Any] = {}
    for name in names:
        path, _, key = name.rpartition(".")
        at = (root.get_submodule(path), key)
        if at not in computed:  # a shared module can have several names
            computed[at] = _with_strides(getattr(*at, None), known[name])
        state[name] = computed[at]
    return state


def _with_strides(value: Any, entry: schema.StateEntry) -> Any:
    """A computed parameter, with the strides that compiled code relies on."""
    fits = isinstance(value, torch.Tensor) and list(value.shape) == entry.shape and value.dtype == getattr(torch, entry.dtype)
    if entry.kind == "buffer" or not fits or list(value.stride()) == entry.stride:
        return value
    return torch.empty_strided(entry.shape, entry.stride, dtype=value.dtype, device=value.device).copy_(value)


def root_class(outline: Outline) -> tuple[str, type[nn.Module]]:
    """The name of the original's class, and the class of ``torch.nn`` that it is or derives from."""
    if not outline.modules:
        return "", nn.Module
    return outline.modules[0].kind, _class_of_torch(outline.modules[0].base)


def modes_after(modules: list[ModuleOutline]) -> dict[bool, list[str]]:
    """The submodules that ``train()`` and ``eval()`` of the root leave in the other mode, as in the original."""
    return {
        True: [module.name for module in modules[1:] if not module.trains],
        False: [module.name for module in modules[1:] if not module.evaluates],
    }


def _owner(root: Watched, path: str, edits: Edits) -> tuple[Watched, str]:
    *parents, name = path.split(".")
    module: Any = root
    walked = ""
    for parent in parents:
        walked = f"{walked}.{parent}" if walked else parent
        if parent not in module._modules:
            child = _blank(Submodule)
            child._aotpack_watch(edits, walked, {})
            dict.__setitem__(module._modules, parent, child)
        module = module._modules[parent]
    return module, name


def _stand_in(module: ModuleOutline, edits: Edits) -> Submodule:
    made = _blank(_class(module.kind, module.base, module.names))
    made._aotpack_watch(edits, module.name, module.attributes)
    vars(made).update(_aotpack_text=module.text, training=module.training)
    return made


def _blank(kind: type[Submodule]) -> Submodule:
    made = object.__new__(kind)
    nn.Module.__init__(made)
    return made


@cache
def _class(name: str, base: str, names: tuple[str, ...]) -> type[Submodule]:
    """A class with the name of the original's, derived from its class of ``torch.nn``. Nothing is imported."""
    short = name.rpartition(".")[2]
    kind = _class_of_torch(base)
    bases = (Submodule,) if kind is nn.Module else (Submodule, kind)
    is_torch_class = f"{kind.__module__}.{kind.__qualname__}" == name
    namespace: dict[str, Any] = {"__module__": __name__, "_aotpack_base": kind, "_aotpack_names": frozenset(names)}
    namespace |= {"_aotpack_is_torchs": True} if is_torch_class else {"__class__": OriginalClass(name, kind)}
    if issubclass(kind, nn.modules.batchnorm._NormBase):
        namespace["reset_running_stats"] = _reset_running_stats
    return type(short if short.isidentifier() else "Module", bases, namespace)


def _reset_running_stats(self: Submodule) -> None:
    """Reset the statistics as any BatchNorm does. If ``update_bn`` then sets a refused ``momentum``, this is undone."""
    before = [(buffer, buffer.clone()) for buffer in self._buffers.values() if buffer is not None]
    self._aotpack_base.reset_running_stats(self)  # type: ignore[attr-defined]
    self._aotpack_edits.sound.clear()
    self._aotpack_edits.reset += [(self, buffer, old, buffer._version) for buffer, old in before]


def _class_of_torch(name: str) -> type[nn.Module]:
    found = getattr(nn.modules, name, None) if name in nn.modules.__all__ and not name.startswith("Lazy") else None
    return found if isinstance(found, type) and issubclass(found, nn.Module) else nn.Module


__all__ = ["Slots", "Submodule", "Submodules", "add_modules", "add_state", "modes_after", "root_class"]
