"""Checks before a build that the installed torch was tested with the fixes, and that the patched
names are unchanged.

A failed check raises one :class:`UnsupportedTorchError`, which names each fix that does not fit.
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
from .register import INDUCTOR, INDUCTOR_SUPPORTED, SUPPORTED, Fix, Hook, minor, name_of, needed
from .sources import fingerprint, recorded

_NO_OPTION = "Install a torch that was tried. No option helps: this one lacks names that aotpack imports."


def check_torch(*, inductor: bool, allow_untested: bool = False) -> bool:
    """Check the names that fixes and hooks patch.

    Returns whether this torch is untested and was allowed nevertheless.

    Args:
        inductor: whether a target compiles with Inductor. Without one, Inductor's fixes are not
            checked, and more releases of torch are allowed.
        allow_untested: build even if a check fails.

    Raises:
        UnsupportedTorchError: this torch was not tested, or differs from the tested one.
    """
    installed = str(torch.__version__)
    problems = list(_misfits(installed, inductor))
    supported = INDUCTOR_SUPPORTED if inductor else SUPPORTED
    if is_tried(installed, supported) and not problems:
        return False
    if allow_untested:
        return True
    raise _refusal(installed, problems, supported)


def check_imports() -> None:
    """On an untested torch, import aotpack's modules over private APIs, and report all that fail.

    Raises:
        UnsupportedTorchError: a private name that a module imports does not exist. No option
            overrides this: the module is needed.
    """
    installed = str(torch.__version__)
    if is_tried(installed, SUPPORTED):
        return
    folder = Path(__file__).parent.parent
    package = __package__.rpartition(".")[0]
    problems = []
    for module in pkgutil.walk_packages([str(folder)], f"{package}."):
        if not module.name.startswith(f"{package}.fixes.inductor") and not module.name.rpartition(".")[2].startswith("xla"):
            try:
                importlib.import_module(module.name)
            except (ImportError, AttributeError) as error:
                if not _is_incomplete(error, package):
                    problems.append(Problem(module.name, str(error)))
    if problems:
        raise _refusal(installed, problems, SUPPORTED, hint=_NO_OPTION)


def _is_incomplete(error: Exception, package: str) -> bool:
    """Whether an import failed because the package of private torch APIs, whose first import calls
    :func:`check_imports`, is not complete yet. Its own imports follow.
    """
    return isinstance(error, ImportError) and error.name == package


def is_tried(torch_version: str, supported: Sequence[str]) -> bool:
    """Whether this minor release of torch is one of ``supported``."""
    return name_of(minor(torch_version)) in supported


def misfits(entry: Fix | Hook, torch_version: str) -> Sequence[str]:
    """The names of an entry whose source differs from the record for this minor release, or else
    for the newest recorded one.
    """
    return [name for name in entry.patches if not _fits(name, name_of(minor(torch_version)))]


@functools.cache
def _misfits(installed: str, inductor: bool) -> tuple[Problem, ...]:
    entries: list[Fix | Hook] = [*needed(FIXES, installed), *HOOKS]
    chosen = [entry for entry in entries if inductor or entry.component not in INDUCTOR]
    found = [(entry.id, misfits(entry, installed)) for entry in chosen]
    return tuple(Problem(identifier, _misfit_text(names)) for identifier, names in found if names)


def _misfit_text(names: Sequence[str]) -> str:
    """Which names are other functions than on a torch that was tried, and which are gone."""
    changed = [name for name in names if fingerprint(name)]
    gone = [name for name in names if not fingerprint(name)]
    told = [f"{', '.join(several)} {verb}" for several, verb in ((changed, "changed"), (gone, "gone")) if several]
    return "; ".join(told)


def _fits(name: str, release: str) -> bool:
    hashes = recorded().get(name, {})
    known: Collection[str] = hashes if release not in hashes else [release]
    newest = max(known, key=minor, default="")
    return fingerprint(name) == hashes.get(newest)


def _refusal(
    installed: str, problems: Sequence[Problem], supported: Sequence[str], *, hint: str | None = None
) -> UnsupportedTorchError:
    what = "differs from the one that aotpack was tried on"
    if not is_tried(installed, supported):
        what = "was never tried with this aotpack" + (" and native code" if is_tried(installed, SUPPORTED) else "")
    ours = "fixes and hooks that do not fit it" if problems else "fixes and hooks all fit it"
    return UnsupportedTorchError(
        f"torch {installed} {what} (tried: {', '.join(supported)}). Its {ours}{':' if problems else '.'}",
        problems,
        hint=hint
        or "Install a torch that was tried, or build with allow_untested_torch=True and compare with eager: "
        "without a fix, gradients may be wrong."
        + (" The portable target was tried with this one." if is_tried(installed, SUPPORTED) and supported != SUPPORTED else ""),
    )
