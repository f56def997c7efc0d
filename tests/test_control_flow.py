"""Subgraphs: the rules of the format, what hostile ones may not do, what is stored once, and what running them imports."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from conftest import FreshProcess, compiles_native_code
from support.archive import tiny_program
from support.releases import TORCH
from torch import Tensor, nn
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_rows
from torch.fx import GraphModule
from torch.nn.attention.flex_attention import flex_attention

import aotpack
from aotpack.graph.restore import to_fx
from aotpack.targets.aoti import parts
from aotpack.targets.portable import PortableTarget
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.devices import control_flow
from aotpack_loader.devices.aoti import AotiSequence
from aotpack_loader.devices.portable import PortableExecutable
from aotpack_loader.errors import AotpackError, CorruptBundleError, UnsupportedVersionError
from aotpack_loader.format import media_types, schema, subgraphs
from aotpack_loader.format.schema import GraphArg, ValueRef
from aotpack_loader.format.validate_graph import validate_graph
from aotpack_loader.format.validate_target import validate_target

CPU = torch.device("cpu")
VALUE = schema.TensorValue("float32", [4], [1])
TUPLE = schema.OtherValue("tuple")


def graph_of(inputs: int, outputs: int, op: str = "aten.sin.default") -> schema.Graph:
    """``outputs`` times the same function of the first input."""
    names = [f"i{n}" for n in range(inputs)]
    nodes = [schema.Node(f"n{n}", op, [ValueRef("i0")], VALUE) for n in range(outputs)]
    return schema.Graph(names, [VALUE] * inputs, nodes, [ValueRef(f"n{n}") for n in range(outputs)])


def calling(op: str, args: list[Any], given: dict[str, schema.Graph], **kwargs: Any) -> schema.Graph:
    """A graph of two inputs, ``a`` and ``b``, that calls ``op``."""
    node = schema.Node("call", op, args, TUPLE, kwargs)
    taken = schema.Node("taken", "builtin.getitem", [ValueRef("call"), 0], VALUE)
    return schema.Graph(["a", "b"], [VALUE] * 2, [node, taken], [ValueRef("taken")], given)


A, B = ValueRef("a"), ValueRef("b")
F, G = GraphArg("f"), GraphArg("g")


# ---------------------------------------------------------------- rules

GOOD: list[tuple[str, list[Any], dict[str, tuple[int, int]]]] = [
    ("cond", [A, F, G, [A, B]], {"f": (2, 1), "g": (2, 1)}),
    ("cond", [True, F, F, [A]], {"f": (1, 3)}),
    ("while_loop", [F, G, [A], [B]], {"f": (2, 1), "g": (2, 1)}),
    ("while_loop_stack_output", [F, G, [A, B], []], {"f": (2, 1), "g": (2, 2)}),
    ("scan", [F, [A], [B], []], {"f": (2, 3)}),
    ("scan", [F, [], [B], [A]], {"f": (2, 1)}),
    ("map_impl", [F, [A, B], []], {"f": (2, 2)}),
    ("invoke_subgraph", [F, None, A, B], {"f": (2, 1)}),
    ("invoke_subgraph", [F, "layer", A, 3], {"f": (2, 1)}),
    ("flex_attention", [A, A, A, F, [4, 4, None, G], 0.5, [["k", 1]], [B], []], {"f": (6, 1), "g": (4, 1)}),
]

BAD: list[tuple[str, list[Any], dict[str, tuple[int, int]], str]] = [
    ("cond", [A, F, G, [A]], {"f": (1, 1), "g": (2, 1)}, "takes 2"),
    ("cond", [A, F, G, [A]], {"f": (1, 1), "g": (1, 2)}, "2 results"),
    ("cond", [A, F, G, A], {"f": (1, 1), "g": (1, 1)}, "form"),
    ("cond", [A, F, [A]], {"f": (1, 1)}, "form"),
    ("cond", [F, F, G, [A]], {"f": (1, 1), "g": (1, 1)}, "form"),
    ("cond", [A, F, G, [G]], {"f": (1, 1), "g": (1, 1)}, "form"),
    ("while_loop", [F, G, [A], []], {"f": (1, 2), "g": (1, 1)}, "2 results"),
    ("while_loop", [F, G, [A], []], {"f": (1, 1), "g": (1, 2)}, "2 results"),
    ("while_loop", [F, G, [A], [B]], {"f": (2, 1), "g": (1, 1)}, "takes 1"),
    ("scan", [F, [A, B], [A], []], {"f": (3, 1)}, "1 results"),
    ("scan", [F, [A], [], []], {"f": (1, 1)}, "form"),
    ("scan", [F, [A], [B]], {"f": (2, 1)}, "form"),
    ("map_impl", [F, [], [A]], {"f": (1, 1)}, "form"),
    ("map_impl", [F, [A], [B]], {"f": (1, 1)}, "takes 1"),
    ("invoke_subgraph", [F, A], {"f": (1, 1)}, "form"),
    ("invoke_subgraph", [F, None, A], {"f": (2, 1)}, "takes 2"),
    ("flex_attention", [A, A, A, F, [G], 0.5, [], [], []], {"f": (4, 1), "g": (4, 1)}, "takes 4"),
    ("flex_attention", [A, A, A, F, [4], 0.5, [], [], []], {"f": (5, 1)}, "form"),
    ("flex_attention", [A, A, A, F, [G], 0.5, [], [], []], {"f": (5, 2), "g": (4, 1)}, "2 results"),
]


@pytest.mark.parametrize(("op", "args", "given"), GOOD, ids=lambda value: value if isinstance(value, str) else "")
def test_forms(op: str, args: list[Any], given: dict[str, tuple[int, int]]) -> None:
    validate_graph(calling(f"higher_order.{op}", args, {name: graph_of(*arity) for name, arity in given.items()}), "graph")


@pytest.mark.parametrize(("op", "args", "given", "message"), BAD)
def test_other_forms_are_refused(op: str, args: list[Any], given: dict[str, tuple[int, int]], message: str) -> None:
    graph = calling(f"higher_order.{op}", args, {name: graph_of(*arity) for name, arity in given.items()})
    with pytest.raises(CorruptBundleError, match=f"G7: .*{message}"):
        validate_graph(graph, "graph")


def test_named_arguments_are_refused() -> None:
    with pytest.raises(CorruptBundleError, match="G7: "):
        validate_graph(calling("higher_order.map_impl", [F, [A], []], {"f": graph_of(1, 1)}, dim=1), "graph")


def test_only_control_flow_takes_subgraphs() -> None:
    with pytest.raises(CorruptBundleError, match=r"G7: aten.sin.default takes no subgraph"):
        validate_graph(calling("aten.sin.default", [F], {"f": graph_of(1, 1)}), "graph")
    graph = msgspec.structs.replace(graph_of(1, 1), outputs=[F], subgraphs={"f": graph_of(1, 1)})
    with pytest.raises(CorruptBundleError, match="G7: a subgraph cannot be a result"):
        validate_graph(graph, "graph")


def test_a_subgraph_sees_its_inputs_only() -> None:
    """G3 and G4 hold in each subgraph alone: names of the graph around it are none of its own."""
    inner = schema.Graph(["i0"], [VALUE], [], [A])
    with pytest.raises(CorruptBundleError, match=r"subgraphs\['f'\].*G3: "):
        validate_graph(calling("higher_order.invoke_subgraph", [F, None, A], {"f": inner}), "graph")
    inner = calling("higher_order.invoke_subgraph", [F, None, A], {})
    with pytest.raises(CorruptBundleError, match=r"subgraphs\['f'\].*G4: "):
        validate_graph(calling("higher_order.invoke_subgraph", [F, None, A, B], {"f": inner}), "graph")


@pytest.mark.parametrize(("depth", "fits"), [(64, True), (65, False)])
def test_depth_g8_is_bounded(depth: int, *, fits: bool) -> None:
    graph = graph_of(2, 1)
    for _ in range(depth):
        graph = calling("higher_order.invoke_subgraph", [F, None, A, B], {"f": graph})
    if fits:
        validate_graph(graph, "graph")
        x = torch.ones(4)
        assert torch.equal(PortableExecutable(graph, CPU)([x, x])[0], x.sin())
        return
    with pytest.raises(CorruptBundleError, match="G8: "):
        validate_graph(graph, "graph")


def test_what_a_branch_calls_is_refused_before_anything_runs() -> None:
    """G6 holds in subgraphs, also those that would never run."""
    wrong = calling("higher_order.cond", [True, F, G, [A]], {"f": graph_of(1, 1), "g": graph_of(1, 1, "aten.from_file.default")})
    with pytest.raises(CorruptBundleError, match=r"aten.from_file.default"):
        PortableExecutable(wrong, CPU)
    with pytest.raises(UnsupportedVersionError, match=r"higher_order.print"):
        PortableExecutable(calling("higher_order.print", [F], {"f": graph_of(1, 1)}), CPU)


def test_the_interpreter_has_the_formats_operators() -> None:
    assert control_flow.OPERATORS.keys() == subgraphs.OPERATORS


# ---------------------------------------------------------------- meaning, where torch's eager mode has no say


def test_no_rows() -> None:
    body = PortableExecutable(graph_of(1, 1), CPU)
    with pytest.raises(AotpackError, match="size 0"):
        control_flow.OPERATORS["higher_order.map_impl"](body, [torch.empty(0, 4)], [])


def test_a_loop_without_turns_gives_copies() -> None:
    x, never = torch.ones(4), lambda values: [torch.tensor(False)]
    (same,) = control_flow.OPERATORS["higher_order.while_loop"](never, never, [x], [])
    assert torch.equal(same, x)
    assert same.data_ptr() != x.data_ptr()
    (stacked,) = control_flow.OPERATORS["higher_order.while_loop_stack_output"](never, never, [x], [])
    assert stacked.shape == (1, 4)


def test_flex_attention_is_what_the_specification_says() -> None:
    """Position by position, as spec/control-flow.md puts it."""
    q, k, v = torch.randn(2, 4, 3, 5), torch.randn(1, 2, 6, 5), torch.randn(1, 2, 6, 7)

    def score(values: list[Any]) -> list[Any]:
        s, b, h, i, j = values
        return [s + b - h * i + j]

    def mask(values: list[Any]) -> list[Any]:
        _, _, i, j = values
        return [(i >= j) & (i != 1)]

    out, log_sums, largest = control_flow.OPERATORS["higher_order.flex_attention"](q, k, v, score, [6, mask], 0.3)
    for b in range(2):
        for h in range(4):
            for i in range(3):
                row = [
                    float(q[b, h, i] @ k[0, h // 2, j]) * 0.3 + b - h * i + j if i >= j and i != 1 else -math.inf
                    for j in range(6)
                ]
                scores = torch.tensor(row)
                expected = scores.softmax(0) @ v[0, h // 2] if i != 1 else torch.zeros(7)
                torch.testing.assert_close(out[b, h, i], expected)
                torch.testing.assert_close(log_sums[b, h, i], scores.exp().sum().log2())
                torch.testing.assert_close(largest[b, h, i], scores.max() / math.log(2))


# ---------------------------------------------------------------- from and to torch


class Everything(nn.Module):
    """Each kind of control flow that can be trained."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(layers)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        x = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        x = while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x * 2), (torch.tensor(0), x))[1]
        x = scan(lambda c, row: (c + row, c * row), x[0], x)[1]
        return map_rows(lambda row: row.tanh(), x)


class Block(nn.Module):
    """One nested compile region."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    @torch.compiler.nested_compile_region
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu() + x


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if TORCH < (2, 13):
        pytest.skip("this torch cannot trace the gradients of a while_loop")
    out = tmp_path_factory.mktemp("control") / "everything.aotpack"
    torch.manual_seed(0)
    aotpack.build(Everything(), (torch.randn(3, 4, requires_grad=True),), out=out, targets=("portable",))
    return out


def graphs(path: Path) -> dict[str, schema.Graph]:
    with Bundle.open(path) as bundle:
        found = {}
        for name, method in bundle.program.methods.items():
            found[f"{name}.forward"] = bundle.graph(method.forward)
            if method.backward is not None:
                found[f"{name}.backward"] = bundle.graph(method.backward.graph)
        return found


def test_graphs_survive_torch_and_back(everything: Path) -> None:
    """``to_fx`` gives what torch itself runs: the same values as the interpreter's."""
    graph = graphs(everything)["infer.forward"]
    module = to_fx(graph)
    shapes = [value.shape for value in graph.input_values]
    torch.manual_seed(0)
    inputs = [
        torch.zeros(()).long() if not shape and "int" in value.dtype else torch.randn(shape)
        for shape, value in zip(shapes, graph.input_values, strict=True)
    ]
    with torch.no_grad():
        expected = module(*inputs)
    for mine, torchs in zip(PortableExecutable(graph, CPU)([*inputs]), expected, strict=True):
        torch.testing.assert_close(mine, torchs)


def _nodes(graph: schema.Graph, op: str) -> list[schema.Node]:
    return [node for node in graph.nodes if node.op == f"higher_order.{op}"]


def test_identical_layers_are_stored_once(tmp_path: Path) -> None:
    """The graphs of eight layers hold as many subgraphs as those of three."""
    sizes = {}
    for layers in (3, 8):
        out = tmp_path / f"{layers}.aotpack"
        model = nn.Sequential(nn.Linear(4, 4), *[Block() for _ in range(layers)])
        aotpack.build(model, (torch.randn(3, 4),), out=out, targets=("portable",))
        for key, graph in graphs(out).items():
            calls = _nodes(graph, "invoke_subgraph")
            assert len(calls) == layers, key
            assert {call.args[0] for call in calls} == {GraphArg(next(iter(graph.subgraphs)))}
            assert len(graph.subgraphs) == 1, key
            sizes[key, layers] = len(msgspec.json.encode(next(iter(graph.subgraphs.values()))))
    assert all(sizes[key, 8] == size for (key, _), size in sizes.items())


def test_a_regions_forward_is_not_computed_again(tmp_path: Path) -> None:
    """Its backward takes what the forward saved, and nothing that its caller has is returned to it."""
    out = tmp_path / "m"
    aotpack.build(
        nn.Sequential(nn.Linear(4, 4), Block(), Block()), (torch.randn(3, 4),), out=out, targets=("portable",), methods=("train",)
    )
    found = graphs(out)
    (backward,) = found["train.backward"].subgraphs.values()
    assert "aten.addmm.default" not in {node.op for node in backward.nodes}
    (forward,) = found["train.forward"].subgraphs.values()
    assert not {ValueRef(name) for name in forward.inputs} & {*map(_hashable, forward.outputs)}
    assert not any(
        node.op == "aten.t.default" and _hashable(ValueRef(node.name)) in map(_hashable, forward.outputs)
        for node in forward.nodes
    )


def _hashable(arg: Any) -> Any:
    return arg if isinstance(arg, ValueRef) else None


def test_running_control_flow_imports_no_compiler(everything: Path, fresh_process: FreshProcess) -> None:
    code = """
        import json, sys
        import torch
        torch.ones(1, requires_grad=True).sum().backward()  # imports modules of torch's own
        before = set(sys.modules)
        import aotpack_loader
        model = aotpack_loader.load(sys.argv[1])
        model(torch.ones(3, 4, requires_grad=True)).sum().backward()
        with torch.no_grad():
            model.eval()(torch.ones(3, 4))
        print(json.dumps(sorted(set(sys.modules) - before)))
    """
    added = fresh_process(code, everything, from_nothing=True)
    assert [name for name in added if name.startswith(("torch._", "torch.fx", "torch.export", "functorch", "sympy"))] == []


def test_running_flex_attention_imports_no_compiler(tmp_path: Path, fresh_process: FreshProcess) -> None:
    example = torch.randn(1, 2, 16, 16)
    aotpack.build(flex_attention, (example, example, example), out=tmp_path / "m", targets=("portable",), methods=("infer",))
    code = """
        import json, sys
        import torch
        before = set(sys.modules)
        import aotpack_loader
        x = torch.ones(1, 2, 16, 16)
        with torch.no_grad():
            aotpack_loader.load(sys.argv[1]).eval()(x, x, x)
        print(json.dumps(sorted(set(sys.modules) - before)))
    """
    added = fresh_process(code, tmp_path / "m", from_nothing=True)
    assert [name for name in added if name.startswith(("torch._", "torch.fx", "torch.export", "functorch", "sympy"))] == []


class Scaled(nn.Module):
    """Control flow that no gradient goes through."""

    def __init__(self, scale: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = self.scale(x)
        return x * scale


SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "cond": lambda x: torch.cond(x.sum() > 0, lambda x: x.exp(), lambda x: x.cos(), (x,)),
    "while_loop": lambda x: while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y.sin()), (torch.tensor(0), x))[1],
    "scan": lambda x: scan(lambda carry, row: (carry + row, carry * row), x[0] * 1, x)[1],
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("operator", SCALES)
def test_control_flow_under_no_grad_has_no_gradients_without_dynamo(tmp_path: Path, operator: str) -> None:
    """torch.export forgets the mode around control flow, so it is not let; plain tracing keeps it."""
    if operator == "while_loop" and TORCH < (2, 13):
        pytest.skip("this torch cannot trace the gradients of a while_loop")
    model = Scaled(SCALES[operator])
    out, x = tmp_path / "model.aotpack", torch.randn(4, 3, requires_grad=True)

    def build(*front_ends: str) -> None:
        aotpack.build(model, (x,), out=out, targets=("portable",), methods=("train",), front_ends=front_ends)

    with pytest.raises(AotpackError, match=rf"export: LostGradientError: calls {operator} under no_grad.*test_control_flow\.py"):
        build("export")
    build("export", "trace")
    loaded = aotpack.load(out)
    for sign in (1, -1):
        here, there = [(sign * x.detach().abs()).requires_grad_() for _ in range(2)]
        model(here).sum().backward()
        loaded(there).sum().backward()
        torch.testing.assert_close(there.grad, here.grad)


def test_a_refusal_names_the_users_line(tmp_path: Path) -> None:
    def alias(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x, lambda x: x.cos(), (x,))

    with pytest.raises(AotpackError, match=r"(?s)aliasing.*test_control_flow\.py:\d+: return torch\.cond") as caught:
        aotpack.build(alias, (torch.randn(3),), out=tmp_path / "m", targets=("portable",))
    assert "torch.cond" in str(caught.value)


# ---------------------------------------------------------------- parts of a graph, for compilers that know no calls


class Parted(nn.Module):
    """Two kinds of regions, one of them called once; something before, between and after; a random draw."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks, self.last = nn.Linear(4, 4), nn.ModuleList([Block() for _ in range(3)]), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = once(self.first(x))
        x = self.blocks[1](self.blocks[0](x) * 2)
        return self.last(self.blocks[2](nn.functional.dropout(x * 2)))


@torch.compiler.nested_compile_region
def once(x: Tensor) -> Tensor:
    """Called once."""
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, GraphModule]:
    """The fx graphs of a model, as a target is given them."""
    given: dict[str, GraphModule] = {}

    def compile(self: Any, graphs: Any, *rest: Any) -> Any:
        given.update({item.key: item.module for item in graphs})
        return original(self, graphs, *rest)

    original = PortableTarget.compile
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PortableTarget, "compile", compile)
        out = tmp_path_factory.mktemp("parted") / "m"
        torch.manual_seed(0)
        aotpack.build(Parted(), (torch.randn(3, 4, requires_grad=True),), out=out, targets=("portable",), methods=("train",))
    return given


@pytest.mark.parametrize("key", ["train.forward", "train.backward"])
def test_parts_compute_what_the_graph_does(parted: dict[str, GraphModule], key: str) -> None:
    module = parted[key]
    found = parts.split(module)
    assert found is not None
    regions = [number for number, _ in found.calls if [n for n, _ in found.calls].count(number) == 3]
    assert len(set(regions)) == 1, "one part serves three calls"
    assert not any(node.target is torch.ops.higher_order.invoke_subgraph for part in found.modules for node in part.graph.nodes)
    torch.manual_seed(1)
    inputs = [
        torch.randn(node.meta["val"].shape).to(node.meta["val"].dtype) for node in module.graph.find_nodes(op="placeholder")
    ]
    torch.manual_seed(2)
    with torch.no_grad():
        expected = module(*inputs)
        whole = parts.without_calls(module)
        torch.manual_seed(2)
        for mine, torchs in zip(whole(*inputs), expected, strict=True):
            torch.testing.assert_close(mine, torchs, rtol=0, atol=0)
        torch.manual_seed(2)
        values = [*inputs]
        for number, numbers in found.calls:
            values += found.modules[number](*[values[i] for i in numbers])
    for position, torchs in zip(found.outputs, expected, strict=True):
        torch.testing.assert_close(values[position], torchs, rtol=0, atol=0)


def test_a_graph_without_repeated_calls_has_no_parts(everything: Path) -> None:
    assert parts.split(to_fx(graph_of(1, 1))) is None


def _target(
    calls: list[tuple[str, list[int]]], outputs: list[int], executables: dict[str, schema.Executable] | None = None
) -> Any:
    code = schema.Descriptor(media_types.CODE_AOTI, "sha256:" + "0" * 64, 1)
    sine = schema.Executable(code, [schema.GivenInput(0)], [0, 1])
    sequence = schema.Sequence([schema.PartCall(*call) for call in calls], outputs)
    return schema.Target("cpu", "aoti", "cpu", executables or {"part": sine}, sequences={"infer.forward": sequence})


CALLS: list[tuple[list[tuple[str, list[int]]], list[int], str]] = [
    ([("part", [0]), ("part", [2])], [4], ""),
    ([("other", [0])], [1], "there is no executable"),
    ([("part", [2]), ("part", [0])], [4], "index 2 is out of range, there are 2"),
    ([("part", [])], [2], "index 0 is out of range, there are 0"),
    ([("part", [0])], [4], "index 4 is out of range, there are 4"),
    ([("part", [0])], [2, 3], "2 outputs for a graph with 1"),
]


@pytest.mark.parametrize(("calls", "outputs", "message"), CALLS)
def test_sequences(calls: list[tuple[str, list[int]]], outputs: list[int], message: str) -> None:  # C14
    program = tiny_program(schema.Descriptor(media_types.GRAPH, "sha256:" + "0" * 64, 1), [])
    if not message:
        validate_target(_target(calls, outputs), program, "target")
        return
    with pytest.raises(CorruptBundleError, match=f"C14: {message}"):
        validate_target(_target(calls, outputs), program, "target")


def test_a_graph_runs_in_one_way() -> None:  # C14
    program = tiny_program(schema.Descriptor(media_types.GRAPH, "sha256:" + "0" * 64, 1), [])
    target = _target([("infer.forward", [0])], [2])
    target = msgspec.structs.replace(target, executables={"infer.forward": next(iter(target.executables.values()))})
    with pytest.raises(CorruptBundleError, match="C14: the graph is run by a sequence as well"):
        validate_target(target, program, "target")


def test_a_sequence_drops_what_nobody_reads() -> None:
    """Values live from the call that makes them to the last that takes them, as activations in a backward must."""
    alive: list[int] = []
    held: list[weakref.ref[Tensor]] = []

    class Part:
        count, returns_tensors = 2, True

        def __call__(self, inputs: list[Any]) -> list[Any]:
            alive.append(sum(reference() is not None for reference in held))
            results = [inputs[0] + 1, inputs[0] + 2]
            inputs.clear()
            held.extend(weakref.ref(result) for result in results)
            return results

    part: Any = Part()
    sequence = schema.Sequence([schema.PartCall("part", [i]) for i in (0, 1, 3, 5)], [7])
    run = AotiSequence(sequence, {"part": part}, 1)
    inputs = [torch.zeros(2)]
    (result,) = run(inputs)
    assert inputs == []
    assert torch.equal(result, torch.full((2,), 4.0))
    assert alive == [0, 1, 1, 1]


# ---------------------------------------------------------------- the cpu target


class Deep(nn.Module):
    """Equal layers, and a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(4, 4), nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


@pytest.mark.filterwarnings("ignore")  # eager's own, when it compiles a branch
def test_native_code_of_a_region_is_there_once(tmp_path: Path) -> None:
    """One library serves three layers, and gradients are eager's."""
    torch.manual_seed(0)
    model = Deep()
    aotpack.build(model, (torch.randn(3, 4),), out=tmp_path / "m", targets=("cpu",), methods=("train",), cache=False)
    with Bundle.open(tmp_path / "m") as bundle:
        (target,) = bundle.targets.values()
    for sequence in target.sequences.values():
        called = [call.part for call in sequence.calls]
        assert max(called.count(part) for part in called) == 3
    # Forward and backward each: what comes before the layers, a layer, what comes after.
    assert len({executable.code.digest for executable in target.executables.values()}) == 3 + 3
    loaded = aotpack.load(tmp_path / "m", backend="cpu")
    for seed in (1, 2, 3):
        torch.manual_seed(seed)
        x = torch.randn(3, 4)
        for module in (model, loaded):
            module.zero_grad()
            module(x).sum().backward()
        with torch.no_grad():
            torch.testing.assert_close(loaded(x), model(x))
        for mine, eagers in zip(loaded.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, eagers.grad)


@pytest.mark.skipif(not compiles_native_code(), reason="this torch makes no native code")
def test_native_code_without_a_counterpart_is_refused_by_name(tmp_path: Path) -> None:
    def loop(x: Tensor) -> Tensor:
        return while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x.sin()), (torch.tensor(0), x))[1]

    with pytest.raises(
        AotpackError, match=r"(?s)test_control_flow\.py.*: a while_loop that needs gradients\n.*portable"
    ) as raised:
        aotpack.build(loop, (torch.randn(3, requires_grad=True),), out=tmp_path / "m", targets=("cpu",), methods=("train",))
    assert str(raised.value).count("while_loop(") == 1  # the line, once
    assert not (tmp_path / "m").exists()
