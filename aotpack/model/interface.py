"""Describes what training tools read from a model: its signature, and the metadata of ``transformers`` models."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import torch
from torch import nn

from aotpack_loader.format import schema
from aotpack_loader.format.interface import ASSIGNED
from aotpack_loader.integrations.peft import ADAPTERS
from aotpack_loader.integrations.transformers import is_taken, without_code

from ..graph.literals import NOT_A_LITERAL, literal_argument
from .adapters import describe_adapters

_KINDS: dict[Any, Any] = {
    inspect.Parameter.POSITIONAL_ONLY: "positional_only",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional_or_keyword",
    inspect.Parameter.VAR_POSITIONAL: "var_positional",
    inspect.Parameter.KEYWORD_ONLY: "keyword_only",
    inspect.Parameter.VAR_KEYWORD: "var_keyword",
}
_ATTRIBUTES = (
    "main_input_name",
    "base_model_prefix",
    "loss_type",
    "input_modalities",
    "_keys_to_ignore_on_save",
    "_keys_to_ignore_on_load_missing",
    "_keys_to_ignore_on_load_unexpected",
)
_DEPTH = 16


def describe_signature(model: Any) -> list[schema.Parameter] | None:
    """Return the parameters of a call, or None if Python does not know them."""
    try:
        signature = inspect.signature(model.forward if isinstance(model, nn.Module) else model)
    except (TypeError, ValueError):
        return None
    return [_parameter(parameter) for name, parameter in signature.parameters.items() if name != ASSIGNED]


def _parameter(parameter: inspect.Parameter) -> schema.Parameter:
    if parameter.default is parameter.empty:
        return schema.Parameter(parameter.name, _KINDS[parameter.kind])
    default = _data(parameter.default)
    opaque = default is NOT_A_LITERAL
    return schema.Parameter(parameter.name, _KINDS[parameter.kind], True, None if opaque else default, opaque)


def describe_pretrained(model: nn.Module) -> schema.Pretrained | None:
    """Return the metadata of a model of ``transformers`` or ``peft``, or None for other models."""
    adapters = describe_adapters(model)
    library = sys.modules.get("transformers.modeling_utils")
    if adapters is None and (library is None or not isinstance(model, library.PreTrainedModel)):
        return None
    attributes = {name: _data(getattr(model, name, None)) for name in _ATTRIBUTES}
    if adapters is not None:
        attributes[ADAPTERS] = _adapters(adapters)
    return schema.Pretrained(
        config=_configuration(model, "config"),
        generation_config=_configuration(model, "generation_config"),
        input_embeddings=_path(model, "get_input_embeddings"),
        output_embeddings=_path(model, "get_output_embeddings"),
        attributes={name: value for name, value in attributes.items() if value is not NOT_A_LITERAL},
        unsaved=_unsaved(model),
    )


def _adapters(found: dict[str, Any]) -> schema.DataMapping:
    """Return adapters as plain data. Values of their configurations that are none are left out."""
    configs = {
        adapter: {name: value for name, value in values.items() if _data(value) is not NOT_A_LITERAL}
        for adapter, values in found["configs"].items()
    }
    described = {name: _data(value) for name, value in {**found, "configs": configs, "signature": None}.items()}
    parameters = [_parameter(parameter) for parameter in found["signature"]]
    rows: list[schema.Data] = [
        schema.DataSequence("list", [one.name, one.kind, one.optional, one.opaque, one.default]) for one in parameters
    ]
    described["signature"] = schema.DataSequence("list", rows)
    return schema.DataMapping(list(described), list(described.values()))


def _configuration(model: Any, name: str) -> schema.Data:
    config = getattr(model, name, None)
    if config is None or isinstance(config, dict):  # peft gives other models a dictionary
        return None
    kept = without_code(config.to_dict())  # nor paths of the build machine
    values = {key: _data(value) for key, value in kept.items() if not is_taken(key)}
    values["architectures"] = schema.DataSequence("list", [type(model).__name__])
    known = {key: value for key, value in values.items() if value is not NOT_A_LITERAL}
    if name != "config":
        del known["architectures"]
    return schema.DataMapping(list(known), list(known.values()))


def _path(model: Any, getter: str) -> str | None:
    try:
        found = getattr(model, getter)()
    except (NotImplementedError, AttributeError):  # the model has no such embeddings
        return None
    return next((name for name, module in model.named_modules() if module is found), None)


def _unsaved(model: Any) -> list[str]:
    """Return the names that are not saved because another name of the same tensor is.

    These are the aliases that the model declares, or else all names but the first.
    """
    groups: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor):
            groups.setdefault(id(tensor), []).append(name)
    aliases = set(getattr(model, "all_tied_weights_keys", None) or {})
    unsaved: list[str] = []
    for names in groups.values():
        tied = [name for name in names if name in aliases]
        unsaved += tied if tied and len(tied) < len(names) else names[1:]
    return sorted(unsaved)


def _data(value: Any, depth: int = _DEPTH) -> Any:
    """Return a value as plain data, or ``NOT_A_LITERAL``."""
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple) and depth:
        items = [_data(item, depth - 1) for item in value]
        kind: Any = "list" if type(value) is list else "tuple"
        return NOT_A_LITERAL if NOT_A_LITERAL in items else schema.DataSequence(kind, items)
    if isinstance(value, dict) and depth and all(type(key) in (str, int, bool) for key in value):
        items = [_data(item, depth - 1) for item in value.values()]
        return NOT_A_LITERAL if NOT_A_LITERAL in items else schema.DataMapping(list(value), items)
    if type(value) is int and not -(2**62) < value < 2**62:
        return NOT_A_LITERAL
    plain = value is None or type(value) in (bool, int, float, complex, str)
    return literal_argument(value) if plain or isinstance(value, (torch.dtype, torch.device)) else NOT_A_LITERAL
