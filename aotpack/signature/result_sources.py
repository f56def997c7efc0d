"""Describes which results are computed from which others: a bundle computes no gradient between them."""

from __future__ import annotations

from collections.abc import Sequence

from aotpack_loader.format import schema


def describe_sources(
    sources: Sequence[Sequence[int]], results: Sequence[schema.Result], mutations: Sequence[schema.Mutation]
) -> list[list[int]]:
    """Return for each result those among ``sources`` whose gradient a bundle lacks; empty if it lacks none.

    An argument that is returned as it came has its own history, and a view leads back to its base.
    """
    written = {mutation.primal for mutation in mutations}
    found = [[j for j in of if j != i and not _is_passed(results[j], results[i], written)] for i, of in enumerate(sources)]
    return found if any(found) else []


def _is_passed(source: schema.Result, result: schema.Result, written: set[int]) -> bool:
    if isinstance(source, schema.InputResult):
        return source.primal not in written
    if isinstance(source, schema.FreshResult) and isinstance(result, (schema.FreshResult, schema.AliasResult)):
        return source.output == result.output
    return False
