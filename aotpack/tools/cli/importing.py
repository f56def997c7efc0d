"""``--import``: imports the user's modules, for bundles with operators or tensor subclasses that torch does not have."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from aotpack_loader.errors import EntryError, Problem

if TYPE_CHECKING:
    from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])


def import_option(function: F) -> F:
    """Add ``--import`` as the parameter ``modules``."""
    return click.option(
        "--import",
        "modules",
        multiple=True,
        metavar="MODULE",
        help="Python module to import first, which registers operators, or has the classes of tensors, that the bundle requires. "
        "May be repeated.",
    )(function)


def import_modules(names: Sequence[str]) -> list[type[Tensor]]:
    """Import the user's modules, which may be in the working directory.

    Returns their tensor subclasses.

    Raises:
        EntryError: a module cannot be imported.
    """
    from aotpack.model.entry import directory_on_path

    with directory_on_path(Path(os.getcwd(), "-")):
        modules = [_imported(name) for name in names]
    return [kind for module in modules for kind in _subclasses(module)]


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        problem = Problem(name, f"{type(error).__name__}: {error}")
        raise EntryError("A module that --import names cannot be imported.", [problem]) from error


def _subclasses(module: ModuleType) -> list[type[Tensor]]:
    """Return the tensor subclasses with ``__tensor_unflatten__``.

    A bundle cannot require others.
    """
    from torch import Tensor

    kinds = [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, Tensor)]
    return [kind for kind in kinds if hasattr(kind, "__tensor_unflatten__")]
