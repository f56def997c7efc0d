"""Rows of the conformance table on an XLA device, some of each area; scripts/conformance-xla runs all of them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from conformance.table import CASES

from . import rows

PASS = (
    "input mutation: data of a non-leaf that feeds the backward",
    "input mutation: through a chain of views, non-leaf",
    "input mutation: out= of another type, mean",
    "outputs: alias of input, unfold",
    "buffer mutated: chain of views of a buffer",
    "buffer mutated: assigned anew",
    "outputs: alias of intermediate, base also output, in place afterwards",  # X6
    "outputs: alias of intermediate without gradients",
    "outputs: multi-output views of an intermediate, unbind and base",
    "outputs: views that change requires_grad, mixed",
    "autograd: torch.autograd.grad of some",
    "autograd: an LSTM of whose arguments none needs a gradient",
    "tied weights",
    "tied weights: the same layer twice",
    "shapes: two free sizes",
    "shapes: a sum of several sizes",  # a decomposition for lowering has unfold in it
    "control flow: flex attention, grouped queries",
    "control flow: flex attention, mask made inside",
    "compiled: quotients rounded down, portable",
    "custom operators: writes to a part of a tensor",
    "subclasses: nested",
    "subclasses: mutated by a subclass argument",
    "subclasses: hooks",
    "subclasses: equal gradients, accumulated",
    "losses: labels of one example, portable",
    "as_strided: a few elements of a result",
    "as_strided: elements of a turned result",
)
REFUSED = {
    "input mutation: metadata and data": "changes sizes, strides or the storage",
    "outputs: sparse": "returns as result 0 a sparse tensor",
    "subclasses: views of an input": "returns as result 0 a view of an argument beside tensor subclasses",
    "subclasses: a part is returned": "is in the memory of an argument",
    "shapes: unbacked, views": "varies from call to call",
    "shapes: as_strided with an offset, an offset input at call, portable": r"reads x by as_strided, with an offset",
    "as_strided: images of any number": "as_strided of a tensor that is not contiguous",
    "as_strided: slices, portable": "has a size that varies from call to call",
    "as_strided: elements with gaps": "as_strided view with gaps",
    "gradient writes: a gradient of two inputs, trace": "backward writes to a gradient that is also used elsewhere",
    "gradient writes: a gradient of two inputs, in a hook, trace": "a hook that writes to a gradient that is also used elsewhere",
    "identity: aliasing inputs, one mutated, disjoint": "at the call: .*shares its memory with",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PASS)
def test_eager_and_bundle_agree(name: str, tmp_path: Path) -> None:
    """Values, gradients, mutations, who is whom, who shares memory."""
    assert rows.run(rows.named(CASES, name), tmp_path) == rows.Outcome("pass")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path) -> None:
    """With a reason, and before anything is changed."""
    outcome = rows.run(rows.named(CASES, name), tmp_path)
    assert outcome.status == "refused"
    assert re.search(REFUSED[name], outcome.reason, re.DOTALL)


@pytest.mark.filterwarnings("ignore")
def test_a_known_difference_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "outputs: multi-output views, unbind, in place afterwards (eager raises)"
    known = rows.KNOWN[name]
    assert rows.run(rows.named(CASES, name), tmp_path) == rows.Outcome("known", known.cause)
    monkeypatch.setitem(rows.KNOWN, name, rows.Known(known.cause, "structure: of another kind"))
    assert rows.run(rows.named(CASES, name), tmp_path).status == "wrong"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, known in rows.KNOWN.items() if 0 < known.within <= 1 and not known.rounding])
def test_known_differences_of_values_are_bounded(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = rows.KNOWN[name]
    assert rows.run(rows.named(CASES, name), tmp_path) == rows.Outcome("known", known.cause)
    monkeypatch.setitem(rows.KNOWN, name, replace(known, within=1e-6))
    outcome = rows.run(rows.named(CASES, name), tmp_path)
    assert outcome.status == "wrong"
    assert re.search(rf"{rows.VALUES} by [\d.e-]+ of the largest", outcome.reason)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, known in rows.KNOWN.items() if known.rounding])
def test_roundings_differ_within_their_bound(name: str, tmp_path: Path) -> None:
    """On processors that round as eager does, there is no difference."""
    outcome = rows.run(rows.named(CASES, name), tmp_path)
    assert outcome in (rows.Outcome("pass"), rows.Outcome("known", rows.KNOWN[name].cause))
