"""The features of the format: what a program may use beyond the first version, and refuses older readers by (V2, V4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from ..errors import Problem
from . import schema
from .containers import holds_given
from .versions import (
    ASSIGNED_STATE,
    AUTOCAST_VARIANTS,
    CONTAINERS,
    FUNCTIONS,
    MODULE_FLAGS,
    RESULT_SOURCES,
    SETS_REQUIRES_GRAD,
    SPARSE_GRADIENTS,
    STATE_WRITES,
    TANGENT_WRITES,
)


class Feature(NamedTuple):
    """A feature of programs.

    Attributes:
        name: as ``Program.features`` has it.
        used: whether a program uses it.
        rule: the rule that a program breaks which uses it undeclared.
        minor: the first minor version in which that is a fault. Programs of earlier ones may lack the name.
    """

    name: str
    used: Callable[[schema.Program], bool]
    rule: str = "V4"
    minor: int = 2


def _backwards(program: schema.Program) -> Iterator[schema.Backward]:
    return (method.backward for method in program.methods.values() if method.backward is not None)


def _tensor_leaves(program: schema.Program) -> Iterator[schema.TensorLeaf]:
    return (leaf for method in program.methods.values() for leaf in method.leaves if isinstance(leaf, schema.TensorLeaf))


FEATURES: Final = (
    Feature(ASSIGNED_STATE, lambda p: bool(p.assigned)),
    Feature(AUTOCAST_VARIANTS, lambda p: len({method.autocast for method in p.methods.values()}) > 1),
    Feature(CONTAINERS, lambda p: any(m.updates or holds_given(m.outputs) for m in p.methods.values()), "C36", 0),
    Feature(FUNCTIONS, lambda p: any(method.function for method in p.methods.values())),
    Feature(MODULE_FLAGS, lambda p: any(method.flags for method in p.methods.values())),
    Feature(RESULT_SOURCES, lambda p: any(any(backward.result_sources) for backward in _backwards(p))),
    Feature(SETS_REQUIRES_GRAD, lambda p: any(leaf.sets_requires_grad for leaf in _tensor_leaves(p))),
    Feature(SPARSE_GRADIENTS, lambda p: any(backward.sparse for backward in _backwards(p)), "C38", 0),
    Feature(STATE_WRITES, lambda p: any(backward.state_writes for backward in _backwards(p)), "C45"),
    Feature(TANGENT_WRITES, lambda p: any(backward.tangent_writes for backward in _backwards(p)), "C39", 0),
)
"""All of them, less ``own-graphs``, which is of a bundle and not of a program (M4)."""


def used(program: schema.Program) -> list[str]:
    """The names of the features that ``program`` uses."""
    return [feature.name for feature in FEATURES if feature.used(program)]


def problems(program: schema.Program) -> Iterator[Problem]:
    """V4: a program declares the features that it uses."""
    for name, is_used, rule, minor in FEATURES:
        if program.format.minor >= minor and name not in program.features and is_used(program):
            yield Problem("$.features", f"{rule}: the program needs the feature {name!r}")
