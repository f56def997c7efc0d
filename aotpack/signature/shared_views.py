"""Finds what aliases have in common: eager's ``detach`` in their steps, and views that eager makes once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from msgspec import structs

from aotpack_loader.format import schema

from .partitioned import PartitionedMethod

_DETACH = schema.ViewStep("aten.detach.default", [], {})


def with_detach(
    partitioned: PartitionedMethod, results: Sequence[schema.Result], rebuilt: Collection[int]
) -> tuple[list[schema.Result], dict[int, int]]:
    """Return the results with ``detach`` in aliases of arguments where eager detaches.

    Decompositions may drop it. An alias whose sizes change in place later is detached after that
    change, because it is not a view. The second value maps each such result to the number of steps
    before its ``detach``.
    """
    found, after = list(results), dict[int, int]()
    bases = {i: family.base for family in partitioned.call.returned.families for i in family.views}
    for i, is_view in partitioned.call.returned.independent.items():
        result, base = results[i], bases.get(i)
        if i in rebuilt or not isinstance(result, schema.AliasResult) or result.primal is None:
            continue
        steps = _without_detach(result)
        above = None if base is None else results[base]
        if len(steps) < len(result.view) and not _is_changed_later(above if is_view else result):
            continue
        steps_above = len(_without_detach(above)) if isinstance(above, schema.AliasResult) else 0
        after[i] = steps_above if is_view else len(steps)
        found[i] = structs.replace(result, view=[*steps[: after[i]], _DETACH, *steps[after[i] :]])
    return found, after


def share_views(
    partitioned: PartitionedMethod, results: Sequence[schema.Result], detached: Mapping[int, int]
) -> list[schema.Result]:
    """Return the results with the view steps that each alias shares with an earlier one.

    Eager makes such a view once.
    """
    found: list[schema.Result] = []
    for i, result in enumerate(results):
        if isinstance(result, schema.AliasResult):
            shares = [_shared(partitioned, j, other, i, result, detached) for j, other in enumerate(found)]
            best = max(filter(None, shares), key=lambda share: (share.steps, share.call), default=None)
            result = structs.replace(result, shared=best)
        found.append(result)
    return found


def _shared(
    partitioned: PartitionedMethod,
    j: int,
    earlier: schema.Result,
    i: int,
    result: schema.AliasResult,
    detached: Mapping[int, int],
) -> schema.Shared | None:
    """Return what result ``i`` shares with the earlier result ``j``."""
    if not isinstance(earlier, schema.AliasResult) or earlier.history != result.history:
        return None
    if (earlier.primal, earlier.output) != (result.primal, result.output):
        return None
    same = partitioned.call.returned.same
    if same.get(i, i) == same.get(j, j) and earlier.view == result.view:
        return schema.Shared(j, len(result.view))
    if i in detached or j in detached:  # both are the same detached tensor, or views of it
        steps = detached.get(i, -1) + 1
        related = any({i, j} <= {family.base, *family.views} for family in partitioned.call.returned.families)
        return schema.Shared(j, steps) if related and steps and earlier.view[:steps] == result.view[:steps] else None
    ours, theirs = [partitioned.result_chain(k)[-len(r.view) :] for k, r in ((i, result), (j, earlier))]
    if len(ours) != len(result.view) or len(theirs) != len(earlier.view):  # rebuilt by as_strided
        return None
    pairs = list(zip(ours, theirs, result.view, earlier.view, strict=False))
    steps = next((k for k, (a, b, x, y) in enumerate(pairs) if a != b or x != y), len(pairs))
    # If one ends at the shared value, the other continues from it. A detached value cannot lead to a gradient.
    if steps == len(earlier.view) and result.requires_grad and not earlier.requires_grad:
        return None
    if steps == len(result.view) and earlier.requires_grad and not result.requires_grad:
        return None
    call = steps < len(pairs) and pairs[steps][0][0] == pairs[steps][1][0]
    return schema.Shared(j, steps, call) if steps or call else None


def _is_changed_later(result: schema.Result | None) -> bool:
    """Whether a detached alias changed its sizes or strides in place after the detach."""
    return isinstance(result, schema.AliasResult) and _DETACH in result.view and result.view[-1] != _DETACH


def _without_detach(result: schema.AliasResult) -> list[schema.ViewStep]:
    return [step for step in result.view if step.op != _DETACH.op]
