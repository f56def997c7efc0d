"""Data types of the register: an entry for each fault of torch that a build fixes, and for each
hook into a private name.

Entries are plain data. This module imports nothing of torch, so it can be read with any release.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Component = Literal[
    "inductor", "aot_autograd", "partitioner", "fake_tensor", "symbolic_shapes", "decomposition", "dynamo", "export"
]
"""The part of torch that is at fault."""

INDUCTOR: frozenset[Component] = frozenset({"inductor"})
"""The components whose fixes only targets compiled by Inductor need."""

Severity = Literal["wrong-values", "memory-safety", "compile-error", "strides", "refuses", "messages"]
"""What happens without the fix.

``wrong-values``: wrong numbers. ``memory-safety``: reads or writes outside of memory, or an aborted
process. ``compile-error``: an error while compiling. ``strides``: wrong strides or aliasing.
``refuses``: a program that eager runs is rejected, or its sizes become fixed. ``messages``: an error
lacks what eager's says.
"""

Minor = tuple[int, int]

SUPPORTED = ("2.11", "2.13", "2.14", "2.15")
"""The minor releases of torch that the compiler was tested on."""

INDUCTOR_SUPPORTED = ("2.13", "2.14", "2.15")
"""Those of them on which targets that Inductor compiles were tested."""


@dataclass(frozen=True)
class Fix:
    """A fault of torch that a build fixes.

    Args:
        id: name of the fix, starting with the component; also the name of its case and of its
            upstream report.
        component: the part of torch that is at fault; :func:`.applying.apply_fixes` applies the
            fixes of one component.
        severity: what happens without the fix.
        summary: the symptom, in one sentence.
        apply: the function that applies the fix, as ``module:function`` within the package of
            private torch APIs. It returns a context manager. With ``kind="graph"`` it changes the
            graph that it is given.
        patches: dotted names in torch that the fix replaces or depends on.
        upstream: the issue or pull request of PyTorch that describes the fault (``pytorch#12345``), or
            ``unreported``.
        searched: the day on which PyTorch's issues were searched for an unreported fault.
        fixed_in: the first minor release whose case passes without the fix. The fix is not applied
            from there on.
        since: the first minor release with the fault. Earlier ones do not get the fix. Null: all
            have it.
        takes: the facts of a build that ``apply`` takes as keyword arguments.
        kind: ``context``: ``apply`` is entered around torch's work. ``graph``: it is called with a
            graph. ``table``: it returns decompositions by operator.
    """

    id: str
    component: Component
    severity: Severity
    summary: str
    apply: str
    patches: tuple[str, ...] = ()
    upstream: str = "unreported"
    searched: str | None = None
    fixed_in: str | None = None
    since: str | None = None
    takes: tuple[str, ...] = ()
    kind: Literal["context", "graph", "table"] = "context"

    @property
    def case(self) -> str:
        """The file with the program that shows the fault, relative to the root of the repository."""
        return f"tests/torch_fixes/cases/{self.id.replace('-', '_')}.py"

    def is_needed(self, torch_version: str) -> bool:
        """Whether this release of torch is known or assumed to have the fault."""
        installed = minor(torch_version)
        begun = self.since is None or installed >= minor(self.since)
        return begun and (self.fixed_in is None or installed < minor(self.fixed_in))


@dataclass(frozen=True)
class Hook:
    """Private names of torch that the compiler replaces or subclasses to record or reject
    something, without fixing a fault.

    ``component``: the part of torch that has these names. ``module``: the module of aotpack that
    uses them.
    """

    id: str
    component: Component
    summary: str
    module: str
    patches: tuple[str, ...]


def minor(torch_version: str) -> Minor:
    """Convert ``"2.13.0+cpu"`` to ``(2, 13)``."""
    found = re.match(r"(\d+)\.(\d+)", torch_version)
    if found is None:
        raise ValueError(f"{torch_version!r} is not a torch version")
    return int(found[1]), int(found[2])


def name_of(version: Minor) -> str:
    """Convert ``(2, 13)`` to ``"2.13"``."""
    return f"{version[0]}.{version[1]}"


def needed(fixes: Iterable[Fix], torch_version: str) -> list[Fix]:
    """The fixes among ``fixes`` that a release of torch needs, in their order."""
    return [fix for fix in fixes if fix.is_needed(torch_version)]
