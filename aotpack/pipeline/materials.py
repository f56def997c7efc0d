"""What a bundle is made of: the source files of a model, and installed packages."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import torch

from .. import __version__, origin

_TOOLS: Final = ("aotpack", "aotpack-loader", "msgspec", "safetensors", "torch", "zstandard")


@dataclass(frozen=True)
class Material:
    """Something that a build read: a source file, an installed package, or another bundle."""

    name: str
    sha256: str = ""
    purl: str = ""


def materials_of(model: torch.nn.Module | Callable[..., Any], entry: str | os.PathLike[str] | None = None) -> list[Material]:
    """Return the source files and packages that define a model: of its modules' classes, and the entry file.

    A file is named after its module, so that its name does not depend on where it lies.
    """
    found: dict[str, Material] = {}
    if entry is not None:
        found[Path(entry).name] = Material(Path(entry).name, _hash(Path(entry)))
    packages: set[str] = set()
    for module in _modules(model):
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is None or origin.is_torch(file):
            continue
        if origin.is_users_own(file):
            name = Path(file).name if module.startswith(origin.ENTRY_MODULE) else f"{module.replace('.', '/')}.py"
            found.setdefault(name, Material(name, _hash(Path(file))))
        elif origin.is_model(file):
            packages.add(module.partition(".")[0])
    return [*found.values(), *_distributions(packages)]


def _modules(model: torch.nn.Module | Callable[..., Any]) -> list[str]:
    """The names of the Python modules that define a model's classes, with their bases."""
    if not isinstance(model, torch.nn.Module):
        return [getattr(model, "__module__", "") or ""]
    classes = {base for module in model.modules() for base in type(module).__mro__}
    return sorted({kind.__module__ for kind in classes})


def _distributions(packages: Iterable[str]) -> list[Material]:
    if not packages:
        return []
    known = metadata.packages_distributions()
    return [_package(name) for name in sorted({name for package in packages for name in known.get(package, [])})]


def tools() -> list[Material]:
    """Return the packages that make a bundle."""
    return [_package(name) for name in _TOOLS]


def _package(name: str) -> Material:
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:  # a checkout on the path
        version = __version__ if name.startswith("aotpack") else "unknown"
    return Material(name, purl=f"pkg:pypi/{name.lower().replace('_', '-')}@{quote(version)}")


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
