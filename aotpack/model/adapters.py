"""Describes the adapters of ``peft`` that a model has: what tools need to save and load them without the model's code."""

from __future__ import annotations

import enum
import inspect
import sys
import warnings
from typing import Any

from torch import nn

from aotpack_loader.integrations.peft import without_code

_HUB = "base_model_name_or_path"


def describe_adapters(model: Any) -> dict[str, Any] | None:
    """Return the adapters of a model, or None if it has none. Values that are no plain data are the caller's to drop.

    ``configs`` and ``entries`` are by the name of an adapter. ``entries`` maps the names in a file of
    peft to state entries. ``base`` is the path of the model that peft wrapped, None if peft changed
    the model in place. ``signature`` has the parameters of its ``forward``.
    """
    library = sys.modules.get("peft")
    if library is None or not isinstance(configs := getattr(model, "peft_config", None), dict):
        return None
    base = _base(library, model)
    if base is not model and base is None:
        return None
    active = model.active_adapters() if base is model else model.active_adapters
    return {
        "configs": {name: _values(config) for name, config in configs.items()},
        "entries": {name: entries for name in configs if (entries := _entries(library, model, name)) is not None},
        "active": list(active),
        "base": next((path for path, module in model.named_modules() if module is base and path), None),
        "signature": [] if base is model else list(inspect.signature(base.forward).parameters.values()),
    }


def _base(library: Any, model: Any) -> nn.Module | None:
    """Return the model that peft wrapped, the model itself if it was changed in place, or None for other models."""
    found: nn.Module | None = model if getattr(model, "_hf_peft_config_loaded", False) else None
    if isinstance(model, library.PeftModel):
        found = model.get_base_model()
    elif isinstance(model, library.PeftMixedModel):
        found = model.base_model.model
    return found


def _values(config: Any) -> dict[str, Any]:
    """Return the values of a configuration, without what names code or a place of this machine."""
    return {name: _plain(value) for name, value in without_code(config.to_dict()).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    return sorted(value) if isinstance(value, set) else value


def _entries(library: Any, model: Any, adapter: str) -> dict[str, str] | None:
    """Return the state entries of an adapter by the names that peft saves them under, None if it computes what it saves."""
    state = model.state_dict()
    names = {id(tensor): name for name, tensor in state.items()}
    config = model.peft_config[adapter]
    hub = getattr(config, _HUB, None)
    try:
        setattr(config, _HUB, None)  # else peft asks the network for the size of the vocabulary
        with warnings.catch_warnings(action="ignore"):
            saved = library.get_peft_model_state_dict(model, state_dict=state, adapter_name=adapter)
    finally:
        setattr(config, _HUB, hub)
    if any(id(tensor) not in names for tensor in saved.values()):
        return None
    prefix = "base_model.model." if not isinstance(model, (library.PeftModel, library.PeftMixedModel)) else ""
    return {prefix + name: names[id(tensor)] for name, tensor in saved.items()}
