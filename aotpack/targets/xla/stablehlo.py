"""Programs for XLA as bytes: StableHLO from functions of jax, and HLO from StableHLO.

All APIs of jax that lowering uses are here and in :mod:`.rules`, the private ones here alone. Tried on: jax and
jaxlib 0.10.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import jax
from jaxlib import _jax
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo as dialect

_CUSTOM_CALL = re.compile(r"stablehlo\.custom_call @([\w.]+)")


def releases() -> dict[str, str]:
    """The releases that decide what a graph is lowered to, and the version of StableHLO that is written."""
    return {**{package: version(package) for package in ("jax", "jaxlib")}, "stablehlo": _version()}


def _version() -> str:
    """A version of StableHLO that consumers have known for twelve weeks."""
    found: str = dialect.get_version_from_compatibility_requirement(dialect.StablehloCompatibilityRequirement.WEEK_12)
    return found


def lowered(function: Callable[..., Any], types: Sequence[tuple[Any, Sequence[int]]], platform: str) -> tuple[bytes, set[str]]:
    """A function of arrays of these types and sizes as a portable artifact of StableHLO.

    Returns it with the names of the functions of ``platform``'s own library that it calls.
    """
    with jax.enable_x64(True):
        arrays = [jax.ShapeDtypeStruct(tuple(sizes), dtype) for dtype, sizes in types]
        traced = jax.jit(function, keep_unused=True).trace(*arrays)
        module = traced.lower(lowering_platforms=(platform,)).compiler_ir("stablehlo")
    text = str(module)  # without the places in rules that made each operation
    artifact: bytes = _jax.mlir.serialize_portable_artifact(text, _version(), False)
    return artifact, set(_CUSTOM_CALL.findall(text))


def parsed(artifact: bytes, context: ir.Context) -> ir.Module:
    """The module of a portable artifact."""
    dialect.register_dialect(context)
    return dialect.deserialize_portable_artifact(context, artifact)


def hlo(artifact: bytes) -> bytes:
    """A portable artifact as a serialised ``HloModuleProto``, which returns a tuple."""
    with ir.Context() as context:
        text = str(parsed(artifact, context))
    computation = _jax.mlir.mlir_module_to_xla_computation(text, use_tuple_args=False, return_tuple=True)
    found: bytes = computation.as_serialized_hlo_module_proto()
    return found
