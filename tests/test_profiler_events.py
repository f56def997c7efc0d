"""torch.profiler around a loaded bundle shows which modules its code comes from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import aotpack
from aotpack._torch.inductor.codegen.events import _literal, mark_origins, origins_in
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.devices.portable import PortableExecutable
from aotpack_loader.format import schema
from aotpack_loader.format.events import Event, event_name, parse_event, shown_modules
from aotpack_loader.format.origins import lines_of, modules_of


def events_of_a_step(path: Path, backend: str) -> list[Event]:
    model = aotpack.load(path, backend=backend)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        model(torch.rand(3, 1, 8, 8), torch.tensor([1, 2, 3]))["loss"].backward()
    return [event for item in found.events() if (event := parse_event(item.name))]


@pytest.mark.parametrize("backend", ["cpu", "portable"])
def test_events_name_modules_and_nodes(digits_bundle: Path, backend: str) -> None:
    events = events_of_a_step(digits_bundle, backend)
    called = [event for event in events if event.code.startswith(("aten.convolution.", "aten.convolution_backward."))]
    assert [(event.key, event.modules) for event in called] == [
        *[("train.forward", f"features.{i}") for i in (0, 3, 6)],
        *[("train.backward", f"features.{i}") for i in (6, 3, 0)],
    ]
    with Bundle.open(digits_bundle) as opened:
        bundle = opened.for_target(next(name for name in opened.targets if name.startswith(backend)))
        method = bundle.program.methods["train"]
        assert method.backward is not None
        graphs = {"train.forward": bundle.graph(method.forward), "train.backward": bundle.graph(method.backward.graph)}
    for event in called:
        (nodes,) = event.nodes
        assert [graphs[event.key].nodes[i].op for i in nodes] == [event.code]


def test_a_fused_kernel_names_all_its_modules(digits_bundle: Path) -> None:
    fused = [event.modules for event in events_of_a_step(digits_bundle, "cpu") if event.code.startswith("cpp_fused")]
    assert "features.1, features.2" in fused


def test_names_are_made_only_for_a_profiler(digits_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(bundle: Bundle) -> None:
        raise AssertionError("origins were read")

    monkeypatch.setattr(Bundle, "origins", read)
    model = aotpack.load(digits_bundle, backend="portable")
    model(torch.rand(3, 1, 8, 8), torch.tensor([1, 2, 3]))["loss"].backward()
    with profile(activities=[ProfilerActivity.CPU]), pytest.raises(AssertionError, match="origins were read"):
        model(torch.rand(3, 1, 8, 8), torch.tensor([1, 2, 3]))


def test_an_executable_without_names_runs_under_a_profiler() -> None:
    value = schema.TensorValue("float32", [2], [1])
    graph = schema.Graph(
        ["x"], [value], [schema.Node("y", "aten.sin.default", [schema.ValueRef("x")], value)], [schema.ValueRef("y")]
    )
    with profile(activities=[ProfilerActivity.CPU]) as found:
        (result,) = PortableExecutable(graph, torch.device("cpu"))([torch.ones(2)])
    torch.testing.assert_close(result, torch.ones(2).sin())
    assert "aten::sin" in {item.name for item in found.events()}


def test_names_are_read_back() -> None:
    name = event_name(["a", "", "b.0", "b.1"], "train.forward", "cpp_fused_relu_3", [9, 3, 4, 5, 4])
    assert name == "a, (model), b.0 and 1 more [train.forward] cpp_fused_relu_3 #3-5,9"
    assert parse_event(name) == ("a, (model), b.0 and 1 more", "train.forward", "cpp_fused_relu_3", [range(3, 6), range(9, 10)])
    assert shown_modules(["a", "a"]) == "a"


@pytest.mark.parametrize(
    "name", ["aten::relu", "a [k] code", "a [k] code #", "a [k] code #x", "a [k] code #1-", "a [k] c #" + "9" * 10]
)
def test_other_names_are_not_of_a_bundle(name: str) -> None:
    assert parse_event(name) is None


def test_origins_that_do_not_fit_count_as_unknown() -> None:
    origins = schema.Origins(["", "a"], ["m.py:1"], {"g": schema.GraphOrigins([1, 7], [0, None])})
    assert modules_of(origins, "g", 2) == ["a", ""]
    assert lines_of(origins, "g", 2) == ["m.py:1", ""]
    for document, key, count in ((origins, "g", 3), (origins, "other", 3), (None, "g", 3)):
        assert modules_of(document, key, count) == lines_of(document, key, count) == ["", "", ""]


def test_nodes_of_a_region_count_as_the_calls_of_the_region() -> None:
    region = torch.fx.symbolic_trace(nn.ReLU())
    graph = torch.fx.Graph()
    value, called = graph.placeholder("x"), graph.get_attr("region")
    for _ in range(2):
        value = graph.call_function(torch.ops.higher_order.invoke_subgraph, (called, "region", value))
    graph.output(value)
    module = torch.fx.GraphModule({"region": region}, graph)
    for _ in range(2):  # a second target marks it again
        mark_origins(module, ["layers.0", "layers.1"])
    assert origins_in(module.graph) == [{}, {}, {0: "layers.0"}, {1: "layers.1"}, {}]
    assert origins_in(region.graph)[1] == {0: "layers.0", 1: "layers.1"}


def test_a_literal_holds_any_name() -> None:
    assert _literal('a"\\?\n') == '"a\\042\\134\\077\\012"'
    assert _literal("é") == '"\\303\\251"'
