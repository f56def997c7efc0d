"""From a program and its graphs to a bundle: the targets' code, then the file. Every way to make a bundle ends here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from aotpack_loader.format import schema
from aotpack_loader.trust import record_built

from .bundle import BlobStore, TargetEntry, write_bundle
from .cache import CompileCache
from .progress import BuildReport, Run
from .targets import GraphToCompile, Target


@dataclass(frozen=True)
class Making:
    """A bundle being made: ``out`` is where it goes to, ``layout`` in which form."""

    run: Run
    store: BlobStore
    cache: CompileCache
    out: Path | str
    layout: Literal["file", "directory"]


def compile_targets(making: Making, targets: Sequence[Target], graphs: Sequence[GraphToCompile]) -> list[TargetEntry]:
    """Every target's code, in the store."""
    entries = []
    for target in targets:
        with making.run.stage("compile", target.name):
            entries.append(target.compile(graphs, making.store, making.cache))
    return entries


def write(making: Making, program: schema.Program, entries: Sequence[TargetEntry]) -> BuildReport:
    """Write the bundle, record it as this user's, and say what was made."""
    run, cache = making.run, making.cache
    shared = [*_graphs(program), *program.weights, *([program.self_test] if program.self_test else [])]
    complete = [entry._replace(layers=_distinct([*shared, *entry.layers])) for entry in entries]
    with run.stage("write"):
        digest = write_bundle(making.out, making.store, program, complete, layout=making.layout)
    record_built(digest)
    if cache.hits:
        run.note(f"{cache.hits} of {cache.hits + cache.misses} compiled graphs came from the cache")
    return BuildReport(
        out=Path(making.out),
        digest=digest,
        size=_size(Path(making.out)),
        stages=tuple(run.stages),
        notes=tuple(run.notes),
        warnings=tuple(run.warnings),
        targets=tuple(entry.target.name for entry in entries),
        methods=tuple(program.methods),
        cache_hits=cache.hits,
    )


def _graphs(program: schema.Program) -> list[schema.Descriptor]:
    found = []
    for method in program.methods.values():
        found += [method.forward, *([method.backward.graph] if method.backward else [])]
    return found


def _distinct(descriptors: Sequence[schema.Descriptor]) -> list[schema.Descriptor]:
    return list({descriptor.digest: descriptor for descriptor in descriptors}.values())


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size
