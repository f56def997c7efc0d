"""A loaded bundle inside ``torch.compile``, and its backward inside compiled autograd: one opaque call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo.compiled_autograd
from torch import Tensor, nn

import aotpack
from aotpack_loader.errors import AutogradError
from aotpack_loader.program import LoadedProgram

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


def arguments(program: nn.Module) -> Tensor:
    weight = next(program.parameters())
    return torch.randn(2, weight.shape[1], generator=torch.Generator().manual_seed(1))


def test_a_compiled_bundle_trains(programs: list[LoadedProgram]) -> None:
    for program in programs:
        x = arguments(program)
        expected = gradients(program, program, x)
        torch.testing.assert_close(gradients(program, torch.compile(program, backend="aot_eager"), x), expected)


def test_a_bundle_is_called_between_two_graphs(programs: list[LoadedProgram]) -> None:
    for program in programs:

        def around(x: Tensor, program: LoadedProgram = program) -> Tensor:
            return program(x.sin()).cos()

        x = arguments(program)
        expected = gradients(program, around, x)
        graphs: list[torch.fx.GraphModule] = []

        def backend(graph: torch.fx.GraphModule, example: Any, graphs: list[torch.fx.GraphModule] = graphs) -> Any:
            graphs.append(graph)
            return graph

        torch.testing.assert_close(gradients(program, torch.compile(around, backend=backend), x), expected)
        called = [[node.target for node in graph.graph.nodes if node.op == "call_method"] for graph in graphs]
        assert called == [["sin"], ["cos"]]


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


def test_a_whole_graph_is_refused_with_the_reason(programs: list[LoadedProgram]) -> None:
    program = programs[0]

    def around(x: Tensor) -> Tensor:
        return program(x.sin()).cos()

    with pytest.raises(Exception, match="reason: a loaded bundle is compiled already"):
        torch.compile(around, backend="aot_eager", fullgraph=True)(arguments(program))
