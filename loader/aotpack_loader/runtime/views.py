"""View replay: rebuilds an aliased result from its base, with the autograd history and storage of eager.

``csrc/`` has twins of functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from msgspec import structs

from ..devices.literals import literal
from ..errors import OperatorError
from ..format import expressions, schema

_MAX_PIECES = 2**16
Environment = Mapping[str, int]
Key = tuple[int, int, bool]
"""A value on the way to a result: the result, the number of steps, and whether the next step's operator has been called."""
Kept = dict[Key, Any]
Replay = Callable[[torch.Tensor, Environment, Kept], torch.Tensor]


class CallValues(NamedTuple):
    """What results are built from.

    ``primals`` are the caller's own tensors. ``strided_primals`` are the tensors that the graphs got.
    ``outputs`` come from the forward.
    """

    primals: list[torch.Tensor]
    strided_primals: list[torch.Tensor]
    outputs: list[Any]


def with_origins(results: Sequence[schema.Result]) -> list[schema.Result]:
    """Results with ``shared`` naming the result that computes a shared value first, through any chain."""
    found: list[schema.Result] = []
    for result in results:
        if isinstance(result, schema.AliasResult) and (share := result.shared) is not None:
            while (above := _shared(found[share.result])) is not None and _reaches(above, share):
                share = structs.replace(share, result=above.result)
            result = structs.replace(result, shared=share)
        found.append(result)
    return found


def _reaches(share: schema.Shared, wanted: schema.Shared) -> bool:
    return (share.steps, share.call) >= (wanted.steps, wanted.call)


def _shared(result: schema.Result) -> schema.Shared | None:
    return result.shared if isinstance(result, schema.AliasResult) else None


def detached_outputs(results: Sequence[schema.Result]) -> list[int]:
    """Forward outputs that the caller must not get as views, even if the graph returned views."""
    fresh = {result.output for result in results if isinstance(result, schema.FreshResult) and result.unviewed}
    bases = {result.output for result in results if isinstance(result, schema.AliasResult) and result.output is not None}
    return sorted(fresh | bases)


def detach_outputs(outputs: list[Any], positions: Sequence[int], primals: Sequence[torch.Tensor]) -> None:
    """Replace outputs at ``positions`` by detached tensors with the same memory and version counter.

    Outputs that were one object stay one object. Autograd refuses in-place changes of a function's
    result that is a view, and views of a view share its base.
    """
    made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # keeps the view alive, so that its id stays unique
    for position in positions:
        value = outputs[position]
        if value._is_view() or any(value is primal for primal in primals):
            outputs[position] = made.setdefault(id(value), (value, value.detach()))[1]


def shared_values(results: Sequence[schema.Result]) -> set[Key]:
    """The values that several results need."""
    shares = [share for result in results if (share := _shared(result)) is not None]
    return {(share.result, share.steps, call) for share in shares for call in (False, share.call)}


def replayer(number: int, result: schema.AliasResult, wanted: Collection[Key]) -> Replay:
    """Compile result ``number`` into a function of its base, the symbols and the values kept so far in this call.

    ``wanted`` are the values that other results continue from. They are kept in ``kept``.
    """
    shared, end = result.shared, len(result.view)
    first = 0 if shared is None else shared.steps
    links = []
    for i, step in enumerate(result.view[first:], first):
        operate = _step(step)
        if shared is not None and shared.call and i == first:
            operate = _kept((shared.result, first, True))
        before, after = (number, i, True), (number, i + 1, False)
        links.append(
            (operate, step.select, before if before in wanted else None, after if after in wanted and i + 1 < end else None)
        )
    is_different = shared is not None and shared.steps == end and not shared.call
    start = (shared.result, shared.steps, False) if shared is not None and (shared.steps or is_different) else None
    whole = (number, end, False) if (number, end, False) in wanted else None

    def run(base: torch.Tensor, environment: Environment, kept: Kept) -> torch.Tensor:
        value = base if start is None else kept[start]
        for operate, select, keep_call, keep in links:
            try:
                found = operate(value, environment, kept)
                if keep_call is not None:
                    kept[keep_call] = found
                value = found if select is None else found[select]
            except (RuntimeError, IndexError, TypeError, ValueError) as error:
                raise _failed(number, error, base) from error
            if keep is not None:
                kept[keep] = value
        return value

    requires_grad, history = result.requires_grad, result.history

    def own(value: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        return value.view(value.shape) if value is base and not is_different else value

    def replay(base: torch.Tensor, environment: Environment, kept: Kept) -> torch.Tensor:
        if not history:
            with torch.no_grad():
                value, wanted = own(run(base, environment, kept), base), requires_grad and base.requires_grad
                if value.requires_grad != wanted:  # such a view answers for its base, and backward() refuses it
                    value.requires_grad_(wanted)
        else:
            value = run(base, environment, kept)
            value = value.detach() if value.requires_grad and not requires_grad else own(value, base)
        if whole is not None:
            kept[whole] = value
        return value

    return replay


def _failed(number: int, error: Exception, base: torch.Tensor) -> OperatorError:
    """The error for a view of ``base`` that cannot be made."""
    if isinstance(error, OperatorError):
        return error
    if base.is_conj():
        reason, hint = "it would be one of a lazy conjugate.", "Pass x.resolve_conj() for such an argument."
    else:
        reason = str(error).partition("\n")[0]
        hint = "Types and sizes of the arguments are as the bundle expects them: the bundle may be damaged."
    return OperatorError(f"Result {number} of the model is a view that torch refuses to make: {reason}", hint=hint)


def _kept(key: Key) -> Callable[[torch.Tensor, Environment, Kept], Any]:
    return lambda value, environment, kept: kept[key]


def _step(step: schema.ViewStep) -> Callable[[torch.Tensor, Environment, Kept], Any]:
    from ..devices import operators  # most results are no views

    function, args, kwargs = operators.view_step(step), step.args, step.kwargs

    apart = step.op.split(".")[1] if step.select is not None else ""

    def run(value: torch.Tensor, environment: Environment, kept: Kept) -> Any:
        filled = [_argument(arg, environment) for arg in args]
        named = {key: _argument(arg, environment) for key, arg in kwargs.items()}
        if apart:
            _require_few(apart, value, *filled, *named.values())
        return function(value, *filled, **named)

    return run


def _require_few(name: str, value: torch.Tensor, first: Any = 0, dim: int = 0) -> None:
    """Bound the views that an operator makes of which one is selected, each of which costs memory."""
    if name == "unbind":
        pieces = value.shape[first]
    elif name in ("split", "unsafe_split") and isinstance(first, int):
        pieces = value.shape[dim] // max(first, 1)
    else:
        pieces = first if isinstance(first, int) else len(first)
    if pieces > _MAX_PIECES:
        raise OperatorError(f"A view of the model is one of {pieces} that {name} makes; the limit is {_MAX_PIECES}.")


def _argument(arg: Any, environment: Environment) -> Any:
    if isinstance(arg, list):
        return [_argument(item, environment) for item in arg]
    if isinstance(arg, schema.ExprArg):
        return expressions.evaluate(arg.value, environment)
    return literal(arg)
