"""After the forward graph: write mutations back to the mutated tensors, then build the caller's results.

It does what AOTAutograd's runtime epilogue (``RuntimeWrapper``) does, from a recorded description.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from ..devices.literals import literal
from ..format import expressions, schema
from ..format.containers import holds_given
from .mutations import Mutations
from .result_sources import of_method
from .tree import unflattener
from .views import CallValues, Kept, Key, Replay, replayer, shared_values, with_origins

if TYPE_CHECKING:
    from .checks import Checks

Environment = Mapping[str, int]
_Build = Callable[[CallValues, Environment, Kept], Any]


class Epilogue:
    """Applies mutations and assembles results from primals and forward outputs."""

    def __init__(self, method: schema.Method, checks: Checks | None = None, *, restores: bool = False) -> None:
        """``restores``: a call that fails here leaves the arguments as they were, at the price of copies of what it writes to."""
        self._checks = checks
        self._restores = restores
        self._written = dict.fromkeys(sorted(mutation.primal for mutation in method.mutations), False)
        self._written |= {each.primal: True for each in method.mutations if each.kind in ("resize", "data_and_metadata")}
        self._mutate = Mutations(method)
        results = with_origins(method.results)
        wanted = shared_values(results)
        self._watch = of_method(method)
        self._results = [_builder(i, result, wanted) for i, result in enumerate(results)]
        # If containers of the caller are changed or returned, the call nests the results
        # (``containers.Containers``).
        nested = not method.updates and not holds_given(method.outputs)
        self.unflatten: Callable[[Any], Any] = unflattener(method.outputs) if nested else list

    def __call__(self, values: CallValues, environment: Environment) -> Any:
        """Return the caller's results. Values of ``values.outputs`` that require grad are attached to autograd."""
        if not self._restores:
            return self._apply(values, environment)
        from ..devices.sandbox.untrusted_calls import Copy, refused  # not imported for trusted bundles

        copies = [Copy(values.primals[primal], whole) for primal, whole in self._written.items()]
        try:
            return self._apply(values, environment)
        except Exception as error:
            for copy in copies:
                copy.restore()
            raise refused(error) from error

    def _apply(self, values: CallValues, environment: Environment) -> Any:
        primals, _, outputs = values
        before = [] if self._checks is None else self._checks.before_results(primals)
        self._mutate(primals, outputs, environment)
        kept: Kept = {}
        results = [build(values, environment, kept) for build in self._results]
        if self._checks is not None:
            self._checks.see_results(values, before, results)
        if self._watch is not None:
            self._watch(results)
        return self.unflatten(iter(results))


def _builder(number: int, result: schema.Result, wanted: set[Key]) -> _Build:
    if isinstance(result, (schema.FreshResult, schema.NumberResult)):
        position = result.output
        if isinstance(result, schema.FreshResult) and (sparse_dim := result.sparse_dim) is not None:
            return lambda values, environment, kept: values.outputs[position].to_sparse(sparse_dim)
        return lambda values, environment, kept: values.outputs[position]
    if isinstance(result, schema.InputResult):
        primal = result.primal
        if result.laid_out:
            return lambda values, environment, kept: values.strided_primals[primal]
        return lambda values, environment, kept: values.primals[primal]
    if isinstance(result, schema.AliasResult):
        return _alias_builder(number, result, wanted)
    if isinstance(result, schema.SizeResult):
        expr = result.expr
        return lambda values, environment, kept: expressions.evaluate(expr, environment)
    value = literal(result.value)
    return lambda values, environment, kept: value


def _view_of_primal(result: schema.AliasResult, primal: int, replay: Replay) -> _Build:
    def build(values: CallValues, environment: Environment, kept: Kept) -> torch.Tensor:
        own, copy = values.primals[primal], values.strided_primals[primal]
        if own is copy or not (result.laid_out or result.reshaped):
            return replay(own, environment, kept)
        if result.laid_out:
            return replay(copy, environment, kept)
        try:
            return replay(own, environment, kept)
        except RuntimeError:  # its strides allow no such view; in eager the result is a view of a copy
            return replay(copy.clone(), environment, kept)

    return build


def _alias_builder(number: int, result: schema.AliasResult, wanted: set[Key]) -> _Build:
    replay = replayer(number, result, wanted)
    if result.primal is not None:
        return _view_of_primal(result, result.primal, replay)
    output = result.output or 0
    return lambda values, environment, kept: replay(values.outputs[output], environment, kept)
