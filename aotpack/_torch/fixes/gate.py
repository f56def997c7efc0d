"""The gate before a build: is this a torch that the fixes were tried on, and are the patched names what they were there?

What is wrong is one :class:`UnsupportedTorchError` that names each fix that does not fit.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from aotpack_loader.errors import Problem, UnsupportedTorchError

from .entries import FIXES, HOOKS
from .register import INDUCTOR, SUPPORTED, Fix, Hook, minor, name_of, needed
from .sources import fingerprint, recorded


def check_torch(*, inductor: bool, allow_untested: bool = False) -> bool:
    """Look at what the fixes and hooks patch; whether this torch is one that was not tried, and was let through.

    Args:
        inductor: whether Inductor compiles for one of the targets; without it, its fixes do not matter.
        allow_untested: build all the same.

    Raises:
        UnsupportedTorchError: this torch was not tried, or is not what was tried.
    """
    installed = str(torch.__version__)
    problems = list(_misfits(installed, inductor))
    tried = is_tried(installed)
    if tried and not problems:
        return False
    if allow_untested:
        return True
    raise _refusal(installed, problems, tried=tried)


def check_imports() -> None:
    """On a torch that was not tried: import our modules over it, and name all that cannot be.

    Raises:
        UnsupportedTorchError: a private name that a module imports is gone. No option helps: that module is needed.
    """
    installed = str(torch.__version__)
    if is_tried(installed):
        return
    folder = Path(__file__).parent.parent
    package = __package__.rpartition(".")[0]
    problems = []
    for module in pkgutil.iter_modules([str(folder)]):
        if module.name != "fixes" and not module.name.startswith("xla"):
            try:
                importlib.import_module(f"{package}.{module.name}")
            except (ImportError, AttributeError) as error:
                problems.append(Problem(f"{package}.{module.name}", str(error)))
    if problems:
        raise _refusal(installed, problems, tried=False)


def is_tried(torch_version: str) -> bool:
    """Whether the compiler was run on this minor release of torch."""
    return name_of(minor(torch_version)) in SUPPORTED


def misfits(entry: Fix | Hook, torch_version: str) -> Sequence[str]:
    """The names of an entry that are not what was recorded: of this minor release, or of the newest that was."""
    return [name for name in entry.patches if not _fits(name, name_of(minor(torch_version)))]


@functools.cache
def _misfits(installed: str, inductor: bool) -> tuple[Problem, ...]:
    entries: list[Fix | Hook] = [*needed(FIXES, installed), *HOOKS]
    chosen = [entry for entry in entries if inductor or entry.component not in INDUCTOR]
    return tuple(
        Problem(entry.id, f"{name} {'has changed' if fingerprint(name) else 'is gone'}")
        for entry in chosen
        for name in misfits(entry, installed)
    )


def _fits(name: str, release: str) -> bool:
    hashes = recorded().get(name, {})
    known: Collection[str] = hashes if release not in hashes else [release]
    newest = max(known, key=minor, default="")
    return fingerprint(name) == hashes.get(newest)


def _refusal(installed: str, problems: Sequence[Problem], *, tried: bool) -> UnsupportedTorchError:
    what = "differs from the one that aotpack was tried on" if tried else "was never tried with this aotpack"
    ours = "fixes and hooks that do not fit it" if problems else "fixes and hooks all fit it"
    return UnsupportedTorchError(
        f"torch {installed} {what} (tried: {', '.join(SUPPORTED)}). Its {ours}{':' if problems else '.'}",
        problems,
        hint="Install a torch that was tried, or build with allow_untested_torch=True and compare with eager: "
        "without a fix, gradients may be wrong.",
    )
