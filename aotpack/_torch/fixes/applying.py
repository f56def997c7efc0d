"""Applies the fixes of one component that this torch needs, in the order of the register.

Calls of the code that a fix puts into torch are counted (:func:`patched`, :func:`count_call`). A fix
that its own case never calls has no effect, so tests check the counts.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

from ..api.counting import calls, count_call, counted
from .entries import FIXES
from .register import INDUCTOR, Component, Fix, needed

__all__ = [
    "apply_fixes",
    "calls",
    "count_call",
    "counted",
    "fix_graph",
    "fix_table",
    "fixes_of",
    "is_applied",
    "record_of_fixes",
    "without",
]

_left_out: ContextVar[frozenset[str]] = ContextVar("aotpack_left_out", default=frozenset())


def fixes_of(component: Component | None = None) -> list[Fix]:
    """The fixes that this torch needs, of one component or of all."""
    found = [fix for fix in needed(FIXES, str(torch.__version__)) if fix.id not in _left_out.get()]
    return [fix for fix in found if component is None or fix.component == component]


@contextlib.contextmanager
def apply_fixes(component: Component, *, besides: str = "", **facts: Any) -> Iterator[None]:
    """Apply the fixes of one component for the duration of a block, except those that patch a module of torch.

    ``besides``: how the names of that module's contents begin. ``facts``: the keyword arguments of some fixes.
    """
    with contextlib.ExitStack() as stack:
        for fix in fixes_of(component):
            left_out = besides and any(name.startswith(besides) for name in fix.patches)
            if fix.kind == "context" and not left_out:
                stack.enter_context(_function(fix)(**{name: facts[name] for name in fix.takes}))
        yield


def fix_graph(component: Component, module: torch.fx.GraphModule) -> None:
    """Apply the fixes of one component that change a graph."""
    for fix in fixes_of(component):
        if fix.kind == "graph":
            _function(fix)(module)


def fix_table(component: Component) -> dict[Any, Callable[..., Any]]:
    """The decompositions by operator that the fixes of one component define."""
    tables = [(fix.id, _function(fix)()) for fix in fixes_of(component) if fix.kind == "table"]
    return {operator: counted(identifier, rule) for identifier, table in tables for operator, rule in table.items()}


def record_of_fixes(*, inductor: bool, untested: bool) -> dict[str, str]:
    """What a bundle records of the fixes: those applied for a target, and whether this torch was
    untested.
    """
    applied = [fix.id for fix in fixes_of() if inductor or fix.component not in INDUCTOR]
    found = {"fixes": " ".join(sorted(applied))}
    return found | ({"untested_torch": str(torch.__version__)} if untested else {})


def is_applied(identifier: str) -> bool:
    """Whether a fix is applied; for fixes that aotpack's own code implements."""
    return any(fix.id == identifier for fix in fixes_of())


@contextlib.contextmanager
def without(*identifiers: str) -> Iterator[None]:
    """Build without some fixes: tests use it to show that each fix is needed."""
    unknown = set(identifiers) - {fix.id for fix in FIXES}
    if unknown:
        raise ValueError(f"no such fixes: {', '.join(sorted(unknown))}")
    before = _left_out.set(_left_out.get() | set(identifiers))
    try:
        yield
    finally:
        _left_out.reset(before)


@functools.cache
def _function(fix: Fix) -> Callable[..., Any]:
    module, _, name = fix.apply.partition(":")
    package = str(__package__).rpartition(".")[0]
    found: Callable[..., Any] = getattr(importlib.import_module(f"{package}.{module}"), name)
    return found
