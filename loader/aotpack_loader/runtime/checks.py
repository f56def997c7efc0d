"""Checks of ``load(..., check="full")``: asserts at every call what the build assumed of a method.

They extend AOTAutograd's debug asserts, and never change a result. A failed check never means that
the caller's arguments are wrong. The cause is the bundle, its target's code, the loader, or a write
to memory that autograd did not see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..errors import CheckError, Problem
from ..format import expressions, schema, subclasses
from ..format.subgraphs import output_values
from .expectations import Expected, digest, fingerprint, origins, storage_of, storages_of
from .memory import plain_tensors
from .names import primal_name
from .tree import result_paths

if TYPE_CHECKING:
    from .loaded_method import LoadedMethod
    from .views import CallValues

Environment = Mapping[str, int]
Executable = Callable[[list[Any]], list[Any]]
Remembered = list[tuple[torch.UntypedStorage, int, int] | None]
"""Storage, address and checksum of each saved tensor after the forward. The storage is kept so that its address is not reused."""
Marks = list[tuple[int, int] | None]
"""Version and checksum of tensors."""


class Checks:
    """The checks of one method whose graphs take and return plain tensors. The caller may still see subclasses.

    Args:
        loaded: the method.
        forward, backward: its graphs, which record the type of every value.
        own_layout: whether the target's code chooses the strides of the tensors it saves for its
            own backward.
    """

    def __init__(self, loaded: LoadedMethod, forward: schema.Graph, backward: schema.Graph | None, *, own_layout: bool) -> None:
        name, method, entries = loaded.name, loaded.method, loaded.entries
        self._name, self._method, self._device = name, method, loaded.device
        self._paths = [primal_name(primal, method) for primal in method.primals]
        self._held = subclasses.of_primals(method, entries)
        self._primals = subclasses.part_positions(self._held)
        words = _parts(self._paths, self._held) + [f"size {size}" for size in method.sizes]
        self._inputs = [Expected(f"{name}.forward, {w}", v) for w, v in zip(words, forward.input_values, strict=True)]
        results = _results_by_output(method)
        private = {i for i in range(method.num_outputs) if i not in results} if own_layout else set()
        outputs = subclasses.of_outputs(method)
        self._positions = subclasses.part_positions(outputs)
        counts = [i not in private for i, positions in enumerate(self._positions) for _ in positions]
        self._output_names = [f"output {i}{results.get(i, '')}" for i in range(method.num_outputs)]
        words = _parts(self._output_names, outputs)
        self._outputs = [
            Expected(f"{name}.forward, {word}", value, count)
            for word, value, count in zip(words, output_values(forward), counts, strict=True)
        ]
        self._origins = origins(forward)
        self._graph_inputs = set(forward.inputs)
        self._fresh = [i for r in method.results if isinstance(r, schema.FreshResult) for i in self._positions[r.output]]
        self._visible = [i for output in results for i in self._positions[output]]
        self._constraints = [(text, expressions.parse(text)) for text in method.constraints]
        self._written = {mutation.primal for mutation in method.mutations} | set(method.touched)
        self._saved: list[schema.Saved] = []
        if backward is not None and method.backward is not None:
            self._prepare_backward(method.backward, backward, private)

    def _prepare_backward(self, convention: schema.Backward, graph: schema.Graph, private: set[int]) -> None:
        self._saved = convention.saved
        tangents = [tangent.subclass for tangent in convention.tangents]
        words = [self._saved_name(saved) for saved in convention.saved]
        words += _parts([f"the tangent of output {tangent.output}" for tangent in convention.tangents], tangents)
        strides = [not (isinstance(s, schema.SavedOutput) and s.output in private) for s in convention.saved]
        words += [f"the value of {self._paths[write.primal]}" for write in convention.state_writes]
        strides += [True] * (len(words) - len(strides))
        at = f"{self._name}.backward"
        self._backward_inputs = [
            Expected(f"{at}, {word}", value, counts)
            for word, value, counts in zip(words, graph.input_values, strides, strict=True)
        ]
        of = {position: self._paths[i] for i, position in enumerate(convention.gradients) if position is not None}
        gradients = subclasses.of_gradients(convention)
        words = _parts([f"the gradient of {of.get(i, f'output {i}')}" for i in range(len(gradients))], gradients)
        self._backward_outputs = [
            Expected(f"{at}, {word}", value, strides=False) for word, value in zip(words, output_values(graph), strict=True)
        ]
        positions = subclasses.part_positions(gradients)
        # The parts of a subclass gradient may differ from the parts of its primal, and so do those of a sparse one.
        sparse = {gradient.primal for gradient in convention.sparse}
        self._alike = [
            (self._inputs[self._primals[i].start].value, positions[position].start)
            for i, position in enumerate(convention.gradients)
            if position is not None and self._held[i] is None and gradients[position] is None and i not in sparse
        ]

    def _saved_name(self, saved: schema.Saved) -> str:
        if isinstance(saved, schema.SavedPrimal):
            part = "" if saved.part is None else subclasses.part_names(self._held[saved.primal])[saved.part]
            return f"saved {self._paths[saved.primal]}{part}"
        return f"saved output {saved.output}" if isinstance(saved, schema.SavedOutput) else f"saved size {saved.expr}"

    # ------------------------------------------------------------ forward

    def run_forward(self, forward: Executable, inputs: Sequence[Any], environment: Environment) -> list[Any]:
        """Run the forward graph, and check that its inputs and outputs match the graph's description.

        Raises:
            CheckError: lists all mismatches.
        """
        self._raise([*self._symbol_problems(environment), *self._problems(self._inputs, inputs, environment)])
        before = [fingerprint(value) for value in inputs]
        outputs = forward(list(inputs))
        found = self._measured(outputs)
        problems = [*self._sizes_out_of_range(found), *self._problems(self._outputs, outputs, {**environment, **found})]
        if not problems:
            problems += self._changed(self._inputs, inputs, before, "was changed by the forward, which should not write to it")
            problems += self._sharing(inputs, outputs)
        self._raise(problems)
        return outputs

    def _measured(self, outputs: Sequence[Any]) -> dict[str, int]:
        """The sizes that depend on data, read from the plain outputs."""
        found = {}
        for symbol in self._method.output_symbols:
            positions = self._positions[symbol.output]
            value = outputs[positions.start] if len(positions) == 1 and positions.start < len(outputs) else None
            if symbol.dim is None and type(value) is int:
                found[symbol.name] = value
            elif symbol.dim is not None and isinstance(value, torch.Tensor) and symbol.dim < value.dim():
                found[symbol.name] = value.shape[symbol.dim]
        return found

    def _sizes_out_of_range(self, found: Environment) -> Iterator[Problem]:
        """Report sizes that depend on data and are outside the range known at the trace."""
        for symbol in self._method.output_symbols:
            size = found.get(symbol.name)
            if size is not None and not symbol.takes(size):
                least, most = ("" if limit is None else limit for limit in (symbol.minimum, symbol.maximum))
                where = f"{self._name}, size {symbol.name}, which depends on data"
                yield Problem(where, f"should be in {least}..{most}, is {size}")

    def _symbol_problems(self, environment: Environment) -> Iterator[Problem]:
        for symbol in self._method.symbols:
            size = environment.get(symbol.name)
            if size is None:
                yield Problem(f"{self._name}, size {symbol.name}", "no argument determines it")
            elif size < symbol.minimum or (symbol.maximum is not None and size > symbol.maximum):
                most = "" if symbol.maximum is None else symbol.maximum
                yield Problem(f"{self._name}, size {symbol.name}", f"should be in {symbol.minimum}..{most}, is {size}")
        for text, holds in self._constraints:
            if environment.keys() >= expressions.symbols(text) and not holds(environment):
                yield Problem(f"{self._name}, sizes", f"should satisfy {text}, are {dict(environment)}")

    def _sharing(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Iterator[Problem]:
        """Report fresh results that share memory with a primal, and donated values that share memory with anything."""
        tensors = [(item, value) for item, value in zip(self._inputs, inputs, strict=True) if isinstance(value, torch.Tensor)]
        of_primals = {storage_of(value): item.where.partition(", ")[2] for item, value in tensors}
        for i in self._fresh:
            own = isinstance(outputs[i], torch.Tensor) and self._origins[i] not in self._graph_inputs
            storage = storage_of(outputs[i]) if own else 0
            if storage and storage in of_primals:
                yield Problem(self._outputs[i].where, f"should have memory of its own, and shares it with {of_primals[storage]}")
        for saved in self._saved:
            if not isinstance(saved, schema.SavedOutput) or not saved.donated:
                continue
            position = self._positions[saved.output].start
            value = outputs[position]
            storage = storage_of(value) if isinstance(value, torch.Tensor) else 0
            seen = [i for i in self._visible if isinstance(outputs[i], torch.Tensor)]
            others = {storage_of(outputs[i]): self._outputs[i].where for i in seen}
            if storage and storage in (others | of_primals):
                other = (others | of_primals)[storage]
                yield Problem(
                    self._outputs[position].where,
                    f"is donated to the backward, so it should have memory of its own, and shares it with {other}",
                )

    def remember(self, primals: Sequence[torch.Tensor], outputs: Sequence[Any]) -> Remembered:
        """The current storage, address and digest of each value that the backward will need."""
        found: Remembered = []
        for saved in self._saved:
            value = None
            if isinstance(saved, schema.SavedPrimal):
                value = list(plain_tensors(primals[saved.primal]))[saved.part or 0]
            elif isinstance(saved, schema.SavedOutput):
                value = outputs[saved.output]
            found.append((value.untyped_storage(), value.data_ptr(), digest(value)) if isinstance(value, torch.Tensor) else None)
        return found

    # ------------------------------------------------------------ backward

    def run_backward(
        self, backward: Executable, arguments: list[Any], remembered: Remembered, environment: Environment, *, retained: bool
    ) -> list[Any]:
        """Run the backward graph, and check the saved values, the tangents and the gradients against the description.

        Saved values must equal those of the forward, however they were kept. They may differ only
        if a hook of the caller returned them in other memory.

        ``retained`` means that the graph is kept, or that hooks may have kept saved values. Donated
        values must then stay unchanged by the run.

        Raises:
            CheckError: lists all mismatches.
        """
        problems = list(self._problems(self._backward_inputs, arguments, environment))
        for expected, value, earlier in zip(self._backward_inputs, arguments, remembered, strict=False):
            if earlier is not None and value.data_ptr() == earlier[1] and digest(value) != earlier[2]:
                problems.append(Problem(expected.where, "was changed since the forward, unseen by its version counter"))
        self._raise(problems)
        kept = [retained or not (isinstance(saved, schema.SavedOutput) and saved.donated) for saved in self._saved]
        kept += [True] * (len(arguments) - len(kept))
        inputs = list(arguments)
        before = [fingerprint(value) if keep else None for value, keep in zip(inputs, kept, strict=True)]
        results = backward(arguments)
        problems = list(self._problems(self._backward_outputs, results, environment))
        if not problems:
            problems += self._changed(self._backward_inputs, inputs, before, "was changed by the backward, which does not own it")
            problems += self._gradient_problems(results, environment)
        self._raise(problems)
        return results

    def _gradient_problems(self, results: Sequence[Any], environment: Environment) -> Iterator[Problem]:
        """Report gradients whose type or sizes differ from those of their primal."""
        for value, position in self._alike:
            expected = Expected(self._backward_outputs[position].where, value, strides=False)
            yield from expected.problems(results[position], environment, self._device)

    # ------------------------------------------------------------ results

    def before_results(self, primals: Sequence[torch.Tensor]) -> Marks:
        """The fingerprints of the caller's tensors before mutations are written to them."""
        return [fingerprint(primal) for primal in primals]

    def see_results(self, values: CallValues, before: Marks, results: list[Any]) -> None:
        """Check the results of a call.

        Only declared tensors may be written to. Aliases must share their base's storage. Gradients
        flow where declared.

        Raises:
            CheckError: lists all mismatches.
        """
        primals, strided_primals, outputs = values
        written = frozenset().union(*(storages_of(primals[i]) for i in self._written))
        marks = [None if storages_of(primal) & written else mark for primal, mark in zip(primals, before, strict=True)]
        primals_named = [Expected(f"{self._name}.forward, {path}", None) for path in self._paths]
        problems = list(self._changed(primals_named, primals, marks, "was written to, which the bundle does not declare"))
        paths = result_paths(self._method)
        for path, description, result in zip(paths, self._method.results, results, strict=True):
            where = f"{self._name}, {path}"
            primal = getattr(description, "primal", None)
            was_copied = primal is not None and primals[primal] is not strided_primals[primal]  # and may allow no such view
            if isinstance(description, schema.AliasResult) and not was_copied:
                base = outputs[description.output or 0] if primal is None else primals[primal]
                if storages_of(result) != storages_of(base):
                    problems.append(Problem(where, "should be a view of its base, and is in other memory"))
                if _is_detached_view(description, base, result):
                    problems.append(Problem(where, "should carry a gradient, as its base does, and carries none"))
            may_require_grad = getattr(description, "requires_grad", True)
            if isinstance(result, torch.Tensor) and result.requires_grad and not may_require_grad:
                problems.append(Problem(where, "requires a gradient, and should carry none"))
        self._raise(problems)

    # ------------------------------------------------------------ common

    def _problems(self, expected: Sequence[Expected], values: Sequence[Any], environment: Environment) -> Iterator[Problem]:
        if len(expected) != len(values):
            yield Problem(self._name, f"there should be {len(expected)} values, there are {len(values)}")
            return
        for item, value in zip(expected, values, strict=True):
            yield from item.problems(value, environment, self._device)

    def _changed(
        self, expected: Sequence[Expected], values: Sequence[Any], before: Sequence[tuple[int, int] | None], message: str
    ) -> Iterator[Problem]:
        for item, value, mark in zip(expected, values, before, strict=True):
            if mark is not None and fingerprint(value) != mark:
                yield Problem(item.where, message)

    def _raise(self, problems: list[Problem]) -> None:
        if problems:
            raise CheckError(
                f"Method {self._name!r} does not do what the bundle says.",
                problems,
                hint="Where backend='portable' passes, the target's code is at fault.",
            )


def _is_detached_view(description: schema.AliasResult, base: torch.Tensor, result: torch.Tensor) -> bool:
    """Whether a view is detached from a base to which autograd should follow it."""
    followed = description.requires_grad and description.history and torch.is_grad_enabled()
    return bool(followed and base.requires_grad and not result.requires_grad)


def _parts(names: Sequence[str], values: Sequence[schema.Subclass | None]) -> list[str]:
    """Names of values. A subclass is replaced by the names of its parts."""
    return [f"{name}{part}" for name, value in zip(names, values, strict=True) for part in subclasses.part_names(value)]


def _results_by_output(method: schema.Method) -> dict[int, str]:
    """The forward outputs that are not only for the backward, each with a description of its use."""
    found = {
        mutation.output: f" (new value of {primal_name(method.primals[mutation.primal], method)})"
        for mutation in method.mutations
    }
    for path, result in zip(result_paths(method), method.results, strict=True):
        if isinstance(result, schema.FreshResult):
            found[result.output] = f" ({path})"
        elif isinstance(result, schema.AliasResult) and result.output is not None:
            found.setdefault(result.output, f" (base of {path})")
    return found
