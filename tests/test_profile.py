"""``aotpack profile``: time and memory by module and source line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from conftest import tiny_inputs
from support.browser import PageUnderTest, chromium

import aotpack
from aotpack.tools.cli import main
from aotpack.tools.cli.profile import _summary, _table
from aotpack.tools.measure.profile import Profile, profile_bundle
from aotpack.tools.measure.profile.memory import outermost, peak_of
from aotpack.tools.measure.profile.nodes import GraphNodes, Origin
from aotpack.tools.measure.profile.page import profile_page
from aotpack.tools.measure.profile.profiling import Cell
from aotpack.tools.measure.profile.recording import STEP, KernelSpan, Span, read_steps
from aotpack.tools.report.memory import step_memory
from aotpack.tools.report.operations import views
from aotpack.tools.report.text import visible
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import AotpackError
from aotpack_loader.format.events import Event, event_name
from devtools.paths import ROOT

HOSTILE = "\x1b[31m\u202eevil\u200b"


def profile_of(*arguments: object) -> Any:
    result = CliRunner().invoke(main, ["profile", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.parametrize("backend", ["cpu", "portable"])
def test_totals_agree_and_rows_name_modules(digits_bundle: Path, backend: str) -> None:
    found = profile_of(digits_bundle, "--backend", backend, "--steps", 4, "--warmup", 1)
    for table in ("modules", "lines", "kernels"):
        total = sum(row["forward"] + row["backward"] + row["update"] for row in found[table])
        assert total == pytest.approx(found["step"], rel=1e-6)
    assert found["plain_step"] / 200 < found["step"] < found["plain_step"] * 200  # seconds both; machines are busy
    modules = {row["name"]: row for row in found["modules"]}
    for name in ("features.0", "features.3", "features.6", "head"):
        assert min(modules[name]["forward"], modules[name]["backward"]) > 0
    assert {row["name"] for row in found["lines"]} >= {"model.py:21", "model.py:22"}
    with Bundle.open(digits_bundle) as opened:
        bundle = opened.for_target(next(name for name in opened.targets if name.startswith(backend)))
        assert found["saved"] == step_memory(bundle, "train", views(bundle, "train")).saved_bytes > 1_000_000
    assert sum(row["peak"] for row in found["modules"]) == pytest.approx(found["peak"], rel=0.001)
    assert found["peak"] > found["saved"]


def test_a_step_includes_the_update_of_the_bundles_optimizer(tmp_path: Path) -> None:
    model, out = torch.nn.Linear(64, 64), tmp_path / "m.aotpack"
    aotpack.build(model, (torch.randn(8, 64),), out=out, targets=("portable",), optimizer=torch.optim.AdamW(model.parameters()))
    found = profile_of(out, "--steps", 4, "--warmup", 1)
    assert found["step"] == pytest.approx(found["forward"] + found["backward"] + found["update"])
    rows = {row["name"]: row for row in found["modules"]}
    assert 0 < rows["(optimizer)"]["update"] < found["update"]
    assert {row["name"] for row in found["kernels"] if row["update"]} >= {"aten.sqrt.default", "(outside kernels)"}


def test_a_trace_names_modules_lines_and_operators(digits_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    profile_of(digits_bundle, "--backend", "cpu", "--steps", 1, "--warmup", 1, "--trace", out)
    document = json.loads(out.read_text())
    assert "host_name" not in document
    kernels = {event["name"]: event for event in document["traceEvents"] if "Kernel" in event.get("args", {})}
    details = kernels["features.3: aten.convolution.default"]["args"]
    assert (details["Lines"], details["Operators"]) == ("model.py:21", "aten.convolution.default")
    assert all({"ts", "dur", "pid", "tid"} <= event.keys() and event["ph"] == "X" for event in kernels.values())
    assert any(name.startswith("features.1, features.2: cpp_fused") for name in kernels)


def test_a_bundle_without_origins_or_training(tiny_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bundle, "origins", lambda bundle: None)
    result = CliRunner().invoke(main, ["profile", str(tiny_bundle), "--steps", "1", "--warmup", "1"])
    assert result.exit_code == 0
    assert "does not say where its operators come from" in result.output
    out = tmp_path / "infer.aotpack"
    args, kwargs = tiny_inputs()
    aotpack.build(lambda x, scale: (x * scale).sin(), args, kwargs, out=out, targets=("portable",), methods=("infer",))
    profile, _ = profile_bundle(out, steps=1, warmup=1)
    assert (profile.method, profile.backward, profile.saved) == ("infer", 0.0, 0)
    assert profile.forward > 0


@pytest.mark.parametrize("backend", ["xla", "xla:vector"])
def test_targets_for_xla_are_refused(backend: str) -> None:
    with pytest.raises(AotpackError, match="XLA, whose kernels torch's profiler does not see"):
        profile_bundle(ROOT / "spec/vectors/v1/valid/targets/bundle.aotpack", backend=backend)


def test_names_of_a_bundle_are_inert(capsys: pytest.CaptureFixture[str], digits_bundle: Path) -> None:
    profile, _ = profile_bundle(digits_bundle, backend="portable", steps=1, warmup=1)
    hostile = replace(profile, bundle=HOSTILE, cells=[Cell("forward", HOSTILE, HOSTILE, HOSTILE, 1.0)])
    from rich.console import Console

    console = Console(width=160)
    console.print(_summary(hostile))
    for by, rows in (("module", hostile.by_module()), ("line", hostile.by_line()), ("kernel", hostile.by_kernel())):
        console.print(_table(hostile, by, rows))  # type: ignore[arg-type]
    shown = capsys.readouterr().out
    assert not set(shown) & {"\x1b", "\u202e", "\u200b"}
    assert shown.count(r"\x1b[31m\u202eevil\u200b") == 4


def test_depth_counts_inner_modules_as_the_outer_one() -> None:
    cells = [
        Cell("forward", "a.b.c", "m.py:1", "k", 1.0),
        Cell("backward", "a.d", "m.py:2", "k", 2.0),
        Cell("forward", "", "", "k", 4.0),
    ]
    profile = Profile("", "", "train", "", "", 1, 1, "", 0, 7, 5, 2, 0, 0, located=True, named=True, cells=cells)
    assert [(row.name, row.time) for row in profile.by_module(1)] == [("(model)", 4.0), ("a", 3.0)]
    assert [row.name for row in profile.by_module()] == ["(model)", "a.d", "a.b.c"]
    assert [row.name for row in profile.by_line()] == ["(unknown)", "m.py:2", "m.py:1"]


# ---------------------------------------------------------------- pages


def test_the_page_has_flame_graphs_and_tables(digits_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "profile.html"
    found = profile_of(digits_bundle, "--backend", "cpu", "--steps", 2, "--warmup", 1, "--html", out)
    with chromium() as browser:
        page = PageUnderTest(browser, out)
        assert page.complaints() == []
        rows = page.texts("#table-modules tbody th")
        assert rows == [row["name"] for row in found["modules"]]
        cells = page.script("return [...document.querySelectorAll('#time .cell')].map((cell) => cell.getAttribute('aria-label'))")
        assert {"forward", "backward", "backward.features.3"} <= {label.partition(":")[0] for label in cells}
        backward = next(label for label in cells if label.startswith("backward.features.3: "))
        page.script(
            "[...document.querySelectorAll('#time .cell')].find((c) => c.getAttribute('aria-label') === arguments[0])"
            ".dispatchEvent(new MouseEvent('click', {bubbles: true}))",
            backward,
        )
        assert page.texts("#time .trail")[0].startswith("backward.features.3: ")
        assert len(page.texts("#memory .icicle-drawing")) == 2
        assert page.complaints() == []


def test_hostile_names_are_text_in_the_page(digits_bundle: Path, tmp_path: Path) -> None:
    profile, _ = profile_bundle(digits_bundle, backend="portable", steps=1, warmup=1)
    name = f"<script>alert(1)</script>{HOSTILE}"
    hostile = replace(profile, bundle=name, cells=[Cell("forward", name, name, name, 1.0, 1.0, 1.0)])
    out = tmp_path / "hostile.html"
    out.write_text(profile_page(hostile, [name], name), encoding="utf-8")
    assert not set(out.read_text()) & {"\x1b", "\u202e", "\u200b"}
    with chromium() as browser:
        page = PageUnderTest(browser, out)
        assert page.complaints() == []
        assert page.texts("#table-modules th[scope=row]") == [visible(name)]
        assert visible(name) in "".join(page.texts("#time .cell title"))


# ---------------------------------------------------------------- traces


def complete(name: str, start: float, time: float) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": start, "dur": time}


def memory(at: float, address: int, size: int) -> dict[str, Any]:
    return {"ph": "i", "name": "[memory]", "ts": at, "args": {"Addr": address, "Bytes": size, "Device Type": 0}}


def test_memory_belongs_to_the_kernel_that_runs_or_comes_next() -> None:
    first, second = (event_name(["m"], "train.forward", "k", [i]) for i in (0, 1))
    events = [
        complete(STEP, 0, 100),
        complete("aotpack forward", 1, 60),
        complete("aten::mul", 5, 3),
        complete(first, 10, 10),
        complete(second, 30, 10),
        memory(4, 7, 5),  # before the first kernel: its result
        memory(15, 1, 100),
        memory(25, 2, 50),
        memory(35, 1, -100),
        memory(36, 9, -1000),  # from before the step
        memory(38, 3, 20),
        memory(59, 4, 3),
        memory(70, 5, 2),
    ]
    (step,) = read_steps(events)
    assert [round(kernel.span.start * 1e6) for kernel in step.kernels] == [10, 30]
    peak = peak_of(step)
    assert (peak.size, peak.kernels) == (155, {0: 105, 1: 50})
    (later,) = read_steps([*events, memory(80, 6, 500)])
    assert peak_of(later).kernels == {0: 5, 1: 70, -1: 505}


def test_a_kernel_inside_another_counts_once() -> None:
    event = Event("m", "train.forward", "k", [range(1)])
    spans = [KernelSpan(Span(start, time), event) for start, time in ((0.0, 10.0), (1.0, 2.0), (10.0, 1.0))]
    assert [kernel.span.start for kernel in outermost(spans)] == [0.0, 10.0]


def test_the_cost_of_a_kernel_follows_the_sizes_of_its_nodes() -> None:
    a, b = Origin("a", "m.py:1"), Origin("b", "m.py:2")
    nodes = GraphNodes("forward", [a, b, a, b], ["aten.mul.Tensor"] * 4, [3.0, 1.0, 0.0, 0.0])
    assert nodes.shares(Event("", "g", "k", [range(2)])) == [(a, 0.75), (b, 0.25)]
    assert nodes.shares(Event("", "g", "k", [range(2, 4)])) == [(a, 0.5), (b, 0.5)]  # views alone
    assert nodes.shares(Event("", "g", "k", [range(3, 10**9)])) == [(b, 1.0)]
    assert nodes.shares(Event("", "g", "k", [range(8, 10)])) == [(Origin("", ""), 1.0)]
