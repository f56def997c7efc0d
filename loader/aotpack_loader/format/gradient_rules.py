"""Rules of backwards that return sparse gradients (C38), or that write to their tangents (C39)."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import Problem
from ..text import shown
from . import schema


def problems(program: schema.Program) -> Iterator[Problem]:
    """C38 and C39."""
    for name, method in program.methods.items():
        backward, at = method.backward, f"$.methods[{shown(name)}]"
        if backward is None:
            continue
        if backward.sparse:
            yield from _sparse_problems(backward, f"{at}.backward")
        if backward.tangent_writes:
            yield from _write_problems(backward, f"{at}.backward")


def _sparse_problems(backward: schema.Backward, at: str) -> Iterator[Problem]:
    """C38: sparse gradients exist, and have indices of their own."""
    if backward.second is not None or any(subclass is not None for subclass in backward.subclasses):
        yield Problem(f"{at}.sparse", "C38: there is no second derivative and no subclass beside sparse gradients")
    seen: set[int] = set()
    for i, gradient in enumerate(backward.sparse):
        where = f"{at}.sparse[{i}]"
        if gradient.primal >= len(backward.gradients) or backward.gradients[gradient.primal] is None:
            yield Problem(where, f"C38: primal {gradient.primal} has no gradient")
        if gradient.primal in seen:
            yield Problem(where, f"C38: the gradient of primal {gradient.primal} is described twice")
        if gradient.indices in backward.gradients:
            yield Problem(where, f"C38: output {gradient.indices} holds a gradient, so it holds no indices")
        seen.add(gradient.primal)


def _write_problems(backward: schema.Backward, at: str) -> Iterator[Problem]:
    """C39: written tangents exist, and have new values of their own."""
    if backward.second is not None:
        yield Problem(f"{at}.tangent_writes", "C39: there is no second derivative beside written tangents")
    taken = {*backward.gradients, *(gradient.indices for gradient in backward.sparse)}
    seen: set[int] = set()
    for i, write in enumerate(backward.tangent_writes):
        where = f"{at}.tangent_writes[{i}]"
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
