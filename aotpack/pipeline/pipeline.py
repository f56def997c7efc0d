"""Makes bundles: ``build`` from a model, ``compile_bundle`` from the graphs of an existing bundle.

Read this module as a table of contents. Each stage is a function, and frozen results pass between
the stages.

``build``: capture -> partition -> signature (:mod:`.traced_methods`) -> graphs (:mod:`.documents`)
-> targets (:mod:`.finish`), and beside them the weights -> bundle (:mod:`.finish`).
``compile_bundle``: graphs of a bundle (:mod:`.reopen`) -> targets -> bundle (both :mod:`.finish`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.digest import hex_part
from aotpack_loader.format import schema
from aotpack_loader.trust import decide_trust, record_built

from .. import __version__
from .._torch.api.argument_records import open_dataclasses
from .._torch.api.building import one_build
from .._torch.api.compiling_flags import flags_of_this_thread
from .._torch.api.fake_tensors import free_sizes, made_outside_modes
from .._torch.api.gpus import without_gpus
from .._torch.api.recurrent import own_gru
from .._torch.api.shape_env import recorded_guards
from .._torch.fixes.applying import apply_fixes, record_of_fixes
from .._torch.fixes.gate import check_torch
from ..capture.caches import emptied_caches
from ..capture.dry_run.eager import warmed_up
from ..model.method import Method
from ..targets import Target
from ..writer.bundle import BlobStore, TargetEntry
from ..writer.cache import CompileCache
from ..writer.weights import write_weights
from . import check as checking
from . import classes, documents, finish, functions, reopen
from .collector import gc_tuned_for_build
from .context import BuildContext, Example
from .materials import Material, materials_of
from .options import FRONT_ENDS, UNNAMED_BUILDER, Options, RandomMode
from .preflight import check_args, check_build, check_compile
from .progress import BuildReport, Observer, Run
from .provenance import COMPILE_TYPE, AttachmentRequest
from .selftest import record
from .specializations import of_updates, specialize
from .traced_methods import TracedMethod

__all__ = ["BuildReport", "Observer", "build", "compile_bundle"]


@one_build()
def build(
    model: torch.nn.Module | Callable[..., Any],
    args: tuple[Any, ...] | None = None,
    kwargs: dict[str, Any] | None = None,
    *,
    out: str | Path,
    targets: Sequence[str] = ("cpu",),
    dynamic_shapes: Any = None,
    partitioner: str = "min-cut",
    memory_budget: float | None = None,
    methods: Sequence[str] | Mapping[str, Method] | None = None,
    front_ends: Sequence[str] = FRONT_ENDS,
    rng: RandomMode = "default",
    branches: str = "refuse",
    autocast: str | Sequence[str] | None = None,
    check: bool = True,
    self_test: bool = False,
    name: str | None = None,
    cache: bool | Literal["objects"] = True,
    layout: Literal["file", "directory"] = "file",
    second_derivatives: bool = False,
    specializations: Sequence[Mapping[str, int]] = (),
    optimizer: Any = None,
    warm_up: bool = False,
    regional: bool | None = None,
    tune: bool = False,
    allow_untested_torch: bool = False,
    provenance: bool = False,
    sbom: bool = False,
    builder: str = UNNAMED_BUILDER,
    entry: str | Path | None = None,
    observer: Observer | None = None,
) -> BuildReport:
    """Build a bundle from a model and example inputs.

    Args:
        model: an ``nn.Module``, or a function over tensors and nested containers of them.
        args: example inputs. The build uses types, sizes and ``requires_grad`` of their tensors. It traces
            without values, except for ``branches="example"`` and ``warm_up``. The ``check`` and ``self_test``
            call the model with them; the check draws values for tensors on ``meta``. Null: ``methods`` has all.
        kwargs: example inputs by name.
        out: the ``.aotpack`` file (or directory) to write.
        targets: what to compile for: ``"cpu"``, ``"cpu:x86-64-v3"``, ``"portable"``.
        dynamic_shapes: the dynamic sizes, in the form that ``torch.export`` takes.
        partitioner: ``"min-cut"`` or ``"default"``.
        memory_budget: the share of activation memory that may be saved for the backward, 0..1.
        methods: any of ``train``, ``infer``, ``eval``. By default ``train``, and ``infer`` if it can be built.
            Or functions of the model by name, ``{"encode": aotpack.Method(encode, (x,))}``.
        front_ends: which front ends may trace the model, in order of preference: any of
            ``dynamo``, ``export``, ``trace``.
        rng: ``"eager"`` draws the same random numbers as eager under the same seed, on every
            target, and leaves the generator in the same state. ``"default"`` lets a target's
            compiler draw other numbers of the same distributions.
        branches: what to do with Python branches on the values of tensors. These are branches on
            truth values, on comparisons of numbers (``item()``, ``tolist()``), and on whole
            numbers (``int()``). ``"refuse"`` rejects them. ``"example"`` runs the model on copies
            of the example inputs and follows the branches taken there. A call that would take
            another branch raises an error.
        autocast: the autocast that each method is built for: ``"none"``, ``"bf16"``, ``"fp16"``,
            or several (``("none", "bf16")``). Each call uses the variant that matches its caller's
            ``torch.autocast``. Null: the autocast that is active now.
        check: call each method of each target that can run here, and compare results, gradients and
            writes with those of a copy of the model in eager. A difference beyond rounding ends the
            build. The bundle records that it was not checked.
        self_test: record the inputs, outputs and gradients of eager, for ``aotpack verify``.
        name: the program's name. The default is the name of the model's class.
        cache: reuse the compiled code of unchanged graphs. ``"objects"`` lowers every graph again, and
            reuses the objects of unchanged generated sources. ``False`` compiles everything.
        layout: ``"file"`` or ``"directory"``.
        second_derivatives: also store the gradients of gradients (``create_graph=True``). Each
            method with gradients then needs one more trace and more code.
        specializations: the sizes that targets for fixed sizes (``"xla"``) are compiled for. Each
            entry gives a value for every dynamic size, by the name of its ``torch.export.Dim``:
            ``[{"batch": 8}, {"batch": 32}]``.
        optimizer: an optimizer of the model's parameters, or a function that makes it from the model:
            ``lambda model: torch.optim.AdamW(model.parameters(), lr=1e-3)``. Its step is compiled, too
            (``model.aotpack.optimizer()``). Several have names: ``{"generator": …, "critic": …}``.
        warm_up: first call a copy of the model in eager on the example inputs, and trace that
            copy. It then has what a first call sets up: caches, lazily created tensors, parameters
            initialised from data.
        regional: compile the repeated layers of a model once (regional compilation). A build then
            grows with the kinds of layers, not with their number. Kernels do not span two layers. By
            default this is done where it shortens the build: for the layers of a model that has at
            least 12, none of them with buffers, if a target is compiled by Inductor.
        tune: measure on this machine which library multiplies matrices faster, and compile calls of
            it. The bundle records the choice. Only ``cpu`` targets have one.
        allow_untested_torch: build with a version of torch that aotpack was not tested with. The
            bundle records it.
        provenance: attach a statement of how the bundle was made (SLSA provenance, version 1).
        sbom: attach a bill of materials (CycloneDX, version 1.6).
        builder: who builds, as a URI, for the provenance.
        entry: the file that defines the model, for the provenance. The files of the model's own
            classes are found without it.
        observer: is notified of progress. By default, a terminal or a notebook shows it; ``Silent()`` shows none.

    Raises:
        UnsupportedTorchError: aotpack was not tested with this torch, or torch's private names
            differ from the tested ones.
        WrongResultsError: the check found other results than the model's. Nothing was written.
        BuildError: the model cannot be built. Nothing was written.
    """
    asked = Options(**{given: value for given, value in locals().items() if given not in ("model", "args", "kwargs")})
    options, chosen = check_build(asked, lambda: check_args(args, optional=bool(asked.functions)))
    run = Run(observer)
    requested = _attachment_request(model, options)
    fixes = _checked_torch(run, chosen, allow_untested_torch)
    if tune:
        finish.tune(run, chosen)
    options, example = functions.with_call(options, model, args, dict(kwargs or {}), dynamic_shapes)
    with BlobStore(out) as store, contextlib.ExitStack() as passing:
        in_progress = finish.BundleInProgress(run, _producer(), fixes, store, CompileCache(cache), out, layout, requested)
        with _traceable(run, example, options) as example:
            traced = classes.trace(run, example, options, chosen, passing, model)
            made = _compiled(in_progress, traced, specializations, name=name, self_test=self_test)
        checked: dict[str, tuple[schema.Program, TargetEntry]] = {}
        for one, (program, entries) in zip(traced, made, strict=True):
            found = checking.left_out(entries)
            if check:
                found = checking.check(in_progress, one.contexts, one.methods, program, one.targets, entries, one.asked)
            checked |= {entry.target.name: (program, entry) for entry in found.mark(entries)}
        report = finish.write(in_progress, [checked[target.name] for target in chosen])
    record_built(report.digest)
    return _with_methods(report, traced[0].methods, options)


def _attachment_request(model: torch.nn.Module | Callable[..., Any], options: Options) -> AttachmentRequest:
    """Return what to write beside the bundle."""
    requested = AttachmentRequest(options.provenance, options.sbom, options.builder)
    if not (requested.provenance or requested.sbom):
        return requested
    return replace(requested, parameters=options.recorded(), materials=materials_of(model, options.entry))


@contextlib.contextmanager
def _traceable(run: Run, example: Example, options: Options) -> Iterator[Example]:
    """Yield the example, warmed up if that is asked for, in the state of torch that a build needs."""
    args, kwargs = example.args, example.kwargs
    warmed = _warmed(run, example.model, args, kwargs, options)
    with (
        emptied_caches(),
        gc_tuned_for_build(),
        without_gpus(),
        flags_of_this_thread(),
        open_dataclasses((args, kwargs)),
        warmed as model,
        free_sizes(),
        made_outside_modes(),
        recorded_guards(),
        _sizes_fixed(),
        own_gru(),
    ):
        yield replace(example, model=model)


def _compiled(
    in_progress: finish.BundleInProgress,
    traced: Sequence[classes.Traced],
    specializations: Sequence[Mapping[str, int]],
    *,
    name: str | None,
    self_test: bool,
) -> list[tuple[schema.Program, list[TargetEntry]]]:
    """Describe the traced methods and compile their graphs. Return the program of each class with its targets."""
    run, store, context = in_progress.run, in_progress.store, traced[0].context
    described = [documents.describe(one.methods, one.contexts, store) for one in traced]
    compiled = []
    with ThreadPoolExecutor(1) as beside:
        writing = beside.submit(write_weights, list(context.stored.tensors.items()), store)
        for one, (_, graphs) in zip(traced, described, strict=True):
            if extra := documents.extra_operators(graphs):
                run.note(
                    f"the graphs call operators of {', '.join(extra)}: a process that loads the bundle must have registered them"
                )
            origins, stored_origins = documents.describe_origins(one.methods, one.context, store)
            graphs = of_updates(specialize(graphs, specializations), one.optimizers.values(), context.state)
            entries = finish.compile_targets(in_progress, one.targets, graphs, context.state, origins)
            one.check_sizes(entries)
            compiled.append((extra, stored_origins, entries))
        with run.stage("weights"):
            weights = writing.result()
    tested = _self_test(run, context, described[0][0], store) if self_test else None
    programs, name = [], name or type(context.model).__name__
    for one, (methods, _), (extra, stored_origins, entries) in zip(traced, described, compiled, strict=True):
        parts = documents.ProgramParts(methods, extra, weights, tested, stored_origins, one.optimizers)
        programs.append((documents.assemble(name, in_progress.producer, one.context, parts), entries))
    return programs


def _self_test(run: Run, context: BuildContext, methods: Mapping[str, schema.Method], store: BlobStore) -> schema.Descriptor:
    """Record a step of the model in eager."""
    with run.stage("self-test"):
        recorded = methods.get("train") or next(method for method in methods.values() if not method.function)
        return record(context.module, recorded, context.args, context.kwargs, store)


def _with_methods(report: BuildReport, traced: Sequence[TracedMethod], options: Options) -> BuildReport:
    """Add the methods that were built, and what each saves for its backward."""
    saved = {m.plan.name: m.convention.saved_bytes for m in traced if m.convention.backward is not None}
    built = {m.plan.name for m in traced}
    return replace(report, methods=tuple(plan.name for plan in options.plans if plan.name in built), saved_bytes=saved)


@contextlib.contextmanager
def _warmed(
    run: Run, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options
) -> Iterator[torch.nn.Module | Callable[..., Any]]:
    """Yield the model, or with ``warm_up`` a copy of it that has been called."""
    with contextlib.ExitStack() as stack:
        if options.warm_up:
            with run.stage("warm-up"):
                plans = [(plan, not plan.optional) for plan in options.plans if not plan.function]
                model = stack.enter_context(warmed_up(model, args, kwargs, plans))
        yield model


@one_build()
def compile_bundle(
    bundle: str | Path,
    targets: Sequence[str],
    *,
    out: str | Path,
    trust: str | Collection[str] | None = None,
    self_test: bool = False,
    cache: bool | Literal["objects"] = True,
    layout: Literal["file", "directory"] = "file",
    specializations: Sequence[Mapping[str, int]] = (),
    subclasses: Collection[type] = (),
    tune: bool = False,
    allow_untested_torch: bool = False,
    provenance: bool = False,
    sbom: bool = False,
    builder: str = UNNAMED_BUILDER,
    observer: Observer | None = None,
) -> BuildReport:
    """Compile the graphs of a bundle for further targets, without the model's source.

    The program, its weights and the existing targets stay the same, byte for byte. This process
    must have registered all operators that are not torch's own. If the old bundle is trusted, the
    new one is recorded as built by this user, so that its native code runs.

    Args:
        bundle: the ``.aotpack`` file or directory. It may be the one that ``out`` replaces.
        targets: the targets to add: ``"cpu:x86-64-v4"``, ``"portable"``.
        out: the ``.aotpack`` file (or directory) to write.
        trust: whether the old bundle is trusted, as ``aotpack_loader.load`` takes it.
        self_test: before writing, run the bundle's recorded inputs on each new target that can run
            on this machine.
        cache: reuse the compiled code of unchanged graphs. ``"objects"`` lowers every graph again, and
            reuses the objects of unchanged generated sources. ``False`` compiles everything.
        layout: ``"file"`` or ``"directory"``.
        specializations: the sizes that targets for fixed sizes are compiled for, as :func:`build`
            takes them.
        subclasses: the tensor subclasses in the bundle, as ``aotpack_loader.load`` takes them.
            ``self_test`` needs them.
        tune: as :func:`build` takes it, for the added targets.
        allow_untested_torch: as :func:`build` takes it.
        provenance: as :func:`build` takes it. What is attached to the old bundle is not kept, because
            it is about another digest.
        sbom: as :func:`build` takes it.
        builder: as :func:`build` takes it.
        observer: is notified of progress. By default, a terminal or a notebook shows it; ``Silent()`` shows none.

    Raises:
        UnsupportedTorchError: as :func:`build`.
        BundleError: there is no bundle at that path, or it is damaged, or its format is too new.
        BuildError: a target is unknown or already in the bundle, cannot compile the graphs, or
            computes other values than those recorded. Nothing was written.
        TrustError: ``self_test`` would run native code of a bundle that is not trusted.
    """
    chosen = check_compile(targets, specializations, out, layout)
    run = Run(observer)
    fixes = _checked_torch(run, chosen, allow_untested_torch)
    if tune:
        finish.tune(run, chosen)
    with (
        gc_tuned_for_build(),
        without_gpus(),
        flags_of_this_thread(),
        Bundle.open(bundle) as opened,
        free_sizes(),
        _sizes_fixed(),
        BlobStore(out) as store,
    ):
        reopen.refuse_targets(opened, chosen)
        opened = reopen.program_for(opened, chosen)
        trusted = decide_trust(opened.digest, trust, opened)
        with run.stage("restore"):
            graphs = specialize(reopen.graphs_of(opened), specializations)
            graphs = of_updates(graphs, opened.program.optimizers.values(), opened.program.state)
        requested = AttachmentRequest(
            provenance,
            sbom,
            builder,
            COMPILE_TYPE,
            {"targets": targets, "specializations": specializations, "tune": tune, "allow_untested_torch": allow_untested_torch},
            [Material(opened.program.name, hex_part(opened.digest))],
            [TargetEntry(found.target, found.platform, found.manifest.layers) for found in opened.manifests.values()],
        )
        in_progress = finish.BundleInProgress(run, _producer(), fixes, store, CompileCache(cache), out, layout, requested)
        with reopen.deterministic_algorithms(reopen.uses_deterministic_algorithms(opened.program)):
            entries = finish.compile_targets(in_progress, chosen, graphs, opened.program.state, opened.origins())
        kept = reopen.keep(opened, store)
        if self_test:
            finish.self_test(in_progress, opened.program, entries, kept, subclasses, trusted=trusted.trusted)
        marked = checking.left_out(entries).mark(entries)
        report = finish.write(in_progress, [(opened.program, entry) for entry in marked], kept)
        present = tuple(opened.targets)
    if trusted.trusted:
        record_built(report.digest)
    else:
        run.warn(
            f"native code of the new bundle runs only with trust={report.digest!r}, because of the old one: {trusted.reason}"
        )
    return replace(report, targets=present + report.targets, warnings=tuple(run.warnings))


def _checked_torch(run: Run, targets: Sequence[Target], allow_untested: bool) -> Callable[[Target], dict[str, str]]:
    """Check the version of torch.

    Return the function that makes a target's toolchain record of the torch fixes.

    Raises:
        UnsupportedTorchError: aotpack was not tested with this torch, and ``allow_untested`` is
            false.
    """
    untested = check_torch(inductor=any(target.capabilities.uses_inductor for target in targets), allow_untested=allow_untested)
    if untested:
        run.warn(f"torch {torch.__version__} was not tried with aotpack {__version__}: compare the bundle with eager")
    return lambda target: record_of_fixes(inductor=target.capabilities.uses_inductor, untested=untested)


@contextlib.contextmanager
def _sizes_fixed() -> Iterator[None]:
    """Apply the fixes of symbolic shapes and of fake tensors. The whole build needs them."""
    with apply_fixes("symbolic_shapes"), apply_fixes("fake_tensor"):
        yield


def _producer() -> schema.Producer:
    return schema.Producer(__version__, str(torch.__version__))
