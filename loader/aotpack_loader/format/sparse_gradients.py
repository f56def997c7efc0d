"""The rule for gradients that are sparse tensors (C38)."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import Problem
from . import schema
from .versions import SPARSE_GRADIENTS


def problems(program: schema.Program) -> Iterator[Problem]:
    """C38: sparse gradients exist, have indices of their own, and the program declares the feature."""
    for name, method in program.methods.items():
        backward, at = method.backward, f"$.methods[{name!r}]"
        if backward is None or not backward.sparse:
            continue
        if SPARSE_GRADIENTS not in program.features:
            yield Problem("$.features", f"C38: {at} needs the feature {SPARSE_GRADIENTS!r}")
        if backward.second is not None or any(subclass is not None for subclass in backward.subclasses):
            yield Problem(f"{at}.backward.sparse", "C38: there is no second derivative and no subclass beside sparse gradients")
        seen: set[int] = set()
        for i, gradient in enumerate(backward.sparse):
            where = f"{at}.backward.sparse[{i}]"
            if gradient.primal >= len(backward.gradients) or backward.gradients[gradient.primal] is None:
                yield Problem(where, f"C38: primal {gradient.primal} has no gradient")
            if gradient.primal in seen:
                yield Problem(where, f"C38: the gradient of primal {gradient.primal} is described twice")
            if gradient.indices in backward.gradients:
                yield Problem(where, f"C38: output {gradient.indices} holds a gradient, so it holds no indices")
            seen.add(gradient.primal)
