"""Checks the bundle that a build makes: each compiled method against the model in eager, before the file gets its name."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import torch
import torch.utils._pytree as pytree
from msgspec import structs

from aotpack_loader.archive.temporaries import temporary_directory
from aotpack_loader.errors import AotpackError, OperatorError, Problem, TargetError, WrongResultsError
from aotpack_loader.format import schema
from aotpack_loader.module.program import LoadedProgram
from aotpack_loader.opening.documents import load_candidate
from aotpack_loader.runtime.call import MethodCall
from aotpack_loader.runtime.modes import as_built

from .._torch.api.addresses import storage_address
from .._torch.api.gpus import without_gpus
from .._torch.api.random_operators import may_draw
from .._torch.api.torch_types import HALVES
from ..checking import draws, faults
from ..checking.calling import Call, observe, state_of
from ..checking.comparison import Reference
from ..checking.eager import Eager, Example
from ..checking.observation import Observation, Tensors, with_parts
from ..optimizer.asked import AskedOptimizer
from ..targets.base import Target
from ..writer.bundle import TargetEntry, write_candidate
from . import check_optimizers
from .context import BuildContext
from .finish import BundleInProgress, complete
from .traced_methods import TracedMethod

KEY = "check"
"""The key of a target's toolchain record that says why the target was not checked."""
LEFT_OUT = "not made: --no-check, or a target that aotpack compile added"
_SHARE = 0.1
"""The share of the build's time that further inputs may bring the check to."""
_SHOWN = 6
_EDGES: Final = "inputs with masked rows, zeros, ties and extreme values"
PORTABLE: Final = "portable"
_PORTABLE: Final = TargetEntry(schema.Target(name=PORTABLE, kind=PORTABLE, device="any"), None, [])
"""The graphs themselves, which say where compiled code begins to differ."""


@dataclass
class Checked:
    """What the check of a build found.

    ``missing`` says for each target why it was not checked. ``partly`` says what else was not compared.
    """

    missing: dict[str, str] = field(default_factory=dict)
    partly: list[str] = field(default_factory=list)

    def mark(self, entries: Sequence[TargetEntry]) -> list[TargetEntry]:
        """The targets, whose toolchain records say why one was not checked."""
        return [
            entry._replace(target=structs.replace(entry.target, toolchain=entry.target.toolchain | {KEY: self.missing[name]}))
            if (name := entry.target.name) in self.missing
            else entry
            for entry in entries
        ]


def left_out(entries: Sequence[TargetEntry]) -> Checked:
    """The record of a build without a check."""
    return Checked({entry.target.name: LEFT_OUT for entry in entries})


def check(
    in_progress: BundleInProgress,
    contexts: Mapping[str, BuildContext],
    traced: Sequence[TracedMethod],
    program: schema.Program,
    targets: Sequence[Target],
    entries: Sequence[TargetEntry],
    optimizers: Mapping[str, AskedOptimizer],
) -> Checked:
    """Compare every method of every target that can run here with the model.

    ``contexts`` are what the methods were traced from, by their functions. ``entries`` are those of ``targets``.

    Raises:
        WrongResultsError: one differs by more than rounding.
    """
    run = in_progress.run
    found = Checked()
    before = sum(stage.seconds for stage in run.stages)
    if reason := _obstacle(contexts, traced):
        found.missing |= {entry.target.name: f"not made: {reason}" for entry in entries}
    else:
        parent = Path(in_progress.out).absolute().parent
        with run.stage("check"), temporary_directory(parent) as folder, warnings.catch_warnings(action="ignore"), without_gpus():
            present = [*entries] if any(entry.target.name == PORTABLE for entry in entries) else [*entries, _PORTABLE]
            completed = [complete(entry, program, in_progress.producer) for entry in present]
            write_candidate(folder, in_progress.store, program, completed)
            _Check(contexts, traced, program, targets, folder, found, before).run()
            checked = [entry.target.name for entry in entries if entry.target.name not in found.missing]
            check_optimizers.check(folder, checked, program, optimizers)
    for name, reason in found.missing.items():
        run.warn(f"{name}: the results were not compared with the model's: {reason.removeprefix('not made: ')}")
    for text in found.partly:
        run.note(text)
    return found


def _obstacle(contexts: Mapping[str, BuildContext], traced: Sequence[TracedMethod]) -> str:
    """Why no method can be checked, or an empty string."""
    state, given = state_of(contexts[""].module), [(context.args, context.kwargs) for context in contexts.values()]
    if any(tensor.is_meta for tensor in with_parts(state).values()):
        return "the model's weights are on the device meta"
    if _memory_of(pytree.tree_leaves(given)) & _memory_of(state.values()):
        return "an argument of the example shares memory with the model's parameters or buffers"
    size = sum({id(x): x.numel() * x.element_size() for x in state.values()}.values())
    # Copies and gradients of the state, in eager and in the bundle, and what each saves.
    needed = 4 * size + 4 * max((method.convention.saved_bytes for method in traced), default=0)
    free = _free_memory()
    # The bundle has this text: equal builds have equal ones, so what is free is not in it.
    return f"it needs about {needed >> 20} MB of memory, which are not free" if free and needed > free else ""


def _is_half(context: BuildContext) -> bool:
    """Whether an argument or a part of the state is in half precision."""
    values = [*pytree.tree_leaves((context.args, context.kwargs)), *state_of(context.module).values()]
    return any(isinstance(x, torch.Tensor) and x.dtype in HALVES for x in values)


def _memory_of(values: Iterable[object]) -> set[int]:
    """The addresses of the tensors' storages."""
    return {storage_address(x) for x in values if isinstance(x, torch.Tensor)} - {0}


def _free_memory() -> int:
    """Bytes of memory that are free; 0: unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), 0)


class _Check:
    """The check of one build."""

    def __init__(
        self,
        contexts: Mapping[str, BuildContext],
        traced: Sequence[TracedMethod],
        program: schema.Program,
        targets: Sequence[Target],
        folder: Path,
        found: Checked,
        before: float,
    ) -> None:
        self._contexts, self._traced, self._program, self._folder = contexts, traced, program, folder
        self._targets, self._found = [target.name for target in targets], found
        self._orders_ties_otherwise = {target.name for target in targets if not target.capabilities.orders_ties}
        # Graphs for portable alone keep eager's own random operators.
        self._draws_as_eager = set(self._targets) == {PORTABLE}
        self._before = before
        self._candidates: dict[str, _Candidate] = {}

    def run(self) -> None:
        start = time.perf_counter()
        given = {name: draws.with_values(Example(context.args, context.kwargs)) for name, context in self._contexts.items()}
        methods = [method for method in self._traced if method.plan.role == "call"]
        for method in methods:
            self._compare(method, given[method.plan.function], "the example inputs")
        took = time.perf_counter() - start
        for method in methods:
            for name, further in self._further(method, given[method.plan.function]):
                if time.perf_counter() - start + took / len(methods) > _SHARE * self._before:
                    self._found.partly.append(f"the check compared no {name}, to take at most a tenth of the build's time")
                    return
                self._compare(method, further, name)

    def _further(self, method: TracedMethod, example: Example) -> Iterator[tuple[str, Example]]:
        if method.plan.autocast is not None or _is_half(self._contexts[method.plan.function]):
            return  # extreme values move what is before a norm, or out of range, by more than any run of eager shows
        edges, equal = draws.of_edges(example), draws.of_equal_sizes(example, self._program.methods[method.plan.name])
        if edges is not None:
            yield _EDGES, edges
        if equal is not None:
            yield "inputs whose sizes are equal", equal

    def _compare(self, method: TracedMethod, example: Example, inputs: str) -> None:
        """Compare a method on every target, or say why that cannot be done."""
        try:
            self._compare_targets(method, example, inputs)
        except WrongResultsError:
            raise
        except Exception as error:  # the model may do anything on copies and other values
            self._not_made(self._targets, method.plan.name, f"the comparison failed on {inputs}: {_short(error)}")

    def _compare_targets(self, method: TracedMethod, example: Example, inputs: str) -> None:
        """Compare a method on every target. Further inputs that eager or the bundle refuses are left out."""
        plan, described = method.plan, self._program.methods[method.plan.name]
        is_example = inputs == "the example inputs"
        call = Call(plan.grad, draws=True, again=method.second is not None)
        same = method.rng == "eager" or self._draws_as_eager
        graphs = [graph for graph in (method.convention.forward, method.convention.backward) if graph is not None]
        eager = Eager(self._contexts[plan.function].module, described, plan.training, call)
        reference = Reference(eager, example, same_numbers=same, may_draw=any(map(may_draw, graphs)))
        if reference.plain.error is not None and not is_example:
            return
        if reference.unlike and is_example:
            self._found.partly.append(
                f"{plan.name!r}: values that depend on random numbers were not compared, because the code draws "
                'others than eager (rng="eager" draws the same)'
            )
        # Eager writes these again when it recomputes, as a warning of the build says.
        reference.unlike = {*reference.unlike, *(f"state.{name}" for name in method.convention.written_in_checkpoints)}
        for target in list(self._targets):
            if inputs == _EDGES and target in self._orders_ties_otherwise and draws.orders_ties(graphs):
                continue
            bundle = self._observed(target, method, example, reference)
            if bundle is None:
                continue
            refused = isinstance(bundle.error, AotpackError) and not isinstance(bundle.error, OperatorError)
            if bundle.error is not None and refused and reference.plain.error is None:
                if is_example:
                    self._not_made([target], plan.name, f"the bundle refuses its own example inputs: {_short(bundle.error)}")
                continue
            if bundle.error is not None and reference.plain.error is not None:
                self._not_made([target], plan.name, f"the model itself raises {_short(reference.plain.error)}")
                continue
            if lines := reference.differences(bundle):
                raise self._error(method, target, inputs, reference, lines)

    def _observed(self, target: str, method: TracedMethod, example: Example, reference: Reference) -> Observation | None:
        """A call of the bundle; None if the target cannot run here."""
        if target not in self._candidates:
            self._candidates[target] = self._candidate(target, reference)
        call = reference.eager.call
        # Other random numbers than eager's leave the generator in another state.
        call = replace(call, draws=method.rng == "eager")
        try:
            return self._candidates[target].observe(example, method, self._program.methods[method.plan.name], call)
        except TargetError as error:
            self._targets.remove(target)
            self._found.missing[target] = f"not made: {'; '.join(map(str, error.problems)) or error.summary}"
            return None

    def _candidate(self, target: str, reference: Reference) -> _Candidate:
        return _Candidate(self._folder, target, list(reference.plain.classes), state_of(self._contexts[""].module))

    def _not_made(self, targets: Sequence[str], method: str, reason: str) -> None:
        for target in targets:
            self._found.missing.setdefault(target, f"not made for {method!r}: {reason}")

    def _error(
        self, method: TracedMethod, target: str, inputs: str, reference: Reference, lines: Sequence[str]
    ) -> WrongResultsError:
        problems = [Problem("", line) for line in lines[:_SHOWN]]
        if len(lines) > _SHOWN:
            problems.append(Problem("", f"and {len(lines) - _SHOWN} more"))
        where, portable_is_right = self._origin(method, target, reference)
        where = where or _wrong_gradient(method, lines)
        if where:
            problems.append(Problem("it begins at", where))
        instead = "Build with --target portable, which computes what the model does. " if portable_is_right else ""
        return WrongResultsError(
            f"The method {method.plan.name!r} of target {target!r} computes other results than the model, on {inputs}.",
            problems,
            hint=f"{instead}This is a fault of aotpack or torch: please report it. --no-check builds without this check.",
        )

    def _origin(self, method: TracedMethod, target: str, reference: Reference) -> tuple[str, bool]:
        """Where a difference begins, and whether the graph itself computes what the model does."""
        name, example = method.plan.name, reference.example
        described, convention = self._program.methods[name], method.convention
        halves = {"forward": convention.forward, "backward": convention.backward}
        graphs = {half: graph for half, graph in halves.items() if graph is not None}
        try:
            portable = self._candidate(PORTABLE, reference)
            recorder = faults.Recorder(portable.calls()[name])
            is_right = not reference.differences(portable.observe(example, method, described, reference.eager.call))
            if not is_right:
                return faults.in_graph(graphs, recorder, lambda: reference.eager.run(example)), False
            compiled = faults.executables(self._candidate(target, reference).calls()[name])
            return faults.in_compiled_code(recorder, compiled, graphs), True
        except Exception:  # what was found is reported without it
            return "", False


def _wrong_gradient(method: TracedMethod, lines: Sequence[str]) -> str:
    """The operator that returns the first wrong gradient of a parameter, if the values before it are right."""
    convention = method.convention
    described = convention.method.backward
    if convention.backward is None or described is None or not all(".grad: " in line for line in lines):
        return ""
    for primal, position in zip(convention.method.primals, described.gradients, strict=True):
        name = primal.name if isinstance(primal, schema.ParameterPrimal) else ""
        if position is not None and lines[0].startswith(f"state.{name}.grad: "):
            return faults.of_gradient(convention.backward, position)
    return ""


class _Candidate:
    """A target of the bundle that is being made. What a call writes to its state is undone before the next call."""

    def __init__(self, folder: Path, target: str, subclasses: Sequence[type], original: Tensors) -> None:
        self._folder, self._target, self._subclasses, self._original = folder, target, subclasses, original
        self._is_written = False
        self._loaded: LoadedProgram | None = None

    def calls(self) -> Mapping[str, MethodCall]:
        """The calls of the methods, which Python makes from now on."""
        self._loaded, calls = load_candidate(self._folder, self._target, self._subclasses, native=False)
        return calls

    def observe(self, example: Example, traced: TracedMethod, method: schema.Method, call: Call) -> Observation:
        """Call a method of the target.

        Raises:
            TargetError: it cannot run on this machine.
        """
        if self._loaded is None:
            self._loaded = load_candidate(self._folder, self._target, self._subclasses)[0]
        model, before = self._loaded, state_of(self._loaded)
        if self._is_written:
            with torch.no_grad():  # all of it, because BatchNorm writes without counting
                for path, tensor in before.items():
                    tensor.copy_(self._original[path])
        devices = {tensor.device.type for tensor in before.values()} - {"cpu"}
        if devices:
            raise TargetError("", [Problem("", f"it runs on a device of kind {devices.pop()}")])
        _, arguments, _ = example.copies({})
        if model.training != traced.plan.training:
            model.train(traced.plan.training)
        called = model.aotpack.method(method.function) if method.function else model
        with torch.random.fork_rng(devices=[]), as_built(method):
            seen = observe(call, arguments, called, lambda: state_of(model), once=True)
        state = state_of(model)
        in_backward = method.backward is not None and bool(method.backward.state_writes)
        self._is_written = in_backward or bool(method.mutations)  # not by versions: some kernels write without counting
        if any(tensor is not before.get(path) for path, tensor in state.items()):
            self._loaded, self._is_written = None, False
        for tensor in state.values():
            if tensor.is_leaf:
                tensor.grad = None
        return seen


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
