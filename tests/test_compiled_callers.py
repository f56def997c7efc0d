"""A loaded bundle inside ``torch.compile``, and its backward inside compiled autograd: one opaque call."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo.compiled_autograd
from functorch.compile import aot_module
from support.releases import TORCH
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import aotpack
from aotpack_loader.errors import AotpackError, AutogradError, EditError, UnsupportedError
from aotpack_loader.module.program import LoadedProgram
from aotpack_loader.opening.from_record import RecordedCall

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, where it looks at .grad of results


class Layer(nn.Module):
    """A linear layer and an activation."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh()


@pytest.fixture(scope="module", params=["portable", "cpu"])
def programs(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[LoadedProgram]:
    """Two bundles of one process, whose arguments have other sizes."""
    found = []
    for size in (4, 6):
        out = tmp_path_factory.mktemp("compiled") / "layer.aotpack"
        aotpack.build(Layer(size), (torch.randn(2, size),), out=out, targets=(request.param,), methods=("train",))
        found.append(aotpack.load(out, backend=request.param))
    return found


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gradients(program: nn.Module, call: Any, x: Tensor) -> list[Tensor]:
    """Of two steps without ``zero_grad``."""
    program.zero_grad()
    for _ in range(2):
        call(x).square().sum().backward()
    return [parameter.grad for parameter in program.parameters() if parameter.grad is not None]


def test_a_bundle_that_starts_from_a_record(
    programs: list[LoadedProgram], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bundles of native code do so from the second load on. Dynamo has their calls in its graph, too."""
    monkeypatch.setenv("AOTPACK_RECORDED_STARTS", "1")
    monkeypatch.setenv("AOTPACK_CACHE", str(tmp_path))
    info, x = programs[0].aotpack, torch.randn(2, 4)
    for _ in range(2):
        loaded = aotpack.load(info.path, backend=info.backend.partition(":")[0])
    recorded = all(isinstance(call, RecordedCall) for call in loaded._aotpack_calls.values())
    assert recorded is (info.backend != "portable")
    compiled = torch.compile(lambda x: loaded(x) * 2, fullgraph=True, backend="aot_eager")
    expected = gradients(programs[0], lambda x: programs[0](x) * 2, x)
    torch.testing.assert_close(gradients(loaded, compiled, x), expected)


def arguments(program: nn.Module) -> Tensor:
    weight = next(program.parameters())
    return torch.randn(2, weight.shape[1], generator=torch.Generator().manual_seed(1))


def test_a_compiled_bundle_trains(programs: list[LoadedProgram]) -> None:
    for program in programs:
        x = arguments(program)
        expected = gradients(program, program, x)
        torch.testing.assert_close(gradients(program, torch.compile(program, backend="aot_eager"), x), expected)


needs_operators = pytest.mark.skipif(TORCH < (2, 13), reason="this torch calls a bundle between two graphs")


@needs_operators
def test_a_bundle_is_one_operator_of_its_callers_graph(programs: list[LoadedProgram]) -> None:
    for program in programs:

        def around(x: Tensor, program: LoadedProgram = program) -> Tensor:
            return program(x.sin()).cos()

        x = arguments(program)
        expected = gradients(program, around, x)
        graphs: list[torch.fx.GraphModule] = []

        def backend(graph: torch.fx.GraphModule, example: Any, graphs: list[torch.fx.GraphModule] = graphs) -> Any:
            graphs.append(graph)
            return graph

        torch.testing.assert_close(gradients(program, torch.compile(around, backend=backend, fullgraph=True), x), expected)
        called = [[str(node.target) for node in graph.graph.nodes if node.op.startswith("call")] for graph in graphs]
        assert called == [["sin", "aotpack.forward", "<built-in function getitem>", "cos"]]


def test_a_compiled_step(programs: list[LoadedProgram]) -> None:
    for program in programs:

        def step(x: Tensor, program: LoadedProgram = program) -> None:
            (program(x) * 2).sum().backward()

        x = arguments(program)
        found = []
        for call in (step, torch.compile(step, backend="aot_eager")):
            program.zero_grad()
            call(x)
            found.append([parameter.grad for parameter in program.parameters()])
        torch.testing.assert_close(found[1], found[0])


def test_compiled_autograd(programs: list[LoadedProgram]) -> None:
    for program in programs:
        x = arguments(program)
        expected = gradients(program, program, x)
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
            found = gradients(program, program, x)
        torch.testing.assert_close(found, expected)


def test_a_call_outside_compiled_autograd(programs: list[LoadedProgram]) -> None:
    """Python's node goes on as one opaque call; that of native code says what to do."""
    program = programs[0]
    x = arguments(program)
    expected = gradients(program, program, x)
    program.zero_grad()
    losses = [program(x).square().sum() for _ in range(2)]
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        if program.aotpack.backend.startswith("cpu"):
            with pytest.raises(AutogradError, match="Turn compiled autograd on before the call"):
                losses[0].backward()
        else:
            for loss in losses:
                loss.backward()
            torch.testing.assert_close([parameter.grad for parameter in program.parameters()], expected)


class Rich(nn.Module):
    """Random numbers, buffers that are written, nested arguments, a result without a gradient, a dynamic batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)

    def forward(self, batch: dict[str, Tensor], scale: float = 2.0, *, extra: Any = None) -> dict[str, Any]:
        hidden = nn.functional.dropout(self.norm(self.linear(batch["x"])).relu(), training=self.training)
        hidden = self.frozen(hidden * scale) + (0 if extra is None else extra[0])
        return {"loss": (hidden - batch["y"]).square().mean(), "rest": [hidden, hidden.argmax(1)], "epoch": None}


@pytest.fixture(scope="module", params=["portable", "cpu"])
def rich(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    out = tmp_path_factory.mktemp("rich") / "rich.aotpack"
    batch = {"x": torch.randn(4, 4, requires_grad=True), "y": torch.randn(4, 4)}
    shapes = {"batch": {name: {0: torch.export.Dim("batch", min=2, max=64)} for name in ("x", "y")}, "scale": None}
    shapes["extra"] = [None]
    aotpack.build(
        Rich(),
        (batch, 3.0),
        {"extra": [torch.zeros(4)]},
        out=out,
        dynamic_shapes=shapes,
        targets=(request.param,),
        methods=("train",),
    )
    return out


def _rich_batch(size: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(size)
    return {name: torch.randn(size, 4, generator=generator) for name in ("x", "y")}


@needs_operators
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_whole_graphs_train_as_in_eager(rich: Path, backend: str) -> None:
    """Two calls before the backward of either, so that nothing is kept from the last call alone."""
    found = []
    for compiled in (False, True):
        program = aotpack.load(rich)

        def step(batch: dict[str, Tensor], program: LoadedProgram = program) -> tuple[Tensor, Any]:
            inputs = {"y": batch["y"], "x": batch["x"].sin()}
            results = program(inputs, scale=3.0, extra=[torch.ones(4)])
            assert results["epoch"] is None
            return results["loss"] * 2, results["rest"]

        call = torch.compile(step, backend=backend, fullgraph=True) if compiled else step
        torch.manual_seed(0)
        values: list[Any] = []
        for sizes in ((4, 4), (4, 6), (7, 5)):
            batches = [_rich_batch(size) for size in sizes]
            batches[0]["x"].requires_grad_()
            results = [call(batch) for batch in batches]
            sum(loss for loss, _ in reversed(results)).backward()
            assert not results[0][1][1].requires_grad
            values += [results, batches[0]["x"].grad]
        values += [[p.grad for p in program.parameters()], list(program.buffers())]
        assert values[-2][-1] is None  # of the frozen layer
        found.append(values)
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)  # a bias before BatchNorm has a gradient of zero


@needs_operators
def test_compiled_callers_see_edits_and_wrong_arguments(rich: Path) -> None:
    program = aotpack.load(rich)
    call = torch.compile(lambda batch: program(batch, 3.0, extra=[torch.ones(4)])["loss"], backend="aot_eager", fullgraph=True)
    call(_rich_batch(4))
    with pytest.raises(Exception, match=r"expected float32\[batch in 2\.\.64,4\]|expected float32\[.*2\.\.64"):
        call(_rich_batch(65))
    extra = _rich_batch(4)
    extra["y"].requires_grad_()
    with pytest.raises(Exception, match="built without one for it"):
        call(extra)
    program.frozen.weight.requires_grad_()
    with pytest.raises(Exception, match="was frozen when the bundle was built"):
        call(_rich_batch(4))
    program.frozen.weight.requires_grad_(False)
    program.eval()
    with pytest.raises(Exception, match="has no method for this mode"):
        call(_rich_batch(4))
    program.train()
    call(_rich_batch(4))
    handle = program.linear.register_forward_hook(print)
    with pytest.raises(EditError, match="Hooks of submodules would never run"):
        call(_rich_batch(4))
    handle.remove()
    copied = copy.deepcopy(program)
    assert torch.compile(copied, backend="aot_eager")(_rich_batch(4), 3.0, extra=[torch.ones(4)])["loss"].requires_grad
    del copied


class View(nn.Module):
    """Its result is a view of its argument."""

    def forward(self, x: Tensor) -> Tensor:
        return x.t()


@needs_operators
def test_what_no_operator_can_do_breaks_the_graph(tmp_path: Path) -> None:
    aotpack.build(View(), (torch.randn(2, 3),), out=tmp_path / "view.aotpack", targets=("portable",), methods=("train",))
    program = aotpack.load(tmp_path / "view.aotpack")
    x = torch.randn(2, 3)
    assert torch.compile(lambda x: program(x), backend="aot_eager")(x)._base is x
    with pytest.raises(Exception, match="a loaded bundle is compiled already, and it returns views; return clones"):
        torch.compile(lambda x: program(x), backend="aot_eager", fullgraph=True)(x)


def test_tools_that_record_a_call_are_refused(programs: list[LoadedProgram]) -> None:
    """Native code calls no operators, so a recorded result would be a constant."""
    x = arguments(programs[0])
    tools: dict[str, Any] = {
        "torch.jit.trace": lambda program: torch.jit.trace(program, (x,)),
        "torch.jit.script": lambda program: torch.jit.script(program),
        "torch.export": lambda program: torch.export.export(program, (x,)),
        "make_fx": lambda program: make_fx(program)(x),
        "A run on fake tensors": lambda program: aot_module(program, fw_compiler=lambda graph, _: graph)(x),
    }
    for name, use in tools.items():
        used = copy.deepcopy(programs[0])
        with pytest.raises(EditError, match=f"^{re.escape(name)} cannot trace a loaded bundle"):
            use(used)
        assert used(x).requires_grad, "a refused tool leaves the module as it was"
    with pytest.raises(Exception, match=r"torch\.export cannot trace a loaded bundle"):
        torch.export.export(copy.deepcopy(programs[0]), (x,), strict=True)
    assert programs[0](x).requires_grad


def test_a_model_that_holds_a_bundle_cannot_be_built(programs: list[LoadedProgram], tmp_path: Path) -> None:
    x, options = arguments(programs[0]), {"targets": ("portable",), "methods": ("train",)}
    with pytest.raises(UnsupportedError, match=r"(?s)holds a loaded bundle.*0: was loaded from"):
        aotpack.build(nn.Sequential(programs[0]), (x,), out=tmp_path / "a.aotpack", **options)
    with pytest.raises(AotpackError, match=r"loaded bundle"):
        aotpack.build(lambda x: programs[0](x), (x,), out=tmp_path / "b.aotpack", **options)
    assert not [*tmp_path.iterdir()]
