"""Finds what a model does of its own when checkpoints are saved and loaded."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from .tensor_hooks import name_of

_SAVING = ("_state_dict_pre_hooks", "_state_dict_hooks"), ("state_dict", "_save_to_state_dict", "get_extra_state")
_LOADING = (
    ("_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
    ("load_state_dict", "_load_from_state_dict", "set_extra_state"),
)


def saving_code(model: torch.nn.Module) -> list[str]:
    """Hooks and methods of the model that change its ``state_dict()``, by module path. Torch's own are left out."""
    return list(_found(model, *_SAVING))


def loading_code(model: torch.nn.Module) -> list[str]:
    """Hooks and methods of the model that change what ``load_state_dict()`` does, like :func:`saving_code`."""
    return list(_found(model, *_LOADING))


def _found(model: torch.nn.Module, hooks: tuple[str, ...], methods: tuple[str, ...]) -> Iterator[str]:
    for path, module in model.named_modules():
        own = [getattr(hook, "hook", hook) for name in hooks for hook in getattr(module, name).values()]
        own += [getattr(type(module), name) for name in methods]
        for function in own:
            if not str(getattr(function, "__module__", "")).startswith("torch."):
                yield f"{path}: {name_of(function)}" if path else name_of(function)
