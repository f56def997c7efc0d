"""Lowered graphs: what is in them, and what they compute."""

from __future__ import annotations

import re
from collections import Counter

from jaxlib.mlir import ir

from aotpack.targets.xla.compiler import compiler
from aotpack.targets.xla.lower import Lowered
from aotpack.targets.xla.stablehlo import parsed
from aotpack_loader._jax_compat import Executable, loaded
from aotpack_loader.devices.pjrt import PjrtExecutable
from aotpack_loader.format import schema


def text(artifact: bytes | None) -> str:
    """A portable artifact of StableHLO as text."""
    assert artifact is not None
    with ir.Context() as context:
        return str(parsed(artifact, context))


def opcodes(artifact: bytes | None) -> Counter[str]:
    """How many operations of each kind a program has; ``part``: calls of graphs that a graph runs."""
    return Counter(kind or call for kind, call in re.findall(r"stablehlo\.(\w+)|call @(part)", text(artifact)))


def executable(lowered: Lowered) -> PjrtExecutable:
    """A lowered graph, compiled and loaded."""
    assert lowered.stablehlo is not None
    code = Executable(loaded(compiler("cpu", "").compile(lowered.stablehlo)))
    description = schema.XlaExecutable(lowered.parameters, lowered.results, lowered.outputs)
    return PjrtExecutable("train.forward", code, description, {})
