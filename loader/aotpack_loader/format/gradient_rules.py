"""Rules of backwards that return sparse gradients (C38), or that write to their tangents (C39) or to buffers (C45)."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import Problem
from ..text import shown
from . import schema


def problems(program: schema.Program) -> Iterator[Problem]:
    """C38, C39 and C45."""
    for name, method in program.methods.items():
        backward, at = method.backward, f"$.methods[{shown(name)}]"
        if backward is None:
            continue
        if backward.sparse:
            yield from _sparse_problems(backward, f"{at}.backward")
        if backward.tangent_writes:
            yield from _write_problems(backward, f"{at}.backward")
        if backward.state_writes:
            yield from _state_problems(method, backward, f"{at}.backward")


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


def _state_problems(method: schema.Method, backward: schema.Backward, at: str) -> Iterator[Problem]:
    """C45: the primals are buffers that the forward does not write to, and the new values and writers exist."""
    if backward.second is not None or any(subclass is not None for subclass in backward.subclasses):
        yield Problem(f"{at}.state_writes", "C45: there is no second derivative and no subclass beside written buffers")
    taken = {*backward.gradients, *(each.indices for each in backward.sparse), *(each.output for each in backward.tangent_writes)}
    mutated = {mutation.primal for mutation in method.mutations}
    for i, write in enumerate(backward.state_writes):
        where = f"{at}.state_writes[{i}]"
        is_buffer = write.primal < len(method.primals) and isinstance(method.primals[write.primal], schema.BufferPrimal)
        if not is_buffer or write.primal in mutated:
            yield Problem(where, f"C45: primal {write.primal} is no buffer, is written to twice, or is written to by the forward")
        if write.output in taken:
            yield Problem(where, f"C45: output {write.output} has another meaning, so it is no new value")
        if not write.writers:
            yield Problem(where, "C45: nothing writes to it")
        for j, writer in enumerate(write.writers):
            tangents, primals = len(backward.tangents), len(method.primals)
            if any(t >= tangents for t in writer.tangents) or any(p >= primals for p in writer.primals):
                yield Problem(f"{where}.writers[{j}]", f"C45: there are {tangents} tangents and {primals} primals")
        mutated.add(write.primal)
        taken.add(write.output)
