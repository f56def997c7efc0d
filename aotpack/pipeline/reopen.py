"""Reads an existing bundle back into the pipeline: its graphs for further targets to compile, and its blobs unchanged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch
from torch.fx import GraphModule

from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.devices import operators
from aotpack_loader.errors import AotpackError, BuildError, Problem, UnsupportedVersionError
from aotpack_loader.format import schema, subgraphs
from aotpack_loader.format.versions import torch_satisfies

from ..graph.restore import symbols_of, to_fx
from ..targets import GraphToCompile, Target, graphs_to_compile
from ..writer.bundle import BlobStore, Existing


def refuse_targets(bundle: Bundle, targets: Sequence[Target]) -> None:
    """Refuse targets that the bundle already has.

    Raises:
        BuildError: names these targets.
    """
    if present := [target.name for target in targets if target.name in bundle.targets]:
        raise BuildError(
            f"The bundle {bundle.path!r} has {', '.join(present)} already.",
            hint=f"It has: {', '.join(bundle.targets)}. Leave out what is there, or build the bundle anew.",
        )


def program_for(bundle: Bundle, targets: Sequence[Target]) -> Bundle:
    """Return the bundle with the program that further targets are compiled from: of a target of their kind, or the first."""
    kinds = {target.name.partition(":")[0] for target in targets}
    like = next((name for name in bundle.targets if name.partition(":")[0] in kinds), next(iter(bundle.targets)))
    return bundle.for_target(like)


def graphs_of(bundle: Bundle) -> list[GraphToCompile]:
    """Restore all graphs of a bundle, with fake tensors over the symbols of their methods.

    Raises:
        BuildError: this process lacks an operator of the graphs, or its torch does not match them
            or cannot restore them.
        UnsupportedError: a graph uses names or symbols that torch does not have.
        CorruptBundleError: a graph is missing or damaged.
    """
    program = bundle.program
    stored = {name: _halves(bundle, name, method) for name, method in program.methods.items()}
    _require(program, [graph for halves in stored.values() for graph in halves.values()])
    found: dict[str, tuple[schema.Graph, GraphModule]] = {}
    for name, halves in stored.items():
        with _restoring(name):
            symbols = symbols_of(program.methods[name], list(halves.values()))
        for key, graph in halves.items():
            with _restoring(key):
                found[key] = (graph, to_fx(graph, symbols))
    return graphs_to_compile(program.methods, found)


def keep(bundle: Bundle, store: BlobStore) -> Existing:
    """Add all blobs of a bundle to ``store``. The bundle must stay open until they are written."""
    manifests = [found.descriptor for found in bundle.manifests.values()]
    below = [layer for found in bundle.manifests.values() for layer in found.manifest.layers]
    blobs = [*(found.manifest.config for found in bundle.manifests.values()), *manifests, *below]
    for descriptor in {blob.digest: blob for blob in blobs}.values():
        store.add_blob(descriptor, bundle.map(descriptor))
    return Existing(bundle.config, manifests, {blob.digest for blob in blobs})


def uses_deterministic_algorithms(program: schema.Program) -> bool:
    """Whether a method was traced for deterministic algorithms.

    Its compiled code must then use them too.
    """
    return any(method.deterministic for method in program.methods.values())


@contextlib.contextmanager
def deterministic_algorithms(enabled: bool) -> Iterator[None]:
    """Set torch's deterministic algorithms as they were when the graphs were traced, and restore the setting."""
    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(enabled)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


def _halves(bundle: Bundle, name: str, method: schema.Method) -> dict[str, schema.Graph]:
    found = {f"{name}.forward": bundle.graph(method.forward)}
    if method.backward is not None:
        found[f"{name}.backward"] = bundle.graph(method.backward.graph)
    return found


def _require(program: schema.Program, graphs: Sequence[schema.Graph]) -> None:
    """Refuse graphs that this process cannot run: of another torch, or with operators that are not registered."""
    needed = program.requirements.torch
    if not torch_satisfies(torch.__version__, needed):
        raise BuildError(f"The bundle's graphs are for torch {needed}; this is {torch.__version__}.")
    names = {node.op for graph in graphs for node in subgraphs.all_nodes(graph)}
    try:
        operators.require(name for name in names if name.partition(".")[0] not in ("builtin", "higher_order"))
    except UnsupportedVersionError as error:
        spaces = ", ".join(program.requirements.operators) or "none beyond torch's"
        raise BuildError(
            "The bundle calls operators that this process does not have.",
            error.problems,
            hint=f"It requires operators of: {spaces}. Import what registers them first (aotpack compile --import MODULE).",
        ) from error


@contextlib.contextmanager
def _restoring(what: str) -> Iterator[None]:
    """Turn torch's errors about a stored graph into a :class:`BuildError`."""
    try:
        yield
    except AotpackError:
        raise
    except Exception as error:
        message = next(iter(str(error).strip().splitlines()), "")
        raise BuildError(
            f"torch {torch.__version__} cannot restore the graphs of {what}.",
            [Problem(what, f"{type(error).__name__}: {message}")],
            hint="Compile with the torch release that the bundle was built with (aotpack inspect).",
        ) from error
