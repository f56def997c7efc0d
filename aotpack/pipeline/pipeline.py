"""The ways to make a bundle, as a table of contents: each stage a function, frozen results between them.

``build``: capture -> partition -> signature (:mod:`.tracing`) -> graphs (:mod:`.program`) -> targets -> weights -> bundle.
``compile_bundle``: graphs of a bundle (:mod:`.existing`) -> targets -> bundle. The last two stages are :mod:`.finish`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import BuildError
from aotpack_loader.format import schema
from aotpack_loader.trust import decide_trust, record_built

from .. import __version__
from .._torch import (
    Decompositions,
    apply_fixes,
    check_torch,
    decomposed_like_kernels,
    decompositions,
    fix_table,
    free_sizes,
    record_of_fixes,
)
from .._torch.recurrent import own_gru, recurrent_scans
from ..capture import FRONT_ENDS
from ..capture.autocast import current_autocast
from ..capture.dry_run.eager import warmed_up
from ..targets import Target, resolve_targets, uses_inductor
from ..writer.bundle import BlobStore
from ..writer.cache import CompileCache
from ..writer.weights import write_weights
from . import documents, finish, reopen, tracing
from .options import DEFAULT_METHODS, OPTIONAL_METHODS, Options, RandomMode, autocast_states, check_options, layout_problems
from .progress import BuildReport, Observer, Run
from .selftest import record
from .specializations import refuse_unused, specialize

__all__ = ["BuildReport", "Observer", "build", "compile_bundle"]


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
    methods: Sequence[str] | None = None,
    front_ends: Sequence[str] = FRONT_ENDS,
    rng: RandomMode = "default",
    branches: str = "refuse",
    autocast: str | Sequence[str] | None = None,
    self_test: bool = False,
    name: str | None = None,
    cache: bool = True,
    layout: Literal["file", "directory"] = "file",
    second_derivatives: bool = False,
    specializations: Sequence[Mapping[str, int]] = (),
    warm_up: bool = False,
    allow_untested_torch: bool = False,
    observer: Observer | None = None,
) -> BuildReport:
    """Build a bundle from a model and example inputs.

    Args:
        model: an ``nn.Module``, or a function over tensors and nested containers of them.
        args: example inputs. Their values are not used, only types, sizes and ``requires_grad`` (but see ``branches``).
        kwargs: example inputs by name.
        out: the ``.aotpack`` file (or directory) to write.
        targets: what to compile for: ``"cpu"``, ``"cpu:x86-64-v3"``, ``"portable"``.
        dynamic_shapes: sizes that vary, in ``torch.export``'s form.
        partitioner: ``"min-cut"`` or ``"default"``.
        memory_budget: share of activation memory that may be saved for the backward, 0..1.
        methods: any of ``train``, ``infer``, ``eval``. The default is ``train`` and ``infer``; an ``infer`` that was not
            asked for and cannot be built is left out, with a warning.
        front_ends: which may trace the model, in order of preference: any of ``dynamo``, ``export``, ``trace``.
        rng: ``"eager"`` draws eager's random numbers under the same seed, on every target, and leaves the generator as
            eager does; ``"default"`` lets a target's compiler draw others of the same distributions.
        branches: Python branches on the values of tensors: on their truth values, on comparisons of their numbers
            (``item()``, ``tolist()``), and on whole numbers (``int()``). ``"refuse"``, or ``"example"`` to go the way
            that they go when the model is run on copies of the example inputs; a call on which one would go another way
            is an error.
        autocast: what each method is built for: ``"none"``, ``"bf16"``, ``"fp16"``, or several (``("none", "bf16")``), of
            which each call takes the one that its caller's ``torch.autocast`` asks for. Null: the caller's autocast now.
        self_test: record inputs, outputs and gradients of eager, for ``aotpack verify``.
        name: the program's name; default the model's class.
        cache: reuse compiled code of unchanged graphs.
        layout: ``"file"`` or ``"directory"``.
        second_derivatives: also hold the gradients of gradients (``create_graph=True``): a trace, and code, more for each method
            with gradients.
        specializations: the sizes that targets for fixed sizes (``"xla"``) are compiled for, each a value for every size that
            varies, by the name of its ``torch.export.Dim``: ``[{"batch": 8}, {"batch": 32}]``.
        warm_up: first call a copy of the model on the example inputs, in eager, so that what a first call sets up is there when
            the copy is traced: caches, tensors that are made late, parameters that are initialised from data.
        allow_untested_torch: build with a torch that aotpack was not tried on. The bundle records it.
        observer: watches progress.

    Raises:
        UnsupportedTorchError: this torch was not tried, or its private names are not those that were tried.
        BuildError: the model cannot be built; nothing was written.
    """
    kwargs = dict(kwargs or {})
    asked = DEFAULT_METHODS if methods is None else methods
    optional = OPTIONAL_METHODS if methods is None else frozenset[str]()
    states = autocast_states(autocast, current_autocast())
    options = Options(asked, partitioner, memory_budget, front_ends, rng, branches, second_derivatives, optional, warm_up, states)
    check_options(args, options, layout)
    chosen = resolve_targets(targets)
    refuse_unused(chosen, specializations)
    run = Run(observer)
    fixes = _checked_torch(run, chosen, allow_untested_torch)
    scans = recurrent_scans() if any(getattr(target, "keeps_loops", False) for target in chosen) else contextlib.nullcontext()
    warmed = _warmed(run, model, args, kwargs, options)
    with warmed as model, free_sizes(), _sizes_fixed(), own_gru(), scans, BlobStore(out) as store:
        context = tracing.start(
            run, tracing.Example(model, args, kwargs, dynamic_shapes), options, _decompositions(chosen, options)
        )
        traced = tracing.trace(context)
        described, graphs = documents.describe(traced, context, store)
        graphs = specialize(graphs, specializations)
        extra = documents.extra_operators(graphs)
        if extra:
            run.note(
                f"the graphs call operators of {', '.join(extra)}: a process that loads the bundle must have registered them"
            )
        in_progress = finish.BundleInProgress(run, _producer(), fixes, store, CompileCache(enabled=cache), out, layout)
        entries = finish.compile_targets(in_progress, chosen, graphs, context.state)
        with run.stage("weights"):
            weights = write_weights(list(context.stored.tensors.items()), store)
        tested = None
        if self_test:
            with run.stage("self-test"):
                recorded = described.get("train") or next(iter(described.values()))
                tested = record(context.module, recorded, args, kwargs, store)
        parts = documents.ProgramParts(described, extra, weights, tested)
        made = documents.assemble(name or type(model).__name__, in_progress.producer, context, parts)
        report = finish.write(in_progress, made, entries)
    record_built(report.digest)
    saved = {m.plan.name: m.convention.saved_bytes for m in traced if m.convention.backward is not None}
    built = [m.plan.name for m in traced]
    wanted = [plan.name for plan in options.plans]
    return replace(report, methods=tuple(method for method in wanted if method in built), saved_bytes=saved)


@contextlib.contextmanager
def _warmed(
    run: Run, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
) -> Iterator[torch.nn.Module | Callable[..., Any]]:
    """The model, or where that was asked for a copy that has been called."""
    with contextlib.ExitStack() as stack:
        if options.warm_up:
            with run.stage("warm-up"):
                plans = [(plan, plan.kind not in options.optional) for plan in options.plans]
                model = stack.enter_context(warmed_up(model, args, kwargs, plans))
        yield model


def compile_bundle(
    bundle: str | Path,
    targets: Sequence[str],
    *,
    out: str | Path,
    trust: str | Collection[str] | None = None,
    self_test: bool = False,
    cache: bool = True,
    layout: Literal["file", "directory"] = "file",
    specializations: Sequence[Mapping[str, int]] = (),
    subclasses: Collection[type] = (),
    allow_untested_torch: bool = False,
    observer: Observer | None = None,
) -> BuildReport:
    """Compile the graphs of a bundle for further targets, without the model's source.

    The program, its weights and the targets that are there stay as they are, byte by byte. Operators beyond torch's own must have
    been registered in this process. The new bundle is recorded as this user's, so that its native code runs, if the old one
    is trusted.

    Args:
        bundle: the ``.aotpack`` file or directory; it may be what ``out`` replaces.
        targets: what to add: ``"cpu:x86-64-v4"``, ``"portable"``.
        out: the ``.aotpack`` file (or directory) to write.
        trust: that the old bundle is trusted, as ``aotpack_loader.load`` takes it.
        self_test: run the bundle's recorded inputs on each new target that runs here, before anything is written.
        cache: reuse compiled code of unchanged graphs.
        layout: ``"file"`` or ``"directory"``.
        specializations: the sizes that targets for fixed sizes are compiled for, as :func:`build` takes them.
        subclasses: classes of tensors that the bundle holds, as ``aotpack_loader.load`` takes them; ``self_test`` needs them.
        allow_untested_torch: as :func:`build` takes it.
        observer: watches progress.

    Raises:
        UnsupportedTorchError: as :func:`build`.
        BundleError: there is no bundle, it is damaged, or of a later format.
        BuildError: a target is there already or unknown, cannot compile the graphs, or computes something else than was recorded;
            nothing was written.
        TrustError: ``self_test`` of native code from a bundle that is not trusted.
    """
    if problems := layout_problems(layout):
        raise BuildError("The options are not valid.", problems)
    chosen = resolve_targets(targets)
    refuse_unused(chosen, specializations)
    run = Run(observer)
    fixes = _checked_torch(run, chosen, allow_untested_torch)
    with Bundle.open(bundle) as opened, free_sizes(), _sizes_fixed(), BlobStore(out) as store:
        reopen.refuse_present(opened, chosen)
        trusted = decide_trust(opened.digest, trust)
        with run.stage("restore"):
            graphs = specialize(reopen.graphs_of(opened), specializations)
        in_progress = finish.BundleInProgress(run, _producer(), fixes, store, CompileCache(enabled=cache), out, layout)
        with reopen.deterministic_algorithms(reopen.uses_deterministic_algorithms(opened.program)):
            entries = finish.compile_targets(in_progress, chosen, graphs, opened.program.state)
        kept = reopen.keep(opened, store)
        if self_test:
            finish.self_test(in_progress, opened.program, entries, kept, subclasses, trusted=trusted.trusted)
        report = finish.write(in_progress, opened.program, entries, kept)
        present = tuple(opened.targets)
    if trusted.trusted:
        record_built(report.digest)
    else:
        run.warn(
            f"native code of the new bundle runs only with trust={report.digest!r}, because of the old one: {trusted.reason}"
        )
    return replace(report, targets=present + report.targets, warnings=tuple(run.warnings))


def _checked_torch(run: Run, targets: Sequence[Target], allow_untested: bool) -> Callable[[Target], dict[str, str]]:
    """What the record of a target's tool chain says of the fixes of torch.

    Raises:
        UnsupportedTorchError: this torch was not tried, and that is not allowed.
    """
    untested = check_torch(inductor=any(map(uses_inductor, targets)), allow_untested=allow_untested)
    if untested:
        run.warn(f"torch {torch.__version__} was not tried with aotpack {__version__}: compare the bundle with eager")
    return lambda target: record_of_fixes(inductor=uses_inductor(target), untested=untested)


@contextlib.contextmanager
def _sizes_fixed() -> Iterator[None]:
    """The fixes of symbolic sizes and of fake tensors, which a whole build needs."""
    with apply_fixes("symbolic_shapes"), apply_fixes("fake_tensor"):
        yield


def _producer() -> schema.Producer:
    return schema.Producer(__version__, str(torch.__version__))


def _decompositions(targets: Sequence[Target], options: Options) -> Decompositions:
    """The first table that a target has, and what no bundle may call."""
    tables = [target.decompositions(exact_random=options.exact_random) for target in targets]
    table = {**next((table for table in tables if table is not None), {}), **decompositions.TABLE, **fix_table("decomposition")}
    return decomposed_like_kernels(table)
