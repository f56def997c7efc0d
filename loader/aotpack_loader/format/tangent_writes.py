"""The rule for tangents that a backward writes to (C39)."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import Problem
from . import schema
from .versions import TANGENT_WRITES


def problems(program: schema.Program) -> Iterator[Problem]:
    """C39: written tangents exist, have new values of their own, and the program declares the feature."""
    for name, method in program.methods.items():
        backward, at = method.backward, f"$.methods[{name!r}]"
        if backward is None or not backward.tangent_writes:
            continue
        if TANGENT_WRITES not in program.features:
            yield Problem("$.features", f"C39: {at} needs the feature {TANGENT_WRITES!r}")
        if backward.second is not None:
            yield Problem(f"{at}.backward.tangent_writes", "C39: there is no second derivative beside written tangents")
        taken = {*backward.gradients, *(gradient.indices for gradient in backward.sparse)}
        seen: set[int] = set()
        for i, write in enumerate(backward.tangent_writes):
            where = f"{at}.backward.tangent_writes[{i}]"
            if write.tangent >= len(backward.tangents):
                yield Problem(where, f"C39: there is no tangent {write.tangent}")
            elif backward.tangents[write.tangent].subclass is not None:
                yield Problem(where, f"C39: tangent {write.tangent} is a subclass, which no backward writes to")
            if write.tangent in seen:
                yield Problem(where, f"C39: tangent {write.tangent} is written to twice")
            if write.output in taken:
                yield Problem(where, f"C39: output {write.output} has another meaning, so it is no new value")
            seen.add(write.tangent)
            taken.add(write.output)
