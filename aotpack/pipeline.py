"""The build, as a table of contents: each stage a function, frozen results between them.

capture -> partition -> signature -> graphs -> targets -> weights -> bundle
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from aotpack_loader.errors import BuildError, CorruptBundleError, Problem, UnsupportedError
from aotpack_loader.format import codec, expressions, media_types, schema, subclasses, subgraphs
from aotpack_loader.format.validate import validate_graph, validate_program
from aotpack_loader.format.versions import FORMAT_VERSION
from aotpack_loader.trust import record_built

from . import __version__, capture, decompositions, graph, partition, second, signature
from ._torch_compat import Decompositions, free_sizes
from .bundle import BlobStore, TargetEntry, write_bundle
from .cache import CompileCache
from .dynamic_shapes import DynamicShapes
from .dynamic_shapes import resolve as resolve_shapes
from .examples import named_leaves, parameters, refuse_layouts
from .literals import NOT_A_LITERAL, dtype_name, literal_argument
from .rearrange import Arrangement, Writes, arrange
from .selftest import record
from .sharing import separated, sharing
from .state import StoredTensors, describe_state, named_state
from .subclasses import check_apart
from .targets import GraphToCompile, resolve_targets
from .weights import write_weights

RandomMode = Literal["default", "eager"]
PARTITIONERS = ("min-cut", "default")
RNG_MODES: tuple[RandomMode, ...] = ("default", "eager")
BRANCHES = ("refuse", "example")
LAYOUTS = ("file", "directory")


@dataclass(frozen=True)
class MethodPlan:
    """A method to build: the mode it is traced in. ``train`` keeps gradients in train mode, ``infer`` neither."""

    name: str
    training: bool
    grad: bool


METHODS = {plan.name: plan for plan in (
    MethodPlan("train", training=True, grad=True),
    MethodPlan("infer", training=False, grad=False),
    MethodPlan("eval", training=False, grad=True),
)}  # fmt: skip
"""Methods a build knows. ``eval`` is optional: gradients through the eval-mode graph (frozen BatchNorm, no dropout)."""


class Observer(Protocol):
    """Watches a build."""

    def stage(self, name: str, detail: str = "") -> AbstractContextManager[None]:
        """Entered when a stage starts, left when it ends."""

    def note(self, message: str) -> None:
        """A choice the build made."""

    def warn(self, message: str) -> None:
        """Something the user should know."""


class Silent:
    """An observer that shows nothing."""

    def stage(self, name: str, detail: str = "") -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def note(self, message: str) -> None:
        """Nothing."""

    def warn(self, message: str) -> None:
        """Nothing."""


@dataclass(frozen=True)
class StageTime:
    """A stage and how long it took, in seconds."""

    name: str
    seconds: float


@dataclass(frozen=True)
class BuildReport:
    """What a build made: ``size`` in bytes, ``saved_bytes`` of activations a train step keeps at the example's sizes."""

    out: Path
    digest: str
    size: int
    stages: tuple[StageTime, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    targets: tuple[str, ...]
    methods: tuple[str, ...]
    saved_bytes: dict[str, int] = field(default_factory=dict)
    cache_hits: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain data for ``--json``."""
        return {**asdict(self), "out": str(self.out)}


@dataclass(frozen=True)
class _Options:
    partitioner: str
    memory_budget: float | None
    decompositions: Decompositions
    front_ends: Sequence[str]
    rng: RandomMode
    branches: str

    @property
    def exact_random(self) -> bool:
        return self.rng == "eager"


@dataclass(frozen=True)
class _BuiltMethod:
    plan: MethodPlan
    convention: signature.Convention
    front_end: str
    identical: list[list[int]]
    distinct: bool
    rng: RandomMode
    second: schema.Second | None = None


class _Build:
    """One build in progress: times stages, collects notes."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.stages: list[StageTime] = []
        self.notes: list[str] = []
        self.warnings: list[str] = []

    @contextlib.contextmanager
    def stage(self, name: str, detail: str = "") -> Iterator[None]:
        start = time.perf_counter()
        with self._observer.stage(name, detail):
            yield
        self.stages.append(StageTime(f"{name} {detail}".strip(), time.perf_counter() - start))

    def note(self, message: str) -> None:
        self.notes.append(message)
        self._observer.note(message)

    def warn(self, message: str) -> None:
        self.warnings.append(message)
        self._observer.warn(message)


@dataclass(frozen=True)
class _Work:
    """What all methods of a build are traced from."""

    run: _Build
    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: DynamicShapes
    stored: StoredTensors
    options: _Options


def build(
    model: torch.nn.Module | Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    out: str | Path,
    targets: Sequence[str] = ("cpu",),
    dynamic_shapes: Any = None,
    partitioner: str = "min-cut",
    memory_budget: float | None = None,
    methods: Sequence[str] = ("train", "infer"),
    front_ends: Sequence[str] = capture.FRONT_ENDS,
    rng: RandomMode = "default",
    branches: str = "refuse",
    self_test: bool = False,
    name: str | None = None,
    cache: bool = True,
    layout: str = "file",
    second_derivatives: bool = False,
    observer: Observer | None = None,
) -> BuildReport:
    """Build a bundle from a model and example inputs.

    Args:
        model: an ``nn.Module``, or a function over tensors and nested containers of them.
        args, kwargs: example inputs; their values are not used, only types, sizes and ``requires_grad`` (but see ``branches``).
        out: the ``.aotpack`` file (or directory) to write.
        targets: what to compile for: ``"cpu"``, ``"cpu:x86-64-v3"``, ``"portable"``.
        dynamic_shapes: sizes that vary, in ``torch.export``'s form.
        partitioner: ``"min-cut"`` or ``"default"``.
        memory_budget: share of activation memory that may be saved for the backward, 0..1.
        methods: any of ``train``, ``infer``, ``eval``.
        front_ends: which may trace the model, in order of preference: any of ``dynamo``, ``export``, ``trace``.
        rng: ``"eager"`` draws eager's random numbers under the same seed, on every target, and leaves the generator as
            eager does; ``"default"`` lets a target's compiler draw others of the same distributions.
        branches: Python branches on truth values of tensors: ``"refuse"``, or ``"example"`` to go the way that they go when the
            model is run on copies of the example inputs; a call on which one would go another way is an error.
        self_test: record inputs, outputs and gradients of eager, for ``aotpack verify``.
        name: the program's name; default the model's class.
        cache: reuse compiled code of unchanged graphs.
        layout: ``"file"`` or ``"directory"``.
        second_derivatives: also hold the gradients of gradients (``create_graph=True``): a trace, and code, more for each method
            with gradients.
        observer: watches progress.

    Raises:
        BuildError: the model cannot be built; nothing was written.
    """
    kwargs = dict(kwargs or {})
    _check_options(args, partitioner, memory_budget, methods, front_ends, rng, branches, layout)
    refuse_layouts(args, kwargs)
    chosen = resolve_targets(targets)
    tables = [target.decompositions(exact_random=rng == "eager") for target in chosen]
    table = {**next((table for table in tables if table is not None), {}), **decompositions.TABLE}
    options = _Options(partitioner, memory_budget, table, front_ends, rng, branches)
    module = model if isinstance(model, torch.nn.Module) else capture.FunctionModule(model)
    run = _Build(observer or Silent())
    stored = StoredTensors()
    state = describe_state(module, stored)
    check_apart([*named_leaves(args, kwargs), *((name, tensor) for name, _, tensor, _ in named_state(module))])
    shapes = resolve_shapes(model, args, kwargs, dynamic_shapes)
    compile_cache = CompileCache(enabled=cache)
    with free_sizes(), BlobStore(out) as store:
        plans = [METHODS[method] for method in methods]
        work = _Work(run, module, args, kwargs, shapes, stored, options)
        built = [_trace_method(work, plan) for plan in plans]
        if second_derivatives:
            built = [method for first in built for method in _with_second(work, first, state)]
        program_methods, graphs = _add_graphs(built, module, model, args, kwargs, store)
        extra = _extra_operators(graphs)
        if extra:
            run.note(
                f"the graphs call operators of {', '.join(extra)}: a process that loads the bundle must have registered them"
            )
        entries: list[TargetEntry] = []
        for target in chosen:
            with run.stage("compile", target.name):
                entries.append(target.compile(graphs, store, compile_cache))
        with run.stage("weights"):
            weights = write_weights(list(stored.tensors.items()), store)
        tested = None
        if self_test:
            with run.stage("self-test"):
                recorded = program_methods.get("train") or next(iter(program_methods.values()))
                tested = record(module, recorded, args, kwargs, store)
        program = schema.Program(
            format=FORMAT_VERSION,
            name=name or type(model).__name__,
            producer=schema.Producer(__version__, str(torch.__version__)),
            requirements=schema.Requirements(
                torch=">=2.9",
                operators=extra,
                subclasses=subclasses.names(state, program_methods),
            ),
            state=state,
            methods=program_methods,
            weights=weights,
            self_test=tested,
            training=module.training,
        )
        with _as_a_loader():
            validate_program(program, "program")
        shared = [item.descriptor for item in graphs] + weights + ([tested] if tested else [])
        entries = [entry._replace(layers=_distinct([*shared, *entry.layers])) for entry in entries]
        with run.stage("write"):
            digest = write_bundle(out, store, program, entries, layout=layout)  # type: ignore[arg-type]
    record_built(digest)
    if compile_cache.hits:
        run.note(f"{compile_cache.hits} of {compile_cache.hits + compile_cache.misses} compiled graphs came from the cache")
    return BuildReport(
        out=Path(out),
        digest=digest,
        size=_size(Path(out)),
        stages=tuple(run.stages),
        notes=tuple(run.notes),
        warnings=tuple(run.warnings),
        targets=tuple(target.name for target in chosen),
        methods=tuple(methods),
        saved_bytes={m.plan.name: m.convention.saved_bytes for m in built if m.convention.backward is not None},
        cache_hits=compile_cache.hits,
    )


@contextlib.contextmanager
def _as_a_loader() -> Iterator[None]:
    """What a loader would refuse is refused here, before anything is written."""
    try:
        yield
    except CorruptBundleError as error:
        raise UnsupportedError(
            "The model needs something that the bundle format cannot express.",
            error.problems,
            hint="Unknown symbols are sizes that depend on data (nonzero, boolean masks) and reach the backward graph.",
        ) from error


def _check_options(
    args: Any,
    partitioner: str,
    memory_budget: float | None,
    methods: Sequence[str],
    front_ends: Sequence[str],
    rng: str,
    branches: str,
    layout: str,
) -> None:
    problems = []
    if not isinstance(args, tuple):
        problems.append(Problem("args", f"expected a tuple of positional arguments, got {type(args).__name__}"))
    if partitioner not in PARTITIONERS:
        problems.append(Problem("partitioner", f"{partitioner!r} is none of {', '.join(PARTITIONERS)}"))
    if memory_budget is not None and not 0 <= memory_budget <= 1:
        problems.append(Problem("memory_budget", f"{memory_budget} is not between 0 and 1"))
    if memory_budget is not None and partitioner == "default":
        problems.append(Problem("memory_budget", "only the min-cut partitioner has one"))
    unknown = [method for method in methods if method not in METHODS]
    problems += [Problem("methods", f"{method!r} is none of {', '.join(METHODS)}") for method in unknown]
    problems += [Problem("methods", f"{method!r} is there twice") for method in sorted(set(methods)) if methods.count(method) > 1]
    if not methods:
        problems.append(Problem("methods", "at least one is needed"))
    known = capture.FRONT_ENDS
    problems += [Problem("front_ends", f"{name!r} is none of {', '.join(known)}") for name in front_ends if name not in known]
    if not front_ends:
        problems.append(Problem("front_ends", "at least one is needed"))
    if rng not in RNG_MODES:
        problems.append(Problem("rng", f"{rng!r} is none of {', '.join(RNG_MODES)}"))
    if branches not in BRANCHES:
        problems.append(Problem("branches", f"{branches!r} is none of {', '.join(BRANCHES)}"))
    if layout not in LAYOUTS:
        problems.append(Problem("layout", f"{layout!r} is none of {', '.join(LAYOUTS)}"))
    if problems:
        raise BuildError("The build's options are not valid.", problems)


def _trace_method(work: _Work, plan: MethodPlan) -> _BuiltMethod:
    module, args, kwargs = work.module, work.args, work.kwargs
    shared = sharing(args, kwargs, [*module.parameters(), *module.buffers()])
    apart = separated(args, kwargs, shared)
    built = _trace_once(work, plan, Arrangement(module, *apart))
    writes = _writes(built.convention)
    if not shared.leaves & (writes.data | writes.reshaped) and not (built.distinct and shared.identical):
        return built
    paths = [leaf.path for leaf in built.convention.method["leaves"]]
    compares = built.distinct
    arranged = arrange(module, args, kwargs, shared, writes, paths, grad=plan.grad, compares=compares)
    return replace(_trace_once(work, plan, arranged), distinct=compares)


def _with_second(work: _Work, first: _BuiltMethod, state: Sequence[schema.StateEntry]) -> list[_BuiltMethod]:
    """The method, and after it that of its gradients where it has any."""
    if first.convention.backward is None or not first.plan.grad:
        return [first]
    leaves = first.convention.method["leaves"]
    given = {leaf.path: leaf.subclass for leaf in leaves if isinstance(leaf, schema.TensorLeaf)}
    given |= {entry.name: entry.subclass for entry in state}
    if held := [Problem(place, f"a {subclass.name}") for place, subclass in given.items() if subclass is not None]:
        raise UnsupportedError("Second derivatives are asked for, which a bundle does not hold beside tensor subclasses.", held)
    plan = replace(first.plan, name=f"{first.plan.name}.second")
    gradients = second.Gradients(work.module, first.convention, work.args, work.kwargs)
    tensors, varying = gradients.example(first.convention, work.shapes)
    before = work.module.training
    try:
        # The other front ends look for a user's function, and find torch.autograd.grad.
        options = replace(work.options, front_ends=("trace",))
        again = replace(work, module=gradients, args=tensors, kwargs={}, shapes=varying, options=options)
        built = _trace_once(again, plan, Arrangement(gradients, tensors, {}))
    finally:
        work.module.training = before
    draws = second.check(first.convention, built.convention)
    needed = second.depends(first.convention, built.convention)
    return [replace(first, second=schema.Second(plan.name, draws, needed)), built]


def _writes(convention: signature.Convention) -> Writes:
    """What a method does to its arguments."""
    primals, mutations = convention.method["primals"], convention.method["mutations"]
    leaves = [(primals[m.primal].leaf, m) for m in mutations if isinstance(primals[m.primal], schema.InputPrimal)]
    return Writes(
        data=frozenset(leaf for leaf, mutation in leaves if mutation.kind != "metadata"),
        graded=frozenset(leaf for leaf, mutation in leaves if mutation.requires_grad),
        reshaped=frozenset(leaf for leaf, mutation in leaves if mutation.kind != "data"),
    )


def _trace_once(work: _Work, plan: MethodPlan, arrangement: Arrangement) -> _BuiltMethod:
    """Capture, partition and assemble one method, traced as arranged."""
    run, shapes, options = work.run, work.shapes, work.options
    arranged = shapes.shifted(len(arrangement.bases)) if arrangement.prefix else shapes
    with run.stage("capture", plan.name):
        captured = capture.capture(
            arrangement.model,
            arrangement.args,
            arrangement.kwargs,
            arranged,
            training=plan.training,
            grad=plan.grad,
            decompositions=options.decompositions,
            exact_random=options.exact_random,
            front_ends=options.front_ends,
            follow_example=options.branches == "example",
        )
    run.note(f"captured {plan.name!r} with the {captured.front_end} front end")
    for problem in captured.rejected:
        run.warn(f"the {problem.where} front end refused {plan.name!r}: {problem.message}")
    for line in dict.fromkeys(branch.where for branch in captured.branches):
        run.warn(f"{plan.name!r} goes the example inputs' way, and fails at a call that goes another: {line}")
    for line in captured.lost_checkpoints:
        run.warn(f"{plan.name!r}: the {captured.front_end} front end looked through a checkpoint, so all in it is saved: {line}")
    if captured.joint.side_effects:
        changed = ", ".join(captured.joint.side_effects)
        run.warn(f"{plan.name!r}: the model changes Python objects while it runs ({changed}); a bundle keeps tensors only")
    with run.stage("partition", plan.name):
        parts = partition.partition(
            captured.joint,
            partitioner=options.partitioner,
            memory_budget=options.memory_budget,
            exact_random=options.exact_random,
        )
        convention = signature.assemble(
            captured.joint, captured.returned, parts, work.module, work.args, work.kwargs, work.stored, arrangement
        )
    if written := ", ".join(convention.written_in_checkpoints):
        run.warn(
            f"{plan.name!r}: {written}: written inside a checkpoint; eager writes again when it recomputes, a bundle does not"
        )
    constraints = convention.method["constraints"]
    if convention.backward is not None and not plan.grad:
        _check_turned_on(convention)
    _check_dynamic(shapes, convention.method["leaves"], convention.method["symbols"], constraints)
    if constraints:
        run.note(f"{plan.name!r} takes only sizes with {', '.join(constraints)}")
    identical = [list(group) for group in arrangement.identical]
    return _BuiltMethod(plan, convention, captured.front_end, identical, captured.joint.compares, options.rng)


def _check_turned_on(convention: signature.Convention) -> None:
    """Where the model turns gradients on itself, what the loader does after the graphs it does with gradients off."""
    results = [r for r in convention.method["results"] if isinstance(r, schema.AliasResult) and r.output is not None]
    written = [m for m in convention.method["mutations"] if m.requires_grad]
    if any(result.requires_grad for result in results) or written:
        raise UnsupportedError(
            "The model turns gradients on while they are off (enable_grad), and returns views or writes to arguments with them.",
            hint="Build without this method, methods=('train',), and call it with gradients on.",
        )


def _check_dynamic(
    shapes: DynamicShapes, leaves: Sequence[schema.InputLeaf], symbols: Sequence[schema.Symbol], constraints: Sequence[str]
) -> None:
    """A size asked to vary must vary, over all of the range that was asked for."""
    ranges = {symbol.name: symbol for symbol in symbols}
    problems: list[Problem] = []
    for number, dims in shapes.dims.items():
        leaf = leaves[number]
        for dim, (low, high, automatic) in dims.items():
            if automatic:
                continue
            size = leaf.shape[dim] if isinstance(leaf, schema.TensorLeaf) else 0
            where = f"{leaf.path}.shape[{dim}]"
            if isinstance(size, int):
                problems.append(Problem(where, f"asked to vary, but the model fixes it at {size}"))
                continue
            found = ranges.get(size)
            if found is None:
                continue
            refused = [text for text in constraints for end in (low, high) if end is not None and not _allows(text, size, end)]
            if refused:
                problems.append(Problem(where, f"asked to vary more than the model allows: {', '.join(refused)}"))
            narrower = low is not None and found.minimum > low
            if narrower or (found.maximum is not None and high is not None and found.maximum < high):
                limit = "" if found.maximum is None else found.maximum
                problems.append(Problem(where, f"asked to vary more than the model allows, {found.minimum}..{limit}"))
    if problems:
        raise BuildError("The model does not allow these sizes to vary as asked.", problems)


def _allows(constraint: str, symbol: str, size: int) -> bool:
    """Whether ``size`` meets a constraint on ``symbol`` alone."""
    return expressions.symbols(constraint) != {symbol} or bool(expressions.evaluate(constraint, {symbol: size}))


def _add_graphs(
    built: Sequence[_BuiltMethod],
    module: torch.nn.Module,
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    store: BlobStore,
) -> tuple[dict[str, schema.Method], list[GraphToCompile]]:
    methods: dict[str, schema.Method] = {}
    graphs: list[GraphToCompile] = []

    def add(key: str, fx: torch.fx.GraphModule, convention: signature.Convention, **role: Any) -> schema.Descriptor:
        converted = graph.from_fx(fx, convention.shape_env)
        with _as_a_loader():
            validate_graph(converted, key)
        descriptor = store.add_compressed(codec.encode(converted), media_types.GRAPH)
        graphs.append(GraphToCompile(key, converted, descriptor, fx, training=convention.backward is not None, **role))
        return descriptor

    positional, defaults = _positional_parameters(model), _defaults(model, args, kwargs)
    autocast = dtype_name(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else None
    turns = any(item.convention.backward is not None and not item.plan.grad for item in built)
    served = _served([item.plan for item in built if item.plan.name in METHODS], has_modes=model is module, turns_on=turns)
    for item in built:
        name, convention = item.plan.name, item.convention
        saved = {i: s.output for i, s in enumerate(convention.saved) if isinstance(s, schema.SavedOutput)}
        forward = add(f"{name}.forward", convention.forward, convention, private=frozenset(saved.values()) - convention.seen)
        backward = None
        if convention.backward is not None:
            backward = schema.Backward(
                graph=add(f"{name}.backward", convention.backward, convention, saved=saved),
                saved=convention.saved,
                tangents=convention.tangents,
                gradients=convention.gradients,
                depends=convention.depends,
                second=item.second,
                subclasses=convention.subclasses,
            )
        methods[name] = schema.Method(
            serves=served.get(name, []),
            forward=forward,
            backward=backward,
            captured_with=item.front_end,
            parameters=positional if name in served else [],
            defaults=defaults if name in served else {},
            identical=item.identical,
            distinct=item.distinct,
            autocast=autocast,
            deterministic=torch.are_deterministic_algorithms_enabled(),
            rng=item.rng,
            **convention.method,
        )
    return methods, graphs


def _served(plans: Sequence[MethodPlan], *, has_modes: bool, turns_on: bool) -> dict[str, list[schema.Mode]]:
    """The caller's modes each method is right for; no mode is served twice.

    A graph with gradients also serves its mode without them, unless the model turns them on. A plain function has no train and
    eval mode, so one graph serves both.
    """
    served = {plan.name: [(plan.training, plan.grad)] for plan in plans}

    def add(name: str, mode: tuple[bool, bool]) -> None:
        if not any(mode in modes for modes in served.values()):
            served[name].append(mode)

    for plan in plans:
        if plan.grad and not turns_on:
            add(plan.name, (plan.training, False))
    if not has_modes:
        for name, modes in list(served.items()):
            for training, grad in list(modes):
                add(name, (not training, grad))
    return {name: [schema.Mode(*mode) for mode in modes] for name, modes in served.items()}


def _positional_parameters(model: Any) -> list[str]:
    return [p.name for p in parameters(model) if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _defaults(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, schema.Scalar]:
    """Literal defaults of the parameters the example leaves out: the graphs were specialised to them."""
    positional = set(_positional_parameters(model)[: len(args)])
    found: dict[str, schema.Scalar] = {}
    for parameter in parameters(model):
        if parameter.name in positional or parameter.name in kwargs or parameter.default is parameter.empty:
            continue
        literal = literal_argument(parameter.default)
        if literal is not NOT_A_LITERAL:
            found[parameter.name] = literal
    return found


def _extra_operators(graphs: Sequence[GraphToCompile]) -> list[str]:
    spaces = {node.op.partition(".")[0] for item in graphs for node in subgraphs.all_nodes(item.graph)}
    return sorted(spaces - {"aten", "prims", "builtin", "higher_order"})


def _distinct(descriptors: Sequence[schema.Descriptor]) -> list[schema.Descriptor]:
    return list({descriptor.digest: descriptor for descriptor in descriptors}.values())


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size
