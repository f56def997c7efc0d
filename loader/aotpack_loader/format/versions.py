"""The format's version and its history.

The version has two numbers. :data:`FORMAT_VERSION` counts changes of the documents and the
container. The calling convention of the graphs is part of the documents, and changes only with the
major number. A reader refuses another major version, and ignores optional fields of a newer minor
version.

Changes by version:

* 1.0 (2026-11-21): first release.
* 1.1 (2026-11-23):

  * fields of the program: ``modules``, ``module_classes``, ``signature``, ``pretrained``, ``origins``;
  * fields of methods: ``flags``, ``lines``; of records: ``leaf``; of targets: ``imports``;
  * the feature ``containers``: ``updates`` of methods, trees of type ``given``;
  * the feature ``sets_requires_grad`` of tensor arguments;
  * the feature ``autocast-variants``;
  * the feature ``sparse-gradients``: ``sparse`` of a backward;
  * the feature ``tangent-writes``: ``tangent_writes`` of a backward;
  * ``result_sources`` of a backward;
  * the feature ``own-graphs``: targets may have programs of their own (M4).

* 1.2 (2026-11-29): the features ``module-flags`` and ``result-sources``, which programs of 1.1 use without the names;
  the feature ``assigned-state``: ``assigned`` of a program; the feature ``functions``: ``function`` of methods;
  the feature ``state-writes``: ``state_writes`` of a backward; ``gpu`` of targets, ``kernels`` of executables.
"""

from __future__ import annotations

from typing import Final

from ..errors import UnsupportedVersionError
from .schema import Program, Version

FORMAT_VERSION: Final = Version(major=1, minor=2)

ASSIGNED_STATE: Final = "assigned-state"
"""The feature of programs whose calls assign tensors with gradients to buffers (``Program.assigned``)."""

AUTOCAST_VARIANTS: Final = "autocast-variants"
"""Several methods may serve one mode, each under an autocast of its own (C5)."""

CONTAINERS: Final = "containers"
"""The feature of programs that change or return containers of their callers (``Method.updates``, ``GivenNode``)."""

FUNCTIONS: Final = "functions"
"""The feature of programs with methods of other functions than the module's own call (``Method.function``)."""

MODULE_FLAGS: Final = "module-flags"
"""The feature of programs that are called with submodules in given modes (``Method.flags``)."""

RESULT_SOURCES: Final = "result-sources"
"""The feature of programs that say which results are computed from others (``Backward.result_sources``)."""

SETS_REQUIRES_GRAD: Final = "sets_requires_grad"
"""The feature of programs that call ``requires_grad_()`` on arguments (``TensorLeaf.sets_requires_grad``)."""

SPARSE_GRADIENTS: Final = "sparse-gradients"
"""The feature of programs with gradients that are sparse tensors (``Backward.sparse``)."""

STATE_WRITES: Final = "state-writes"
"""The feature of programs whose backward writes to buffers (``Backward.state_writes``)."""

TANGENT_WRITES: Final = "tangent-writes"
"""The feature of programs whose backward writes to gradients that it is given (``Backward.tangent_writes``)."""

OWN_GRAPHS: Final = "own-graphs"
"""The feature of each program of a bundle that has several, because targets have graphs of their own (M4)."""

KNOWN_FEATURES: Final = frozenset(
    {
        ASSIGNED_STATE,
        AUTOCAST_VARIANTS,
        CONTAINERS,
        FUNCTIONS,
        MODULE_FLAGS,
        OWN_GRAPHS,
        RESULT_SOURCES,
        SETS_REQUIRES_GRAD,
        SPARSE_GRADIENTS,
        STATE_WRITES,
        TANGENT_WRITES,
    }
)
"""Features (``Program.features``) this reader understands; an unknown one is refused."""


def check_version(program: Program) -> None:
    """Raise :class:`UnsupportedVersionError` unless this reader can run ``program``."""
    if program.format.major != FORMAT_VERSION.major:
        raise UnsupportedVersionError(
            f"This bundle has format version {program.format.major}.{program.format.minor}; "
            f"this loader reads version {FORMAT_VERSION.major}.",
            hint="Install an aotpack-loader that reads it, or build the bundle again with this release.",
        )
    unknown = sorted(set(program.features) - KNOWN_FEATURES)
    if unknown:
        raise UnsupportedVersionError(
            f"This bundle needs features this loader does not have: {', '.join(unknown)}.",
            hint="Install a newer aotpack-loader.",
        )


def torch_satisfies(version: str, specifier: str) -> bool:
    """Whether torch release ``version`` satisfies ``specifier``.

    Clauses are ``>=2.9`` or ``==2.13.*``, joined by commas. An empty specifier accepts any release.
    """
    release = _release(version.partition("+")[0])
    return all(_satisfies(release, clause.strip()) for clause in specifier.split(",") if clause.strip())


def _release(version: str) -> tuple[int, ...]:
    """The first three numbers of a version such as ``2.9.0a0``."""
    numbers = "".join(c if c.isdecimal() else " " for c in version).split()
    return tuple(map(int, numbers[:3]))


def _satisfies(release: tuple[int, ...], clause: str) -> bool:
    sign = clause[: 1 if clause[1:2] != "=" else 2]
    parts = clause[len(sign) :].removesuffix(".*").split(".")
    if sign not in (">=", "<", "==") or not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        return False
    wanted = tuple(map(int, parts))
    if sign == "==":
        return release[: len(wanted)] == wanted
    return release >= wanted if sign == ">=" else release < wanted
