"""Compiles a program's graphs for the targets and writes the bundle.

Both ``build`` and ``compile_bundle`` end here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from msgspec import structs

from aotpack_loader.archive.manifests import require_one_model
from aotpack_loader.archive.temporaries import temporary_directory
from aotpack_loader.errors import BuildError, Problem, TargetError
from aotpack_loader.format import media_types, schema
from aotpack_loader.format.origins import modules_of
from aotpack_loader.format.validate_target import validate_target
from aotpack_loader.format.validate_xla import validate_computations
from aotpack_loader.format.versions import OWN_GRAPHS
from aotpack_loader.selftest import run_self_test

from .._torch.inductor.codegen.events import mark_origins
from ..targets import GraphToCompile, Target, by_kind
from ..writer.bundle import BlobStore, Existing, TargetEntry, write_bundle
from ..writer.cache import CompileCache
from .documents import as_a_loader
from .progress import BuildReport, Run
from .provenance import AttachmentRequest


@dataclass(frozen=True)
class BundleInProgress:
    """A bundle that is being made.

    ``out`` is its path and ``layout`` its form. ``producer`` names the versions that make it.
    ``fixes`` returns what a target's toolchain record says about the torch fixes. ``requested`` are the
    documents that are written beside the bundle.
    """

    run: Run
    producer: schema.Producer
    fixes: Callable[[Target], dict[str, str]]
    store: BlobStore
    cache: CompileCache
    out: Path | str
    layout: Literal["file", "directory"]
    requested: AttachmentRequest = field(default_factory=AttachmentRequest)


def compile_targets(
    in_progress: BundleInProgress,
    targets: Sequence[Target],
    graphs: Sequence[GraphToCompile],
    state: Sequence[schema.StateEntry],
    origins: schema.Origins | None,
) -> list[TargetEntry]:
    """Compile a program's graphs for every target. The code goes into the store.

    Compiled kernels are named after the modules in ``origins``. Variants of one target are compiled
    together.
    """
    for item in graphs:
        mark_origins(item.module, modules_of(origins, item.key, len(item.graph.nodes)))
    entries: dict[str, TargetEntry] = {}
    for group in by_kind(targets):
        with in_progress.run.stage("compile", ", ".join(target.name for target in group)):
            compiled = group[0].compile_variants(group, graphs, state, in_progress.store, in_progress.cache)
        for target, entry in zip(group, compiled, strict=True):
            toolchain = entry.target.toolchain | in_progress.fixes(target)
            entries[target.name] = entry._replace(target=structs.replace(entry.target, toolchain=toolchain))
    return [entries[target.name] for target in targets]


def tune(run: Run, targets: Sequence[Target]) -> None:
    """Measure alternatives for the code of the targets that have some.

    Raises:
        BuildError: none has.
    """
    tunable = [target for target in targets if target.capabilities.tunes]
    if not tunable:
        raise BuildError(
            "Nothing can be tuned: no target chooses between libraries.",
            hint='Build with targets=("cpu",), or leave out tune=True.',
        )
    for target in tunable:
        with run.stage("tune", target.name):
            choice = target.tune()
        run.note(f"{target.name}: products of matrices are {choice}")


def write(
    in_progress: BundleInProgress, made: Sequence[tuple[schema.Program, TargetEntry]], existing: Existing | None = None
) -> BuildReport:
    """Write the bundle and return a report.

    ``made`` has the targets, each with its program. With ``existing``, the bundle also holds those targets.

    Raises:
        UnsupportedError: the programs differ in more than their graphs.
    """
    run, cache, store = in_progress.run, in_progress.cache, in_progress.store
    if len({id(own) for own, _ in made}) > 1:
        made = _with_own_graphs(made)
    program = made[0][0]
    completed = [complete(entry, own, in_progress.producer) for own, entry in made]
    completed = [
        entry if own is program else entry._replace(config=store.add_document(own, media_types.PROGRAM))
        for (own, _), entry in zip(made, completed, strict=True)
    ]
    with run.stage("write"):
        digest = write_bundle(
            in_progress.out,
            store,
            program,
            completed,
            layout=in_progress.layout,
            existing=existing,
            attachments=lambda index: in_progress.requested.attachments(index, program, completed),
        )
    if cache.hits:
        run.note(f"{cache.hits} of {cache.hits + cache.misses} compiled graphs came from the cache")
    return BuildReport(
        out=Path(in_progress.out),
        digest=digest,
        size=_size(Path(in_progress.out)),
        stages=tuple(run.stages),
        notes=tuple(run.notes),
        warnings=tuple(run.warnings),
        targets=tuple(entry.target.name for entry in completed),
        methods=tuple(program.methods),
        cache_hits=cache.hits,
    )


def _with_own_graphs(made: Sequence[tuple[schema.Program, TargetEntry]]) -> Sequence[tuple[schema.Program, TargetEntry]]:
    """The targets with programs that name the feature, unless all programs are equal."""
    first = made[0][0]
    if all(own == first for own, _ in made):
        return [(first, entry) for _, entry in made]
    named = {id(own): structs.replace(own, features=sorted({*own.features, OWN_GRAPHS})) for own, _ in made}
    with as_a_loader():
        require_one_model(list(named.values()))
    return [(named[id(own)], entry) for own, entry in made]


def self_test(
    in_progress: BundleInProgress,
    program: schema.Program,
    entries: Sequence[TargetEntry],
    existing: Existing,
    subclasses: Collection[type],
    *,
    trusted: bool,
) -> None:
    """Run the recorded inputs on each new target that can run on this machine.

    Raises:
        BuildError: a target computes other values than those recorded.
        TrustError: a target is native code, and the bundle is not ``trusted``.
        SubclassError: the bundle holds tensors of a class that is not in ``subclasses``.
    """
    if program.self_test is None:
        in_progress.run.warn("no self-test is recorded in the bundle, so none was run")
        return
    completed = [complete(entry, program, in_progress.producer) for entry in entries]
    parent = Path(in_progress.out).absolute().parent
    with in_progress.run.stage("self-test"), temporary_directory(parent) as folder:
        candidate = folder / "candidate"
        digest = write_bundle(candidate, in_progress.store, program, completed, layout="directory", existing=existing)
        for entry in completed:
            try:
                operators = program.requirements.operators
                report = run_self_test(candidate, entry.target.name, digest if trusted else None, operators, subclasses)
            except TargetError as error:
                in_progress.run.warn(f"{entry.target.name} was not tested: {error}")
                continue
            wrong = [Problem(row, f"error {found:.2e}, tolerance {limit:.2e}") for row, found, limit, ok in report.rows if not ok]
            if wrong:
                raise BuildError(f"The results of target {entry.target.name!r} differ from the recorded self-test.", wrong)
            worst = max((found for _, found, _, _ in report.rows), default=0.0)
            in_progress.run.note(
                f"{entry.target.name}: the self-test's {len(report.rows)} tensors agree, largest error {worst:.2e}"
            )


def complete(entry: TargetEntry, program: schema.Program, producer: schema.Producer) -> TargetEntry:
    """Return a target with all blobs that it needs, validated as a loader validates it."""
    target = entry.target if producer == program.producer else structs.replace(entry.target, producer=producer)
    with as_a_loader():
        validate_target(target, program, f"target {target.name!r}")
        validate_computations(target, program, f"target {target.name!r}")
    shared = [*_graphs(program), *program.weights, *filter(None, (program.self_test, program.origins))]
    return entry._replace(target=target, layers=_distinct([*shared, *entry.layers]))


def _graphs(program: schema.Program) -> list[schema.Descriptor]:
    found = []
    for _, method in sorted(program.methods.items()):
        found += [method.forward, *([method.backward.graph] if method.backward else [])]
    return found


def _distinct(descriptors: Sequence[schema.Descriptor]) -> list[schema.Descriptor]:
    return list({descriptor.digest: descriptor for descriptor in descriptors}.values())


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size
