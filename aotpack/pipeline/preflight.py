"""Checks a request before any work: a build takes minutes, and most mistakes show at once.

One error reports all problems: options, targets, the bundle's path, directories of this user, and
what targets lack on this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from aotpack_loader.errors import AotpackError, BuildError, Problem
from aotpack_loader.trust import check_records

from ..capture.autocast import current_autocast
from ..targets import Target, find_targets
from ..writer.destination import check_destination
from .options import Options, wrong_choices
from .specializations import refuse_unused

T = TypeVar("T")


def check_args(args: object, *, optional: bool = False) -> None:
    """Check the positional arguments of the example. ``optional``: there may be none.

    Raises:
        BuildError: they are no tuple.
    """
    if not isinstance(args, tuple) and not (optional and args is None):
        problem = Problem("args", f"expected a tuple of positional arguments, got {type(args).__name__}")
        raise BuildError("The build's options are not valid.", [problem])


def check_build(options: Options, *also: Callable[[], object]) -> tuple[Options, list[Target]]:
    """Check the options of a build. Return them with the caller's autocast, and the targets.

    ``also`` are further checks.

    Raises:
        AotpackError: the only problem, or a :class:`BuildError` with all of them.
    """
    found = _Problems()
    for check in also:
        found.of(check)
    found.options([*options.problems()])
    targets = _check_targets(found, options.targets, options.specializations, options.out, options.layout)
    found.raise_all()
    return replace(options, ambient=current_autocast()), targets


def check_compile(
    targets: Sequence[str], specializations: Sequence[Mapping[str, int]], out: str | Path, layout: str
) -> list[Target]:
    """Check these arguments of ``aotpack.compile_bundle``, and return its targets.

    Raises:
        AotpackError: as :func:`check_build`.
    """
    found = _Problems()
    found.options([*wrong_choices({"layout": layout})])
    made = _check_targets(found, targets, specializations, out, layout)
    found.raise_all()
    return made


def _check_targets(
    found: _Problems, names: Sequence[str], specializations: Sequence[Mapping[str, int]], out: str | Path, layout: str
) -> list[Target]:
    """Check what both commands take: targets, their needs, and where the bundle goes."""
    if isinstance(names, str):
        found.errors.append(BuildError(f"targets={names!r} is not a sequence of names.", hint=f"Write targets=({names!r},)."))
        names = ()
    elif not names:
        found.errors.append(BuildError("No target was asked for.", hint="Give at least one, for example 'cpu' or 'portable'."))
    made = [found.of(partial(find_targets, name)) for name in names]
    named = {target.name: target for several in made if several is not None for target in several}
    targets = [named[name] for name in sorted(named)]  # their order decides nothing, the graphs least of all
    if None not in made:
        found.of(lambda: refuse_unused(targets, specializations))
    kinds = {type(target): target for target in targets}
    found.errors += [error for target in kinds.values() for error in target.lacks()]
    found.of(lambda: check_destination(out, layout))
    found.of(check_records)
    return targets


class _Problems:
    """The errors of several checks."""

    def __init__(self) -> None:
        self.errors: list[AotpackError] = []

    def of(self, check: Callable[[], T]) -> T | None:
        """Return what a check returns; None after an error, which is kept."""
        try:
            return check()
        except AotpackError as error:
            self.errors.append(error)
            return None

    def options(self, problems: list[Problem]) -> None:
        """Keep what is wrong with the options as one error."""
        if problems:
            self.errors.append(BuildError("The build's options are not valid.", problems))

    def raise_all(self) -> None:
        """Raise a single error as it is, or one error with the problems of all."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            problems = [problem for error in self.errors for problem in error.problems or [Problem("", error.summary)]]
            hints = dict.fromkeys(error.hint for error in self.errors if error.hint)
            raise BuildError("The build cannot begin.", problems, hint="\n".join(hints))
