"""Reads the documents of an open layout, from ``index.json`` to the program and its targets, and checks references.

:class:`~.bundle.Bundle` keeps what is read here. Other modules interpret a program or graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import structs

from ..errors import CorruptBundleError, NotABundleError, Problem
from ..format import media_types
from ..format.codec import decode
from ..format.schema import (
    Descriptor,
    Document,
    ImageIndex,
    Manifest,
    Platform,
    Producer,
    Program,
    Requirements,
    Target,
    Version,
)
from ..format.validate import validate_program
from ..format.versions import OWN_GRAPHS, check_version
from .layout import Layout

MAX_TARGETS = 1024
_SHOWN = 50
_KINDS = {
    "a graph": (media_types.GRAPH,),
    "weights": (media_types.WEIGHTS,),
    "a self-test": (media_types.SELF_TEST,),
    "origins of nodes": (media_types.ORIGINS,),
    "a list of fallbacks": (media_types.CODE_FALLBACKS,),
    "aoti code": (media_types.CODE_AOTI,),
    "an HLO module": (media_types.CODE_HLO,),
    "a StableHLO module": (media_types.CODE_STABLEHLO,),
    "an executable of XLA": (media_types.CODE_PJRT,),
    "a call library": (media_types.CODE_CALL,),
    "a kernel": (media_types.CODE_CUBIN,),
    "PTX": (media_types.CODE_PTX,),
}


class ProgramPreamble(Document, frozen=True):
    """The fields that decide whether the rest of a program can be decoded. ``features`` is untyped for that reason."""

    format: Version
    features: object = None


class TargetManifest(msgspec.Struct, frozen=True):
    """One target with the manifest that lists its blobs, the descriptor of that manifest, and the target's program."""

    target: Target
    manifest: Manifest
    descriptor: Descriptor
    program: Program

    @property
    def platform(self) -> Platform | None:
        """The OCI platform the target is for; None: any."""
        return self.descriptor.platform


def listed(layout: Layout) -> tuple[Descriptor, list[Descriptor]]:
    """Return the entries of ``index.json``: the bundle index, and the manifests of attachments."""
    top = decode(layout.read_index(), ImageIndex, where="index.json")
    if top.media_type not in ("", media_types.OCI_INDEX):
        raise NotABundleError(f"index.json of {layout.path!r} is a {top.media_type}, not an OCI image index.")
    beside = [entry for entry in top.manifests if _is_attachment(entry)]
    bundles = [entry for entry in top.manifests if not _is_attachment(entry)] or top.manifests
    if len(bundles) != 1:
        raise NotABundleError(
            f"{layout.path!r} is an OCI image layout of {len(top.manifests)} images; a bundle has exactly one index."
        )
    (descriptor,) = bundles
    if descriptor.media_type == media_types.OCI_MANIFEST:
        raise NotABundleError(
            f"{layout.path!r} is an OCI image layout of one image, not of a bundle with its index.",
            hint="If it is a copy of a bundle, copy all of it: `aotpack copy`, or `skopeo copy --all`.",
        )
    # Tools that copy layouts (skopeo) drop artifactType here, but the bundle index has it.
    if descriptor.media_type != media_types.OCI_INDEX or descriptor.artifact_type not in ("", media_types.BUNDLE):
        kind = descriptor.artifact_type or descriptor.media_type
        raise NotABundleError(f"{layout.path!r} is an OCI image layout of a {kind}, not of an aotpack bundle.")
    return descriptor, beside


def _is_attachment(entry: Descriptor) -> bool:
    """Whether an entry of ``index.json`` is the manifest of an attachment. Targets are only below the bundle index."""
    return entry.media_type == media_types.OCI_MANIFEST and entry.artifact_type != media_types.BUNDLE


def require_few_targets(index: ImageIndex) -> None:
    """Refuse a bundle index that lists a manifest twice, or too many. Each is read as often as it is listed.

    Raises:
        CorruptBundleError: it does.
    """
    digests = {descriptor.digest for descriptor in index.manifests}
    if len(index.manifests) > MAX_TARGETS or len(digests) < len(index.manifests):
        raise CorruptBundleError(
            f"The bundle index lists {len(index.manifests)} manifests, {len(digests)} different ones.",
            hint=f"A bundle has at most {MAX_TARGETS} targets, each with a manifest of its own.",
        )


def read_manifest(layout: Layout, descriptor: Descriptor) -> Manifest:
    where = f"manifest {descriptor.digest}"
    if descriptor.media_type != media_types.OCI_MANIFEST:
        raise CorruptBundleError(f"The bundle index lists a {descriptor.media_type}, expected manifests only.")
    manifest = decode(layout.read(descriptor), Manifest, where=where)
    if manifest.artifact_type != media_types.BUNDLE:
        raise CorruptBundleError(f"The {where} has artifactType {manifest.artifact_type!r}.")
    if manifest.config.media_type != media_types.PROGRAM:
        raise CorruptBundleError(f"The config of {where} is a {manifest.config.media_type}, not a program.")
    return manifest


def read_programs(layout: Layout, manifests: list[Manifest]) -> list[Program]:
    """Return the program of each manifest. They are of one model: they differ in their graphs alone (M4)."""
    if not manifests:
        raise CorruptBundleError("The bundle has no targets.")
    configs = {manifest.config.digest: manifest.config for manifest in manifests}
    read = {digest: read_program(layout, config) for digest, config in configs.items()}
    if len(read) > 1:
        require_one_model(list(read.values()))
    return [read[manifest.config.digest] for manifest in manifests]


def require_one_model(programs: Sequence[Program]) -> None:
    """Refuse programs that differ in more than their graphs and calling conventions.

    Raises:
        CorruptBundleError: they do.
    """
    first, *others = map(_without_graphs, programs)
    if any(OWN_GRAPHS not in program.features for program in programs):
        raise CorruptBundleError("The targets of the bundle are not of one program.", hint=f"Such programs name {OWN_GRAPHS!r}.")
    if differing := [name for name in first.__struct_fields__ if any(getattr(o, name) != getattr(first, name) for o in others)]:
        problems = [Problem(f"program.{name}", "differs between targets") for name in differing]
        raise CorruptBundleError("The targets of the bundle are not of one program.", problems)


def _without_graphs(program: Program) -> Program:
    requirements = structs.replace(program.requirements, operators=[])
    return structs.replace(program, methods={}, origins=None, features=[], requirements=requirements)


def read_program(layout: Layout, descriptor: Descriptor) -> Program:
    data = layout.read(descriptor)
    try:
        program = decode(data, Program, where="program")
    except CorruptBundleError:
        _refuse_other_version(data)
        raise
    check_version(program)
    validate_program(program, "program")
    return program


def _refuse_other_version(data: memoryview) -> None:
    """Raise the version error for a program that cannot be decoded because it has another version."""
    preamble = decode(data, ProgramPreamble, where="program")
    features = preamble.features if isinstance(preamble.features, list) else []
    check_version(
        Program(
            format=preamble.format,
            features=[feature for feature in features if isinstance(feature, str)],
            name="",
            producer=Producer("", ""),
            requirements=Requirements(""),
            state=[],
            methods={},
        )
    )


def read_target(layout: Layout, descriptor: Descriptor, manifest: Manifest, program: Program) -> TargetManifest:
    where = f"manifest {descriptor.digest}"
    if not manifest.layers or manifest.layers[0].media_type != media_types.TARGET:
        raise CorruptBundleError(f"The first layer of {where} is not a target.")
    target = decode(layout.read(manifest.layers[0]), Target, where=f"target of {where}")
    for notes in (manifest.annotations, descriptor.annotations):
        if notes.get(media_types.ANNOTATION_TARGET, target.name) != target.name:
            raise CorruptBundleError(f"The {where} is annotated as another target than {target.name!r}.")
    return TargetManifest(target, manifest, descriptor, program)


def check_references(found: TargetManifest) -> None:
    """Check that each referenced blob has the right kind (D4) and is a layer of the target's manifest.

    A pull fetches only these layers.
    """
    layers = {(layer.digest, layer.size, layer.media_type) for layer in found.manifest.layers}
    problems: list[Problem] = []
    for where, descriptor, kind in _references(found.program, found.target):
        if len(problems) >= _SHOWN:
            break
        if descriptor.media_type not in _KINDS.get(kind, (descriptor.media_type,)):
            problems.append(Problem(where, f"{descriptor.digest} is a {descriptor.media_type}, not {kind}"))
        elif (descriptor.digest, descriptor.size, descriptor.media_type) not in layers:
            problems.append(Problem(where, f"{descriptor.digest} is not a layer of target {found.target.name!r}"))
    if problems:
        raise CorruptBundleError("The bundle refers to blobs of another kind, or that its manifest does not list.", problems)


def _references(program: Program, target: Target) -> Iterator[tuple[str, Descriptor, str]]:
    """Yield (path, descriptor, kind) for every blob that running ``program`` on ``target`` may need."""
    for name, method in program.methods.items():
        yield f"program.methods.{name}.forward", method.forward, "a graph"
        if method.backward is not None:
            yield f"program.methods.{name}.backward.graph", method.backward.graph, "a graph"
    for position, weights in enumerate(program.weights):
        yield f"program.weights[{position}]", weights, "weights"
    if program.self_test is not None:
        yield "program.self_test", program.self_test, "a self-test"
    if program.origins is not None:
        yield "program.origins", program.origins, "origins of nodes"
    for name, executable in target.executables.items():
        yield f"target.executables.{name}.code", executable.code, f"{target.kind} code"
        if executable.fallbacks is not None:
            yield f"target.executables.{name}.fallbacks", executable.fallbacks, "a list of fallbacks"
        for kernel, found in executable.kernels.items():
            yield f"target.executables.{name}.kernels.{kernel}.code", found.code, "a kernel"
            if found.ptx is not None:
                yield f"target.executables.{name}.kernels.{kernel}.ptx", found.ptx, "PTX"
    if target.xla or target.specializations:
        yield from _references_of_computations(target)
    if target.call is not None:
        yield "target.call.code", target.call.code, "a call library"


def _references_of_computations(target: Target) -> Iterator[tuple[str, Descriptor, str]]:
    from ..format.computations import computations  # rarely needed, so not imported at every start

    for path, _, computation in computations(target):
        if computation.hlo is not None:
            yield f"target.{path}.hlo", computation.hlo, "an HLO module"
        if computation.stablehlo is not None:
            yield f"target.{path}.stablehlo", computation.stablehlo, "a StableHLO module"
        if computation.code is not None:
            yield f"target.{path}.code", computation.code, "an executable of XLA"
