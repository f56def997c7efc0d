"""The page of ``aotpack diff --html``: what changed between two bundles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from markupsafe import Markup

from ..diff import Change, Difference
from .page import Page, Section, fragment, render

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle

    from ..weights import WeightChange


def diff_page(
    first: Bundle, second: Bundle, paths: tuple[str, str], found: Difference, weights: Sequence[WeightChange] | None
) -> str:
    """Return the page of a comparison as HTML. ``weights`` None: their values were not compared."""
    bundles = [(label, path, each.digest) for label, path, each in zip(("first", "second"), paths, (first, second), strict=True)]
    verdicts = [("Calls", found.calls_fit), ("Checkpoints", found.checkpoints_fit)]
    ordered = None if weights is None else sorted(weights, key=lambda change: -change.relative)
    graphs = _changes("graphs", found.graphs) + fragment("diff/modules", modules=found.modules)
    sections = [
        Section(
            "verdict",
            "Verdict",
            fragment("diff/verdict", verdicts=verdicts, sharing=found.sharing, equal=found.equal, bundles=bundles),
        ),
        Section("calls", "Calls", _changes("calls", found.calls), "Whether a call of the first bundle is one of the second."),
        Section("state", "State", _changes("state", found.state), "Whether a checkpoint of the first loads into the second."),
        Section("graphs", "Graphs", graphs),
        Section("weights", "Weights", fragment("diff/weights", weights=ordered), "Values of tensors that both bundles have."),
        Section("targets", "Targets", _changes("targets", found.targets)),
        Section("producer", "Built with", _changes("producer", found.producer)),
    ]
    name = second.program.name or "bundle"
    return render(Page(f"{name}: what changed", f"What changed in {name}", f"{paths[0]} → {paths[1]}", sections))


def _changes(name: str, changes: Sequence[Change]) -> Markup:
    ordered = sorted(changes, key=lambda change: not change.breaks)
    return fragment("diff/changes", id=f"{name}-changes", changes=ordered)
