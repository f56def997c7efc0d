"""After the forward graph: write mutations back to their owners, then build the caller's results.

The counterpart of AOTAutograd's runtime epilogue (``RuntimeWrapper``), driven by data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..devices.literals import literal
from ..format import expressions, schema
from .mutations import Mutations
from .tree import unflattener
from .views import Kept, Key, replayer, shared_values, with_origins

if TYPE_CHECKING:
    from .checks import Checks

Environment = Mapping[str, int]
_Build = Callable[[list[torch.Tensor], list[Any], Environment, Kept], Any]


class Epilogue:
    """Applies mutations and assembles results from primals and forward outputs."""

    def __init__(self, method: schema.Method, checks: Checks | None = None) -> None:
        self._checks = checks
        self._mutate = Mutations(method)
        results = with_origins(method.results)
        wanted = shared_values(results)
        self._results = [_builder(i, result, wanted) for i, result in enumerate(results)]
        self.unflatten = unflattener(method.outputs)

    def __call__(self, primals: list[torch.Tensor], outputs: list[Any], environment: Environment) -> Any:
        """``primals`` are the caller's own tensors; ``outputs`` the forward's, those with a gradient attached to autograd."""
        before = [] if self._checks is None else self._checks.before_results(primals)
        self._mutate(primals, outputs, environment)
        kept: Kept = {}
        results = [build(primals, outputs, environment, kept) for build in self._results]
        if self._checks is not None:
            self._checks.see_results(primals, before, outputs, results)
        return self.unflatten(iter(results))


def _builder(number: int, result: schema.Result, wanted: set[Key]) -> _Build:
    if isinstance(result, (schema.FreshResult, schema.NumberResult)):
        position = result.output
        if isinstance(result, schema.FreshResult) and (sparse_dim := result.sparse_dim) is not None:
            return lambda primals, outputs, environment, kept: outputs[position].to_sparse(sparse_dim)
        return lambda primals, outputs, environment, kept: outputs[position]
    if isinstance(result, schema.InputResult):
        primal = result.primal
        return lambda primals, outputs, environment, kept: primals[primal]
    if isinstance(result, schema.AliasResult):
        return _alias_builder(number, result, wanted)
    if isinstance(result, schema.SizeResult):
        expr = result.expr
        return lambda primals, outputs, environment, kept: expressions.evaluate(expr, environment)
    value = literal(result.value)
    return lambda primals, outputs, environment, kept: value


def _alias_builder(number: int, result: schema.AliasResult, wanted: set[Key]) -> _Build:
    replay = replayer(number, result, wanted)
    if result.primal is not None:
        primal = result.primal
        return lambda primals, outputs, environment, kept: replay(primals[primal], environment, kept)
    output = result.output or 0
    return lambda primals, outputs, environment, kept: replay(outputs[output], environment, kept)
