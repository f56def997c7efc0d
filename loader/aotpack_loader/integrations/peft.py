"""Programs with adapters of ``peft``: saves and loads them as that library does, from recorded names of state entries.

Where the caller has imported the library, configurations are its own. Nothing here needs it.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn

from ..devices.literals import plain_data
from ..errors import AotpackError, CorruptBundleError, EditError, Problem, StateError
from ..format import schema
from ..module.original_class import OriginalClass, set_type
from ..module.outline import KINDS, ParameterOutline, signature_of
from ..module.submodules import Submodule
from ..text import shown
from ..value import Value
from .transformers import Config, refusal

ADAPTERS = "aotpack_adapters"
"""The attribute of a ``schema.Pretrained`` that holds the adapters."""
CODE = frozenset({"auto_mapping", "base_model_name_or_path", "revision"})
"""Values of a configuration that name code, or where to get it: no bundle holds them."""
_MEGATRON = "megatron.core"
"""The only module that the value ``megatron_core`` of a configuration may name: peft imports it."""
_WEIGHTS = "adapter_model.safetensors"
_REFUSED = (
    "add_adapter", "add_weighted_adapter", "delete_adapter", "disable_adapter", "disable_adapter_layers", "disable_adapters",
    "enable_adapter_layers", "enable_adapters", "generate", "merge_adapter", "merge_and_unload", "set_requires_grad", "unload",
    "unmerge_adapter",
)  # fmt: skip
_HINT = "Save the adapter with save_pretrained(), and load it into the model itself (PeftModel.from_pretrained)."


class Adapters(Value):
    """The adapters of a program, as :func:`aotpack.model.adapters.describe_adapters` describes them."""

    __slots__ = ("configs", "entries", "active", "base", "signature")  # noqa: RUF023 - in the order of the arguments

    configs: dict[str, dict[str, Any]]
    entries: dict[str, dict[str, str]]
    active: list[str]
    base: str | None
    signature: list[list[Any]]

    def __init__(self, configs: Any, entries: Any, active: Any, base: Any, signature: Any) -> None:
        self._set(configs, entries, active, base, signature)


def adapters_of(recorded: schema.Pretrained) -> Adapters | None:
    """The recorded adapters, or None.

    Raises:
        CorruptBundleError: they are no such data.
    """
    if ADAPTERS not in recorded.attributes:
        return None
    found = plain_data(recorded.attributes[ADAPTERS])
    try:
        adapters = Adapters(**found)
        if _are_sound(adapters):
            return adapters
    except (TypeError, AttributeError):  # of other types
        pass
    raise CorruptBundleError("The recorded adapters are no adapters: names and configurations were expected.")


def _are_sound(adapters: Adapters) -> bool:
    names = [*adapters.configs, *adapters.entries, *adapters.active]
    pairs = [text for entries in adapters.entries.values() for pair in entries.items() for text in pair]
    rows = [len(row) == 5 and type(row[0]) is str and row[1] in KINDS for row in adapters.signature]
    return (
        all(type(name) is str and name and not set(name) & set("./\\\0") for name in names)  # they name folders
        and all(type(values) is dict for values in adapters.configs.values())
        and all(values.get("megatron_core", _MEGATRON) in (None, _MEGATRON) for values in adapters.configs.values())
        and {*adapters.active, *adapters.entries} <= adapters.configs.keys()
        and (adapters.active or adapters.base is None)
        and all(type(text) is str for text in [*pairs, *([] if adapters.base is None else [adapters.base])])
        and all(rows)
    )


def members(adapters: Adapters) -> dict[str, Any]:
    """The additional members of the class of a program with adapters."""
    body: dict[str, Any] = {name: refusal(name, _HINT) for name in _REFUSED}
    body |= {
        "_aotpack_adapters": adapters,
        "peft_config": property(_configs),
        "save_pretrained": save_pretrained,
        "load_adapter": load_adapter,
        "set_adapter": _set_adapter,
    }
    if adapters.base is None:  # a model of transformers with adapters of its own
        return body | {"active_adapters": lambda self: list(adapters.active)}
    return body | {
        "active_adapters": property(lambda self: list(adapters.active)),
        "active_adapter": property(lambda self: adapters.active[0]),
        "active_peft_config": property(lambda self: self.peft_config[adapters.active[0]]),
        "has_active_enabled_adapter": True,
        "get_base_model": _base_model,
        "get_nb_trainable_parameters": _counts,
        "print_trainable_parameters": _print_counts,
        "create_or_update_model_card": _no_model_card,
    }


def save_adapter(program: nn.Module, folder: str | Path, adapter: str | None = None) -> None:
    """Write an adapter of a loaded bundle to ``folder``, for ``peft``'s ``from_pretrained``. Needs ``safetensors``, not ``peft``.

    Args:
        program: a loaded bundle of a model of ``peft``.
        folder: the directory; it is created.
        adapter: the name of the adapter, None: the active one.

    Raises:
        AotpackError: the bundle has no such adapter.
    """
    adapters = getattr(program, "_aotpack_adapters", None)
    if adapters is None:
        raise AotpackError(
            "This is no bundle of a model with adapters of peft.",
            hint="Save the trained parameters: {name: p for name, p in model.named_parameters() if p.requires_grad}.",
        )
    if adapter is None and not adapters.active:
        raise AotpackError("No adapter of this bundle is active.", hint=f"Name one of {', '.join(adapters.configs)}.")
    _save(program, adapters, Path(folder), adapters.active[0] if adapter is None else adapter, None)


def save_pretrained(
    self: Any,
    save_directory: str | Path,
    safe_serialization: bool = True,
    selected_adapters: Sequence[str] | None = None,
    save_embedding_layers: object = "auto",
    is_main_process: bool = True,
    state_dict: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> None:
    """Write the adapters as ``peft`` does: all of them, each other than ``default`` in a folder of its name.

    ``kwargs`` are options of the library that change nothing here, such as the size of files.
    """
    adapters: Adapters = self._aotpack_adapters
    every = adapters.configs if adapters.base is not None else adapters.active
    for name in every if selected_adapters is None else selected_adapters:
        if is_main_process:
            below = Path(save_directory, name) if name != "default" and adapters.base is not None else Path(save_directory)
            _save(self, adapters, below, name, state_dict)


def _save(program: nn.Module, adapters: Adapters, folder: Path, name: str, state: Mapping[str, Any] | None) -> None:
    entries = _entries(adapters, name)
    state = program.state_dict() if state is None else state
    if missing := [Problem(entry, "is missing") for entry in entries.values() if entry not in state]:
        raise StateError(f"The state dict does not hold all of adapter {name!r}.", missing)
    tensors = {saved: state[entry].detach().clone(memory_format=torch.contiguous_format) for saved, entry in entries.items()}
    folder.mkdir(parents=True, exist_ok=True)
    _safetensors().save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    values = {**adapters.configs[name], **dict.fromkeys(CODE)}
    if adapters.base is not None:
        values["inference_mode"] = True  # as peft does, and transformers does not
    text = json.dumps(values, indent=2, sort_keys=True, default=str)
    (folder / "adapter_config.json").write_text(text, encoding="utf-8")


def load_adapter(
    self: Any, model_id: str | Path, adapter_name: str = "default", is_trainable: bool = False, **kwargs: Any
) -> Any:
    """Fill an adapter from a directory that ``save_pretrained`` wrote; all or nothing.

    Raises:
        StateError: lists what is missing, unexpected or of another size; nothing was changed.
    """
    entries = _entries(self._aotpack_adapters, adapter_name)
    path = Path(model_id, _WEIGHTS)
    if not path.is_file():
        raise AotpackError(f"There is no file {path}.", hint="Give a directory with an adapter in peft's format.")
    found = _safetensors().load_file(path)
    problems = [Problem(name, "is missing in the file") for name in entries if name not in found]
    problems += [Problem(name, "is in the file, and the bundle has no such entry") for name in found if name not in entries]
    if problems:
        raise StateError(f"The adapter in {path} does not fit the adapter {adapter_name!r} of this bundle.", problems)
    result = self.load_state_dict({entries[name]: tensor for name, tensor in found.items()}, strict=False)
    result.missing_keys.clear()
    if not is_trainable and self._aotpack_adapters.base is not None:
        self.eval()  # as peft does
    return result


def _safetensors() -> Any:
    try:
        return importlib.import_module("safetensors.torch")
    except ImportError as error:
        raise AotpackError("Files of adapters need the package safetensors.", hint="pip install safetensors") from error


def _entries(adapters: Adapters, name: str) -> dict[str, str]:
    if name not in adapters.configs:
        raise EditError(
            "The adapters of a bundle are those of its build.",
            [Problem(name, f"is no adapter of it; it has {', '.join(adapters.configs)}")],
            hint="Add the adapter to the model itself, and build the bundle again.",
        )
    if name not in adapters.entries:
        raise EditError(
            "A loaded bundle does not hold the code of its model.",
            [Problem(name, "is an adapter whose files are computed by that code")],
            hint="Load state_dict() of the bundle into the model itself, and save the adapter there.",
        )
    return adapters.entries[name]


def _set_adapter(self: Any, adapter_name: str | list[str], inference_mode: bool = False) -> None:
    """Accept the adapters that are active. Which are is compiled in."""
    active = self._aotpack_adapters.active
    if inference_mode or ([adapter_name] if isinstance(adapter_name, str) else list(adapter_name)) != active:
        raise EditError(
            "Which adapters of a bundle are active is compiled in.",
            [Problem(str(adapter_name), f"cannot become active in place of {', '.join(active)}")],
            hint="Make it active in the model itself, and build the bundle again.",
        )


def _configs(self: Any) -> dict[str, Any]:
    """The configurations by adapter: of the library's own classes if the caller has imported it."""
    library = sys.modules.get("peft")
    if library is None:
        return {name: Config(without_code(values)) for name, values in self._aotpack_adapters.configs.items()}
    made = vars(self).get("_aotpack_peft_config")
    if made is None:
        adapters: Adapters = self._aotpack_adapters
        made = vars(self)["_aotpack_peft_config"] = {name: _config(library, values) for name, values in adapters.configs.items()}
        for path, module in self.named_modules():
            if module.__class__.__module__ == "peft.utils.other":
                _show_entries(module, f"{path}.", adapters.entries)
    return made  # type: ignore[no-any-return]


def _show_entries(module: nn.Module, prefix: str, entries: dict[str, dict[str, str]]) -> None:
    """Give a wrapper of a whole trained module what ``get_peft_model_state_dict`` and ``set_peft_model_state_dict`` ask it."""

    def loaded(adapter: str) -> dict[str, str]:
        pairs = entries.get(adapter, {}).items()
        return {saved.removeprefix(prefix): name.removeprefix(prefix) for saved, name in pairs if saved.startswith(prefix)}

    def saved(adapter: str, state: Mapping[str, Any]) -> dict[str, Any]:
        return {name: state[entry] for name, entry in loaded(adapter).items()}

    vars(module).update(adapter_state_dict=saved, adapter_state_dict_load_map=loaded)


def _config(library: Any, values: dict[str, Any]) -> Any:
    """A configuration of the library's class. Values that this release of it does not have are left out."""
    kept = without_code(values)
    name = kept.get("peft_type")
    kind = library.PEFT_TYPE_TO_CONFIG_MAPPING.get(name) if isinstance(name, str) else None
    if kind is None:
        return Config(kept)
    fields = kind.__dataclass_fields__.keys() - {"peft_type"}
    try:
        return kind(**{name: value for name, value in kept.items() if name in fields})
    except (TypeError, ValueError) as error:
        raise CorruptBundleError(f"peft does not take a recorded configuration: {shown(str(error))}.") from error


def without_code(values: dict[str, Any]) -> dict[str, Any]:
    """The values of a configuration without :data:`CODE`, and without a module of the user's own."""
    own = {"megatron_core"} if values.get("megatron_core") != _MEGATRON else set()
    return {name: value for name, value in values.items() if name not in CODE | own}


def _base_model(self: Any) -> nn.Module:
    """The replacement of the model that peft wrapped. It shows that model's parameters of ``forward``, and cannot be called."""
    adapters: Adapters = self._aotpack_adapters
    try:
        base = self.get_submodule(adapters.base)
    except AttributeError as error:
        raise CorruptBundleError(f"{shown(str(adapters.base))} is no module of the recorded model.") from error
    if "forward" not in vars(type(base)):
        _show_signature(base, adapters.signature, vars(type(self)).get("accepts_loss_kwargs"))
    return base  # type: ignore[no-any-return]


def _show_signature(base: nn.Module, rows: list[list[Any]], accepts: object) -> None:
    forward = FunctionType(Submodule.forward.__code__, Submodule.forward.__globals__, "forward")
    try:
        vars(forward)["__signature__"] = signature_of([ParameterOutline(*row) for row in rows])
    except (TypeError, ValueError) as error:
        raise CorruptBundleError(
            f"The recorded parameters of the model below the adapters are none: {shown(str(error))}."
        ) from error
    kind, seen = type(base), base.__class__
    body: dict[str, Any] = {"__module__": __name__, "forward": forward}
    if accepts is not None:
        body["accepts_loss_kwargs"] = accepts
    if seen is not kind:
        body["__class__"] = OriginalClass(f"{seen.__module__}.{seen.__qualname__}", nn.Module)
    set_type(base, type(kind.__name__, (kind,), body))


def _counts(self: nn.Module) -> tuple[int, int]:
    """The numbers of trainable and of all parameters."""
    counts = [(parameter.numel(), parameter.requires_grad) for parameter in self.parameters()]
    return sum(number for number, trained in counts if trained), sum(number for number, _ in counts)


def _print_counts(self: nn.Module) -> None:
    """Print the numbers of parameters as ``peft`` does."""
    trained, total = _counts(self)
    print(f"trainable params: {trained:,d} || all params: {total:,d} || trainable%: {100 * trained / total:.4f}")


def _no_model_card(self: nn.Module, output_dir: str) -> None:
    """Do nothing: a bundle writes no model card."""
