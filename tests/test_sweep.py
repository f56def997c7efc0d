"""scripts/conformance itself: a sweep of three operators, its workers, its fresh process and its results."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from devtools.conformance import worker
from devtools.conformance.check import Checker, Outcome
from devtools.conformance.found import Found
from devtools.conformance.observe import observe
from devtools.conformance.report import markdown
from devtools.conformance.results import COUNTS, Results
from devtools.conformance.samples import Sample, Unit, samples, together
from devtools.conformance.sizes import at_other_sizes
from devtools.conformance.worker import BuildContext, at_unusual_values, next_group, several


def test_a_sweep_of_three_operators(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "devtools.conformance", "--databases", "op_db", "--dtypes", "float32"]
    options = ["--ops", "sin", "addmm", "equal", "--samples", "2", "--json", "--results", str(tmp_path / "results.json")]
    options += ["--partial", str(tmp_path / "partial.jsonl")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    results = json.loads(done.stdout)
    assert results["fresh_process"] == {"bundles": 12, "wrong": {}}
    assert results["operators"] == 4  # addmm has a decomposed variant
    assert list(results["failures"]) == ["op_db/equal"]
    refusals = results["failures"]["op_db/equal"]  # one a hint: the branch goes one way for the example, or both
    for refused in refusals:
        assert refused["status"] == "refused"
        assert "aten.equal.default" in refused["reason"]
        assert refused["peer"].startswith("raises DataDependent")
    counted = sum((Counter(refused["samples"]) for refused in refusals), Counter())
    assert counted == {"float32 static": 2, "float32 dynamic": 2}

    before = _outcomes(tmp_path / "partial.jsonl")
    assert {(unit, name) for unit, name, _ in before} >= {("op_db/sin/float32/static", name) for name in ("0", "0 in-place")}
    assert results["totals"]["portable"]["total"] == len(before)
    more = [*command, *options, "--resume", "--samples", "3"]
    again = subprocess.run(more, capture_output=True, text=True, timeout=600, check=False)
    after = _outcomes(tmp_path / "partial.jsonl")
    assert after[: len(before)] == before
    assert len(after) == len({(unit, name) for unit, name, _ in after}) > len(before)  # nothing was done twice
    assert json.loads(again.stdout)["totals"]["portable"]["total"] == len(after)

    (tmp_path / "partial.jsonl").unlink()  # another machine: it does what is left of units, which is all of each
    subprocess.run([*more[:-2], "--sizes", "static"], capture_output=True, text=True, timeout=600, check=True)
    units = Results.read(tmp_path / "results.json").units
    assert units["op_db/sin/float32/static"].complete  # after three samples
    assert {unit.split("/")[1] for unit, _, _ in _outcomes(tmp_path / "partial.jsonl")} == {"equal", "addmm", "addmm.decomposed"}


def test_samples_are_built_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As one sample: its results are theirs, what is written to is each one's own; a bundle that does not pass is halved."""
    every = list(samples(Unit("op_db", "mul", "float32", False, "portable")))
    chosen = [sample for sample in every if sample.name in ("0", "0 in-place", "1")]
    one = together([*chosen, chosen[1]])
    seen = observe(one.function, one)
    assert seen.written == {f"args[{place}]" for place in one.written} != set()
    assert len(seen.structure) == 1 + len(chosen) + 1
    for i, sample in enumerate([*chosen, chosen[1]]):
        alone = observe(sample.function, sample)
        assert torch.equal(seen.tensors[f"out[{i}]"].value, alone.tensors["out"].value)

    built: list[list[str]] = []
    told: list[tuple[str, str, str]] = []

    class Refusing(Checker):
        """Builds nothing; what has sample 5 in it does not pass."""

        def passes(self, sample: Sample, keep_as: str = "") -> bool:
            built.append(sample.name.split(" + "))
            return "5" not in built[-1]

        def again(self, sample: Sample) -> Outcome | None:
            return None

        def __call__(self, sample: Sample, keep_as: str = "") -> Outcome:
            return Outcome(sample.name, "refused" if sample.name == "5" else "pass")

    def tell(**words: str) -> None:
        if "status" in words:
            told.append((words["unit"], words["sample"], words["status"]))

    monkeypatch.setattr(worker, "Checker", Refusing)
    operators = [Unit("op_db", name, "float32", False, "portable") for name in ("mul", "exp")]
    works = [BuildContext(unit, set(), tmp_path, tell, count=None, until=float("inf"), values=False) for unit in operators]
    tried = {(str(operators[1]), "0")}
    while (group := next_group(works, tried, 8)) is not None:
        several(group)
    assert max(map(len, built)) == 8
    assert {status for _, _, status in told} == {"pass"}
    assert (str(operators[0]), "5", "pass") not in told
    assert (str(operators[1]), "0", "pass") not in told
    for work in works:
        work.alone()
        assert work.done == {sample.name for sample in work.every}
    assert len(told) == sum(len(work.every) for work in works)  # nothing was done twice
    assert [(unit, name) for unit, name, status in told if status == "refused"] == [(str(operators[0]), "5")]


def test_results_are_kept_by_unit(tmp_path: Path) -> None:
    """Of a unit the run of more samples counts, of as many the later one; the rest stays as it was; a file holds it all."""
    file = tmp_path / "conformance.json"
    first = _results({"op_db/sin/float32/static": "pp", "op_db/cos/float32/static": "pprr", "op_db/tan/float32/static": "p"}, 4)
    first.fresh = {"bundles": 5, "wrong": {"op_db-sin-float32-static-0": "out: values differ"}}
    Results().with_later(first, []).write(file)
    kept = Results.read(file)
    assert kept.recorded()["rows"]["op_db/float32/static"] == _counts(**{"pass": 5, "refused": 2, "left": 5, "total": 7})
    assert [failure["samples"] for failure in kept.recorded()["failures"]["op_db/cos"]] == [{"float32 static": 2}]

    fewer = _results({"op_db/cos/float32/static": "pp"}, 4)
    assert kept.with_later(fewer, list(fewer.units)).units == kept.units
    mended = _results({"op_db/cos/float32/static": "pppp", "op_db/sin/float32/static": "pw"}, 4)
    assert kept.with_later(mended, []).units == kept.units  # left by an earlier run on this machine
    later = kept.with_later(mended, list(mended.units))
    assert later.units == kept.units | mended.units
    assert later.fresh == {"bundles": 5, "wrong": {}}
    assert list(later.recorded()["failures"]) == ["op_db/sin"]

    later.write(file)
    assert Results.read(file) == later
    assert json.loads((tmp_path / "conformance_units.json").read_text())["op_db/cos"] == {"float32 static": 4}
    told = json.loads(file.read_text())
    file.write_text(json.dumps(told | {"versions": told["versions"] | {"torch": "2.0.0"}}))
    assert Results.read(file).units == {}  # what another torch does says nothing


def test_an_operator_known_in_one_row_is_left_in_another() -> None:
    """With static sizes, of the compiled target: each is a row of its own, and its samples are as many."""
    found = {"op_db/sin/float32/dynamic": "ps", "op_db/cos/float32/dynamic": "p", "op_db/sin/float32/static/cpu": "p"}
    results = _results(found, 3)
    rows = results.rows()
    assert list(rows) == ["op_db/float32/dynamic", "op_db/float32/static/cpu"]
    assert rows["op_db/float32/static/cpu"] == Counter({"pass": 1, "left": 5})
    assert {target: total.total() for target, total in results.totals().items()} == {"portable": 6, "cpu": 6}
    assert "| `cpu` | ATen operators | `float32` | static | 1 | 0 | 0 | 0 | 0 | 1 | 5 |" in markdown(results)


def test_rows_without_units_stand_until_units_are_as_many(tmp_path: Path) -> None:
    """Earlier runs kept rows only; they are given up when their samples have been done again."""
    row = "op_db/float32/static"
    results = _results({"op_db/sin/float32/static": "rp", "op_db/cos/float32/static": "p"}, 2)
    results.older = {row: Counter({"pass": 4, "refused": 1, "left": 0})}
    results.write(tmp_path / "conformance.json")
    results = Results.read(tmp_path / "conformance.json")
    assert results.rows()[row] == results.older[row]
    more = _results({"op_db/cos/float32/static": "pp"}, 2)
    results = results.with_later(more, list(more.units))
    assert results.rows()[row] == Counter({"pass": 3, "refused": 1})
    assert "older" not in results.recorded()


def _results(units: dict[str, str], total: int) -> Results:
    """Of units with as many samples; a letter a sample that has been done: passed, refused, wrong, skipped."""
    words = {"p": "pass", "r": "refused", "w": "wrong", "s": "skipped"}
    found = Found()
    for unit, letters in units.items():
        outcomes = [{"sample": str(i), "status": words[letter], "reason": "", "peer": ""} for i, letter in enumerate(letters)]
        found.add(unit, total, outcomes)
    return Results.of(found)


def _counts(**counts: int) -> dict[str, int]:
    return dict.fromkeys((*COUNTS, "total"), 0) | counts


def _outcomes(partial: Path) -> list[tuple[str, str, str]]:
    """Unit, sample and status, in the order in which they were found."""
    lines = [json.loads(line) for line in partial.read_text().splitlines()]
    return [(line["unit"], one["sample"], one["status"]) for line in lines if "unit" in line for one in line["outcomes"]]


def test_bundles_are_called_with_other_sizes(tmp_path: Path) -> None:
    checker = Checker(tmp_path, dynamic=True, front_ends=("trace",), target="portable", fresh=tmp_path)
    unit = Unit("op_db", "addmm", "float32", True, "portable")
    sample = next(one for one in samples(unit) if not one.in_place and len({*one.sizes[0], *one.sizes[1]}) > 1)
    assert checker(sample).status == "pass"
    tried = [[tensor.shape for tensor in others[0].tensors] for _, others in at_other_sizes([sample], checker.path, "portable")]
    assert sample.sizes not in tried
    assert any(
        size > max(max(shape, default=0) for shape in sample.sizes) for shapes in tried for shape in shapes for size in shape
    )
    assert {0, 1} <= {size for shapes in tried for shape in shapes for size in shape}
    assert checker.resized([sample]) is None

    bundle = checker.loaded
    checker.loaded = lambda *tensors: bundle(*tensors) + (tensors[0].shape != sample.sizes[0])  # type: ignore[assignment,misc]
    assert checker.again(sample) == Outcome(sample.name, "pass")
    found = checker.resized([sample])
    assert found is not None
    assert found.status == "wrong"
    assert re.match(r"with s\d+=.*: out: values differ", found.reason)


class First(torch.nn.Module):
    """Returns its first argument."""

    def forward(self, x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return x


def test_bundles_are_called_with_unusual_values(tmp_path: Path) -> None:
    """A bundle that returns numbers where eager raises is wrong, whatever the numbers."""
    told: dict[str, str] = {}
    unit = Unit("op_db", "nn.functional.nll_loss", "float32", False, "portable")

    def tell(**words: str) -> None:
        told.update({words["sample"]: f"{words['status']}: {words['reason']}"} if "sample" in words else {})

    work = BuildContext(unit, set(), tmp_path, tell, count=1, until=float("inf"), values=True)
    sample = work.chosen[0]
    assert work.check(sample).status == "pass"
    at_unusual_values([(work, sample)])
    assert told["0, 1000 in tensor 1"] == "pass: "
    assert len(told) == len(work.done) == 9

    work.done.clear()
    work.check.loaded = First()
    at_unusual_values([(work, sample)])
    assert told["0, 1000 in tensor 1"].startswith("wrong: eager raises IndexError: Target 1000 is out of bounds")
