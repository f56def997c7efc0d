"""Determines which inputs of a method's graphs a computation may overwrite, to reuse their memory for its results.

Both sides use this module: the compiler, which records these inputs, and the reader, which checks
the record (rules C26 and C27).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from ..errors import Problem
from . import schema


def problems(
    rule: str, donated: Sequence[int], inputs: Sequence[int | None], allowed: Collection[int], at: str
) -> Iterator[Problem]:
    """Violations of ``rule`` by code that reuses the memory of its inputs ``donated``.

    ``inputs`` are the graph's inputs that the code takes. ``allowed`` are those it may overwrite.
    """
    for position in donated:
        if position >= len(inputs) or inputs[position] not in allowed:
            yield Problem(at, f"{rule}: input {position} may not be donated")
    if len(set(donated)) != len(donated):
        yield Problem(at, f"{rule}: an input is donated twice")


def of_forward(method: schema.Method, forward: schema.XlaExecutable) -> frozenset[int]:
    """Primals that are overwritten after the forward, and not needed until then."""
    written = {mutation.primal for mutation in method.mutations if mutation.kind == "data"}
    read = {item.index for item in forward.outputs if isinstance(item, schema.GivenInput)}
    if method.backward is not None:
        read |= {item.primal for item in method.backward.saved if isinstance(item, schema.SavedPrimal)}
    if method.backward is not None and method.backward.second is not None:
        return frozenset()  # the second method computes the gradients again, from all primals
    return frozenset(written - read)


def of_update(method: schema.Method) -> frozenset[int]:
    """Primals that the update of an optimizer writes to; none for another method."""
    return frozenset(mutation.primal for mutation in method.mutations) if method.step else frozenset()


def private(method: schema.Method) -> frozenset[int]:
    """Saved values that only the backward uses, and only once."""
    saved = {} if method.backward is None else dict(enumerate(method.backward.saved))
    outputs = {i: item for i, item in saved.items() if isinstance(item, schema.SavedOutput)}
    visible = {item.output for item in (*method.mutations, *method.results) if hasattr(item, "output")}
    uses = Counter(item.output for item in outputs.values())
    return frozenset(i for i, item in outputs.items() if item.donated and item.output not in visible and uses[item.output] == 1)


def of_backward(method: schema.Method, forward: schema.XlaExecutable) -> frozenset[int]:
    """:func:`private` saved values that the forward computes and that share no memory with another output."""
    assert method.backward is not None
    saved = method.backward.saved
    uses = Counter(item for item in forward.outputs if isinstance(item, int))
    uses.update(item.result for item in forward.outputs if isinstance(item, schema.ResultView))
    return frozenset(
        i
        for i in private(method)
        if isinstance(item := saved[i], schema.SavedOutput)
        and isinstance(result := forward.outputs[item.output], int)
        and uses[result] == 1
    )
