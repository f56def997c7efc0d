"""Programs whose original was a model of ``transformers``: provides what that library's tools read, as recorded data.

If the caller has imported the library, a program is a ``PreTrainedModel``. Tools then save and
describe it like the original. Other methods of that class need code that a bundle does not hold,
and are refused.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from torch import nn

from ..devices.literals import plain_data
from ..errors import CorruptBundleError, EditError, MissingCodeError, Problem
from ..format import schema
from ..module.program import LoadedProgram
from ..text import shown

_KEPT = frozenset({
    "add_model_tags", "can_generate", "device", "dtype", "estimate_tokens", "floating_point_ops", "get_memory_footprint",
    "get_parameter_or_buffer", "input_modalities", "is_custom_code", "is_remote_code", "main_input_name", "model_tags",
    "named_non_persistent_buffers", "num_parameters", "should_save_on_this_rank", "warn_if_padding_and_no_attention_mask",
    "barrier_after_gathered_checkpoint_save", "gather_sharded_state_dict_for_save",
})  # fmt: skip
"""Methods of the library that only read what a program has."""
_HINTS = {
    "gradient_checkpointing_enable": "Call it on the model itself before the build, or build with a memory budget.",
    "activation_checkpointing_enable": "Call it on the model itself before the build, or build with a memory budget.",
    "from_pretrained": "Load the bundle, and fill it with load_state_dict().",
    "generate": "Call the bundle for one token after another, or load its state_dict() into the model itself.",
    "push_to_hub": "Save it with save_pretrained(), and upload the directory.",
}


_CODE = frozenset({
    "_auto_class", "_from_auto", "_name_or_path", "auto_map", "custom_generate", "custom_pipelines", "kernel_config",
    "name_or_path", "trust_remote_code", "use_kernels",
})  # fmt: skip
_IMPLEMENTATIONS = ("_implementation", "_implementation_internal", "_implementation_autoset")
_LABELS = ("id2label", "label2id")
"""Values of a configuration that no model computes with."""


class ConfigWarning(UserWarning):
    """A value of a recorded configuration was changed. Compiled code does not read it."""


class Config:
    """A model's recorded configuration, with its values as attributes.

    Changed values are saved, but compiled code does not read them.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)

    def to_dict(self) -> dict[str, Any]:
        """The values by name."""
        return dict(self.__dict__)

    def to_diff_dict(self) -> dict[str, Any]:
        """All values, because defaults are not known here."""
        return self.to_dict()

    def to_json_string(self, use_diff: bool = True) -> str:
        """The values as JSON."""
        try:
            return json.dumps(self.to_dict(), indent=2, sort_keys=True, default=_shown) + "\n"
        except TypeError:  # keys of several types have no order
            return json.dumps(self.to_dict(), indent=2, default=_shown) + "\n"

    def to_json_file(self, path: str | Path, use_diff: bool = True) -> None:
        """Write the values as JSON."""
        Path(path).write_text(self.to_json_string(), encoding="utf-8")

    def get_text_config(self, decoder: bool | None = None, encoder: bool | None = None) -> Config:
        """The configuration itself."""
        return self

    def save_pretrained(self, folder: str | Path, **kwargs: Any) -> None:
        """Write ``config.json`` in the library's format."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        self.to_json_file(Path(folder, "config.json"))

    @property
    def num_labels(self) -> int:
        """The number of classes, as the library's configurations count them."""
        labels = self.id2label
        if not isinstance(labels, dict):
            raise CorruptBundleError(f"The recorded configuration has id2label = {shown(labels)}, which names no classes.")
        return len(labels)

    @num_labels.setter
    def num_labels(self, number: int) -> None:
        if number != self.num_labels:
            self.id2label = {i: f"LABEL_{i}" for i in range(number)}
            self.label2id = {label: i for i, label in self.id2label.items()}

    @property
    def use_return_dict(self) -> bool:
        """Whether the model returned a mapping."""
        return bool(self.return_dict)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _LABELS and name in self.__dict__ and self.__dict__[name] != value:
            warnings.warn(
                f"config.{name} was {shown(self.__dict__[name])} at the build, and is compiled in. The new value {shown(value)} "
                "is saved with the configuration, and changes no result.",
                ConfigWarning,
                stacklevel=2,
            )
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        raise MissingCodeError(
            f"The recorded configuration has no {name!r}. A bundle holds the values of a configuration, not its class, "
            "so aliases and properties of that class are missing.",
            hint="Make one from the values: transformers.AutoConfig.for_model(**model.config.to_dict()).",
        )

    def __contains__(self, name: object) -> bool:
        return name in self.__dict__

    def get(self, name: str, default: Any = None) -> Any:
        """The value of ``name``."""
        return self.__dict__.get(name, default)

    def __repr__(self) -> str:
        return f"{type(self).__name__} {self.to_json_string()}"


def _shown(value: Any) -> str:
    return str(value).removeprefix("torch.")


def names_code(key: object) -> bool:
    """Whether a value of a configuration by this name says which code the library runs, or from where: no bundle holds it.

    The library downloads and runs the code of ``auto_map`` and the kernels of ``attn_implementation``.
    """
    return isinstance(key, str) and (key in _CODE or (key.endswith(_IMPLEMENTATIONS) and key != "cache_implementation"))


def without_code(value: Any) -> Any:
    """Plain values without those whose names, at any depth, :func:`names_code` knows."""
    if isinstance(value, dict):
        return {key: without_code(item) for key, item in value.items() if not names_code(key)}
    return type(value)(map(without_code, value)) if type(value) in (list, tuple) else value


def _configuration(recorded: schema.Data, name: str) -> _Configured:
    """The configuration of the programs of a class.

    Raises:
        CorruptBundleError: its values have the names of methods.
    """
    taken = [key for key in getattr(recorded, "keys", []) if is_taken(key)]
    if taken:
        problems = [Problem(f"program.pretrained.{name}", f"{key!r} is a method of every configuration") for key in taken]
        raise CorruptBundleError("The recorded configuration has values in the place of methods.", problems)
    return _Configured(recorded, name)


def is_taken(key: object) -> bool:
    """Whether a value of a configuration cannot have this name: a method has it, or Python's own protocol."""
    return not isinstance(key, str) or key.startswith("__") or callable(getattr(Config, key, None))


def members(recorded: schema.Pretrained) -> dict[str, Any]:
    """The additional members of the class of a program, beside ``forward``.

    Raises:
        CorruptBundleError: the recorded configuration cannot be one.
    """
    body: dict[str, Any] = {name: plain_data(value) for name, value in recorded.attributes.items() if _is_recorded(name)}
    if recorded.config is not None:
        body["config"] = _configuration(recorded.config, "config")
    if recorded.generation_config is not None:
        body["generation_config"] = _configuration(recorded.generation_config, "generation_config")
        body["generate"] = refusal("generate")  # only such models have it
        body["_aotpack_names"] = frozenset({"prepare_inputs_for_generation"})  # which generate() and peft call
    body["get_input_embeddings"] = _embeddings(recorded.input_embeddings)
    body["get_output_embeddings"] = _embeddings(recorded.output_embeddings)
    body["_aotpack_unsaved"] = frozenset(recorded.unsaved)
    body["save_pretrained"] = save_pretrained
    body["tie_weights"] = _tied
    body["gradient_checkpointing_disable"] = _without_checkpointing
    return body


def _is_recorded(name: str) -> bool:
    """Whether a bundle may define this name.

    Names of torch's modules, of programs and of Python's protocol are excluded.
    """
    return not hasattr(LoadedProgram, name) and not name.startswith(("__", "_aotpack")) and not names_code(name)


class _Configured:
    """The configuration of each program of a class, made at its first use."""

    def __init__(self, recorded: schema.Data, name: str) -> None:
        self._recorded, self._name = recorded, name

    def __get__(self, program: nn.Module | None, owner: type | None = None) -> Any:
        if program is None:
            return self
        values = without_code(plain_data(self._recorded))
        made = vars(program)[self._name] = Config(values if isinstance(values, dict) else {})
        return made


def _embeddings(path: str | None) -> Callable[[nn.Module], nn.Module | None]:
    def embeddings(self: nn.Module) -> nn.Module | None:
        """The module that holds the embeddings. Like all submodules it only holds parameters."""
        return None if path is None else self.get_submodule(path)

    return embeddings


def _tied(self: nn.Module, *args: Any, **kwargs: Any) -> None:
    """Do nothing, because tied parameters stay tied."""


def _without_checkpointing(self: nn.Module) -> None:
    """Do nothing: how much a bundle computes again was chosen at its build, and changes no result."""


def save_pretrained(
    self: Any,
    save_directory: str | Path,
    is_main_process: bool = True,
    state_dict: dict[str, Any] | None = None,
    *,
    max_shard_size: int | str = "50GB",
    **kwargs: Any,
) -> None:
    """Write weights and configuration in the original's format, for the library's ``from_pretrained``.

    Only one of several tied weights is written.
    """
    if not is_main_process:
        return
    from huggingface_hub import save_torch_state_dict  # installed with the library

    folder = Path(save_directory)
    folder.mkdir(parents=True, exist_ok=True)
    state = self.state_dict() if state_dict is None else state_dict
    kept = {name: tensor.contiguous() for name, tensor in state.items() if name not in self._aotpack_unsaved}
    save_torch_state_dict(kept, folder, max_shard_size=max_shard_size, metadata={"format": "pt"})
    if isinstance(config := getattr(self, "config", None), Config):
        config.save_pretrained(folder)
    if isinstance(generation := getattr(self, "generation_config", None), Config):
        generation.to_json_file(folder / "generation_config.json")


def models(library: ModuleType) -> tuple[type, ...]:
    """The bases of a program that is one of the library's models."""
    base: type = library.PreTrainedModel
    refused: dict[str, Any] = {}
    for name in dir(base):
        if name.startswith("_") or hasattr(nn.Module, name) or name in _KEPT:
            continue
        if callable(getattr(base, name)):
            refused[name] = refusal(name)
    return LoadedProgram, type("Refusals", (), refused), base


def refusal(name: str, hint: str | None = None) -> Callable[..., NoReturn]:
    """A method in the place of one whose code a bundle does not hold."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise EditError(
            "A loaded bundle does not hold the code of its model.",
            [Problem(f"{name}()", "works on that code, which is compiled in")],
            hint=hint or _HINTS.get(name, "Call it on the model itself, and build the bundle again."),
        )

    refuse.__name__ = name
    return refuse


__all__ = ["Config", "members", "models"]
