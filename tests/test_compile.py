"""``compile_bundle`` and ``aotpack compile``: targets for a bundle from its graphs alone."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from click.testing import CliRunner, Result
from conftest import FreshProcess, tiny_inputs
from support.archive import Documents, pack

import aotpack
from aotpack import targets
from aotpack._torch.api.shape_env import Symbols
from aotpack._torch.inductor import lowering
from aotpack.graph import from_fx
from aotpack.graph.expressions import parse, render
from aotpack.graph.restore import to_fx
from aotpack.pipeline.preflight import check_compile
from aotpack.pipeline.reopen import graphs_of
from aotpack.targets import GraphToCompile, Target
from aotpack.targets.aoti.conversion import convert_graph
from aotpack.targets.cpu import target as cpu_target
from aotpack.tools.cli import main
from aotpack.writer.bundle import BlobStore, TargetEntry
from aotpack.writer.cache import CompileCache
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.devices.portable import PortableExecutable
from aotpack_loader.errors import (
    BuildError,
    BundleNotFoundError,
    CorruptBundleError,
    NotABundleError,
    TrustError,
    UnsupportedError,
)
from aotpack_loader.format import schema
from aotpack_loader.trust import decide_trust

ROOT = Path(__file__).parent.parent


class Seen(Target):
    """A third party's target: its code is a list of what it was given."""

    def __init__(self, variant: str = "") -> None:
        self.variant = variant
        self.graphs: Sequence[GraphToCompile] = ()

    @property
    def name(self) -> str:
        return f"seen:{self.variant}"

    def compile(
        self, graphs: Sequence[GraphToCompile], state: Sequence[schema.StateEntry], store: BlobStore, cache: CompileCache
    ) -> TargetEntry:
        self.graphs = graphs
        listed = [[g.key, g.training, sorted(g.private), sorted(g.saved.items())] for g in graphs]
        code = store.add_compressed(json.dumps(listed).encode(), "application/vnd.aotpack.code.seen.v1+zstd")
        executables = {g.key: schema.Executable(code, [], [0] * len(g.graph.outputs)) for g in graphs}
        return TargetEntry(schema.Target(self.name, "seen", "cpu", executables), None, [code])


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, Seen]:
    """The target ``seen``, as an entry point of another distribution brings it; those that were made, by variant."""
    made: dict[str, Seen] = {}

    class Point:
        name = "seen"

        def load(self) -> Callable[[str], Seen]:
            return lambda variant: made.setdefault(variant, Seen(variant))

    real = targets.entry_points

    def points(**where: str) -> Any:
        return [Point()] if where.get("name") == "seen" else real(**where)

    monkeypatch.setattr(targets, "entry_points", points)
    return made


def blobs(path: Path) -> dict[str, bytes]:
    with Bundle.open(path) as bundle:
        return {d.digest: bytes(bundle.read(d)) for d in bundle.descriptors()[1:]}


# ---------------------------------------------------------------- what is added, and what stays


def test_targets_are_added_and_all_else_stays(tiny_bundle: Path, tmp_path: Path, seen: Mapping[str, Seen]) -> None:
    """Any target of the protocol; the program, the weights and what was there are the same bytes, each kept once."""
    out = tmp_path / "more.aotpack"
    report = aotpack.compile_bundle(tiny_bundle, ["seen:a", "seen:b"], out=out)
    assert report.targets == ("portable", "seen:a", "seen:b")
    before, after = blobs(tiny_bundle), blobs(out)
    assert before.items() <= after.items()
    with Bundle.open(out) as new, Bundle.open(tiny_bundle) as old:
        assert report.digest == new.digest
        assert new.manifests["portable"] == old.manifests["portable"]
        assert new.program == old.program
        assert all(target.producer is None for target in new.targets.values())  # the program's own
        new.verify()
        assert new.targets["seen:a"].executables == new.targets["seen:b"].executables  # one blob
    assert len(after) == len(before) + 5  # two documents, two manifests, one code
    assert aotpack.load(out, backend="portable") is not None


def test_the_route_does_not_show(tiny_model: torch.nn.Module, tmp_path: Path, seen: Mapping[str, Seen]) -> None:
    """Equal input, equal bytes: a target added later, or built with the others; twice; a bundle over itself; a directory."""
    args, kwargs = tiny_inputs()
    one, two, both = tmp_path / "one.aotpack", tmp_path / "two.aotpack", tmp_path / "both.aotpack"
    aotpack.build(tiny_model, args, kwargs, out=one, targets=("portable", "seen:a"), self_test=True, check=False)
    all_three = ("portable", "seen:a", "seen:b")
    built = aotpack.build(tiny_model, args, kwargs, out=both, targets=all_three, self_test=True, check=False)
    added = aotpack.compile_bundle(one, ["seen:b"], out=two)
    assert added.digest == built.digest
    assert two.read_bytes() == both.read_bytes()
    assert aotpack.compile_bundle(one, ["seen:b"], out=one).digest == built.digest
    unpacked = aotpack.compile_bundle(two, ["seen:c"], out=tmp_path / "three", layout="directory")
    assert aotpack.compile_bundle(one, ["seen:c"], out=tmp_path / "three.aotpack").digest == unpacked.digest
    assert aotpack.compile_bundle(tmp_path / "three", ["seen:d"], out=f"{tmp_path}/three/").targets[-1] == "seen:d"


def test_another_compiler_is_named(
    tiny_bundle: Path, tmp_path: Path, seen: Mapping[str, Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program keeps who wrote it; a target says who compiled it where that is another."""
    monkeypatch.setattr("aotpack.pipeline.pipeline.__version__", "9.9")
    aotpack.compile_bundle(tiny_bundle, ["seen:a"], out=tmp_path / "more.aotpack")
    with Bundle.open(tmp_path / "more.aotpack") as bundle:
        assert bundle.program.producer.aotpack == aotpack.__version__
        assert bundle.targets["seen:a"].producer == schema.Producer("9.9", str(torch.__version__))
        assert bundle.targets["portable"].producer is None


def test_a_target_gets_what_a_build_gives_it(tiny_model: torch.nn.Module, tmp_path: Path, seen: Mapping[str, Seen]) -> None:
    """The same graphs with the same roles, and nodes with values of the same types over the same symbols."""
    args, kwargs = tiny_inputs()
    batch = torch.export.Dim("batch", min=2, max=64)
    shapes = {"x": {0: batch}, "scale": {0: batch}}
    aotpack.build(tiny_model, args, kwargs, out=tmp_path / "a", targets=("seen:built",), dynamic_shapes=shapes)
    aotpack.compile_bundle(tmp_path / "a", ["seen:added"], out=tmp_path / "b")
    for built, added in zip(seen["built"].graphs, seen["added"].graphs, strict=True):
        assert (built.key, built.graph, built.descriptor) == (added.key, added.graph, added.descriptor)
        assert (built.training, built.private, built.saved) == (added.training, added.private, added.saved)
        for ours, theirs in zip(added.module.graph.nodes, built.module.graph.nodes, strict=True):
            assert (ours.op, ours.name) == (theirs.op, theirs.name)
            if ours.op != "output":
                assert str(ours.meta["val"]) == str(theirs.meta["val"])
    inputs = [node.meta["val"] for node in added.module.graph.find_nodes(op="placeholder")]
    (symbol,) = {str(size) for value in inputs for size in value.shape if type(size) is not int}
    env = inputs[0].fake_mode.shape_env
    ranges = {str(name): limits for name, limits in env.var_to_range.items()}
    assert (ranges[symbol].lower, ranges[symbol].upper) == (2, 64)


# ---------------------------------------------------------------- native code

ADD = """
import json, sys, warnings
warnings.simplefilter("ignore")  # of torch's compiler, about torch
import torch, aotpack
source, out = sys.argv[1:]
report = aotpack.compile_bundle(source, ["cpu"], out=out, self_test=True)
print(json.dumps([report.targets, report.notes, "model" in sys.modules, "example_digits" in sys.modules]))
"""

STEP = """
import json, sys
import torch, aotpack_loader
bundle, given = sys.argv[1:]
model = aotpack_loader.load(bundle, backend="cpu")
torch.manual_seed(3)
images, labels = torch.load(given, weights_only=True)
out = model(images, labels)
out["loss"].backward()
seen = {"loss": out["loss"].detach(), "logits": out["logits"].detach()}
seen |= {f"gradient {name}": p.grad for name, p in model.named_parameters()}
seen |= {f"buffer {name}": value for name, value in model.named_buffers()}
torch.save(seen, given + ".out")
print(json.dumps(model.aotpack.backend))
"""


def test_digits_gets_native_code_where_its_source_is_not(
    digits_model: torch.nn.Module, fresh_process: FreshProcess, tmp_path: Path
) -> None:
    """Built portable, compiled and self-tested in one process without the source, trained in another: eager's gradients."""
    from conftest import load_example

    example = load_example("digits")
    source, out = tmp_path / "portable.aotpack", tmp_path / "native.aotpack"
    aotpack.build(
        digits_model,
        example.example_inputs(),
        out=source,
        targets=("portable",),
        dynamic_shapes=example.dynamic_shapes(),
        self_test=True,
    )
    added, notes, *imported = fresh_process(ADD, source, out, from_nothing=True)
    assert [name.partition(":")[0] for name in added] == ["portable", "cpu"]
    assert any("self-test" in note for note in notes)
    assert imported == [False, False]
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(7, 1, 8, 8, generator=generator), torch.randint(10, (7,), generator=generator)
    torch.save((images, labels), tmp_path / "batch.pt")
    assert fresh_process(STEP, out, tmp_path / "batch.pt").startswith("cpu:")
    found = torch.load(tmp_path / "batch.pt.out", weights_only=True)
    eager = copy.deepcopy(digits_model)
    result = eager(images, labels)
    result["loss"].backward()
    expected = {"loss": result["loss"].detach(), "logits": result["logits"].detach()}
    expected |= {f"gradient {name}": p.grad for name, p in eager.named_parameters()}
    expected |= {f"buffer {name}": value for name, value in eager.named_buffers()}
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_code_is_the_same_by_either_route(tiny_model: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled anew from the bundle, AOTInductor's code is byte by byte that of a direct build.

    A build for two instruction sets lowers each graph once.
    """
    lowered: list[int] = []
    really = lowering.lower_with_aoti

    def counted(graph: lowering.GraphToLower, codes: Sequence[lowering.Code]) -> Any:
        lowered.append(len(codes))
        return really(graph, codes)

    monkeypatch.setattr(lowering, "lower_with_aoti", counted)
    args, kwargs = tiny_inputs()
    build = {"methods": ("infer",), "cache": False, "check": False}
    aotpack.build(tiny_model, args, kwargs, out=tmp_path / "one", targets=("cpu:x86-64-v2",), **build)
    both = aotpack.build(tiny_model, args, kwargs, out=tmp_path / "both", targets=("cpu:x86-64-v2", "cpu:x86-64-v3"), **build)
    added = aotpack.compile_bundle(tmp_path / "one", ["cpu:x86-64-v3"], out=tmp_path / "two", cache=False)
    assert added.digest == both.digest
    assert lowered == [1, 2, 1]


def test_a_self_test_that_fails_writes_nothing(tmp_path: Path, tiny_model: torch.nn.Module, seen: Mapping[str, Seen]) -> None:
    """What runs here is compared with what was recorded; what cannot run here is said."""
    args, kwargs = tiny_inputs()
    source, out = tmp_path / "a.aotpack", tmp_path / "b.aotpack"
    aotpack.build(tiny_model, args, kwargs, out=source, targets=("seen:a",), self_test=True)
    report = aotpack.compile_bundle(source, ["portable", "seen:b"], out=out, self_test=True)
    assert any("portable: the self-test's" in note for note in report.notes)
    assert any(warning.startswith("seen:b was not tested") for warning in report.warnings)
    other = copy.deepcopy(tiny_model)
    with torch.no_grad():
        other.linear.weight.add_(1)
    recorded = aotpack.build(other, args, kwargs, out=tmp_path / "other.aotpack", targets=("seen:a",), self_test=True)
    assert recorded.size == os.path.getsize(tmp_path / "other.aotpack")
    swapped = tmp_path / "swapped.aotpack"
    _with_self_test_of(source, tmp_path / "other.aotpack", swapped)
    out.unlink()
    with pytest.raises(BuildError, match="differ from the recorded self-test") as caught:
        aotpack.compile_bundle(swapped, ["portable"], out=out, self_test=True)
    assert any(problem.where.startswith("gradient.") for problem in caught.value.problems)
    assert not out.exists()
    assert not list(tmp_path.glob(".aotpack-*"))


def _with_self_test_of(source: Path, other: Path, out: Path) -> None:
    """The bundle ``source`` with the recorded values of another."""
    import msgspec

    from aotpack.writer.bundle import write_bundle

    with Bundle.open(source) as bundle, Bundle.open(other) as wrong, BlobStore(out) as store:
        program = msgspec.structs.replace(bundle.program, self_test=wrong.program.self_test)
        for opened in (bundle, wrong):
            for descriptor in opened.descriptors():
                store.add_blob(descriptor, opened.map(descriptor))
        found = bundle.manifests["seen:a"]
        layers = [*found.manifest.layers[1:], wrong.program.self_test]
        kept = [layer for layer in layers if layer and layer != bundle.program.self_test]
        write_bundle(out, store, program, [TargetEntry(found.target, None, kept)])


# ---------------------------------------------------------------- trust


def test_trust_is_passed_on_and_never_made(
    tiny_bundle: Path, tmp_path: Path, seen: Mapping[str, Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new bundle is this user's where the old one was, or where the caller vouches for it."""
    ours = aotpack.compile_bundle(tiny_bundle, ["seen:a"], out=tmp_path / "a.aotpack")
    assert decide_trust(ours.digest, None).trusted
    assert not ours.warnings
    monkeypatch.setenv("AOTPACK_STATE", str(tmp_path / "state"))
    foreign = aotpack.compile_bundle(tiny_bundle, ["seen:b"], out=tmp_path / "b.aotpack")
    assert not decide_trust(foreign.digest, None).trusted
    assert foreign.digest in foreign.warnings[0]
    vouched = aotpack.compile_bundle(tiny_bundle, ["seen:b"], out=tmp_path / "b.aotpack", trust="all")
    assert vouched.digest == foreign.digest
    assert decide_trust(foreign.digest, None).trusted


def test_untrusted_native_code_is_not_tested(
    tiny_model: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args, kwargs = tiny_inputs()
    aotpack.build(tiny_model, args, kwargs, out=tmp_path / "a", targets=("portable",), methods=("infer",), self_test=True)
    monkeypatch.setenv("AOTPACK_STATE", str(tmp_path / "state"))
    with pytest.raises(TrustError):
        aotpack.compile_bundle(tmp_path / "a", ["cpu"], out=tmp_path / "b", self_test=True)
    assert not (tmp_path / "b").exists()


# ---------------------------------------------------------------- what is refused


def test_refusals(tiny_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.aotpack"
    refused: list[tuple[type[Exception], str, Path, list[str], Any]] = [
        (BuildError, "has portable already", tiny_bundle, ["portable"], out),
        (BuildError, "no target 'gpu'", tiny_bundle, ["gpu"], out),
        (BuildError, "No target was asked for", tiny_bundle, [], out),
        (BuildError, "There is no target 'cpu:pentium'", tiny_bundle, ["cpu:pentium"], out),
        (BundleNotFoundError, "no bundle at", tmp_path / "nothing", ["cpu"], out),
        (BuildError, "There is no directory", tiny_bundle, ["cpu"], tmp_path / "no" / "out"),
    ]
    text = tmp_path / "text"
    text.write_text("hello")
    refused.append((NotABundleError, "is not a bundle", text, ["cpu"], out))
    for error, message, bundle, names, where in refused:
        with pytest.raises(error, match=message):
            aotpack.compile_bundle(bundle, names, out=where)
    assert not out.exists()


def test_a_directory_of_something_else_is_not_replaced(tiny_bundle: Path, tmp_path: Path, seen: Mapping[str, Seen]) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(BuildError, match="not empty and holds no bundle"):
        aotpack.compile_bundle(tiny_bundle, ["seen:a"], out=tmp_path / "mine", layout="directory")
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_a_damaged_blob_is_not_passed_on(tiny_bundle: Path, tmp_path: Path, seen: Mapping[str, Seen]) -> None:
    """Weights are not read before they are copied; their digest is checked then."""
    damaged = tmp_path / "damaged.aotpack"
    with Bundle.open(tiny_bundle) as bundle:
        weights = bytes(bundle.read(bundle.program.weights[0]))
    data = bytearray(tiny_bundle.read_bytes())
    data[data.index(weights) + len(weights) - 1] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(BuildError, match="is damaged"):
        aotpack.compile_bundle(damaged, ["seen:a"], out=tmp_path / "out.aotpack")
    assert not (tmp_path / "out.aotpack").exists()


OWN = """
import torch
@torch.library.custom_op("aotpack_compile_test::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2
@doubled.register_fake
def _(x):
    return torch.empty_like(x)
"""


def test_operators_that_are_missing_are_named(fresh_process: FreshProcess, tmp_path: Path) -> None:
    """The command imports what the user says registers them."""
    (tmp_path / "own_operators.py").write_text(OWN)
    code = """
    import json, os, sys, warnings
    warnings.simplefilter("ignore")  # of torch's compiler, about torch
    import torch, aotpack
    os.chdir(sys.argv[1])
    import own_operators
    aotpack.build(own_operators.doubled, (torch.ones(3),), out="a.aotpack", targets=("portable",))
    print(json.dumps(0))
    """
    fresh_process(code, tmp_path, importable=[tmp_path])
    compiled = """
    import json, os, sys, warnings
    warnings.simplefilter("ignore")
    os.chdir(sys.argv[1])
    from click.testing import CliRunner
    from aotpack.tools.cli import main
    done = CliRunner().invoke(main, ["compile", "a.aotpack", "-o", "b.aotpack", "--json", *sys.argv[2:]])
    print(json.dumps([done.exit_code, json.loads(done.stdout)]))
    """
    exit_code, found = fresh_process(compiled, tmp_path, "--target", "cpu:x86-64-v2")
    assert exit_code == 1
    assert found["error"]["kind"] == "BuildError"
    assert found["error"]["problems"] == [{"where": "aotpack_compile_test.doubled.default", "message": "not registered"}]
    assert "aotpack_compile_test" in found["error"]["hint"]
    exit_code, found = fresh_process(compiled, tmp_path, "--target", "cpu:x86-64-v2", "--import", "nowhere")
    assert (exit_code, found["error"]["kind"]) == (1, "EntryError")
    exit_code, found = fresh_process(compiled, tmp_path, "--target", "cpu:x86-64-v2", "--import", "own_operators")
    assert exit_code == 0, found
    assert found["targets"] == ["portable", "cpu:x86-64-v2"]


@pytest.mark.parametrize("where", ["inputs", "nodes", "kwargs"])
def test_names_are_no_code(where: str) -> None:
    """torch.fx makes Python of a graph and runs it: a hostile name is refused before."""
    evil = "x=__import__('os').abort()"
    value = schema.TensorValue("float32", [2], [1])
    name = evil if where == "inputs" else "x"
    node = schema.Node(
        evil if where == "nodes" else "y",
        "aten.neg.default",
        [schema.ValueRef(name)],
        value,
        {evil: 1} if where == "kwargs" else {},
    )
    with pytest.raises(UnsupportedError, match="not identifiers"):
        to_fx(schema.Graph([name], [value], [node], [schema.ValueRef(node.name)]))


@pytest.mark.parametrize("name", ["higher_order.call_torchbind", "higher_order.print", "aten.from_file.default"])
def test_operators_are_those_that_a_loader_runs(name: str) -> None:
    """Restoring runs operators on fake values: none that reaches further."""
    value = schema.TensorValue("float32", [2], [1])
    graph = schema.Graph(["x"], [value], [schema.Node("y", name, [schema.ValueRef("x")], value)], [schema.ValueRef("y")])
    with pytest.raises((UnsupportedError, CorruptBundleError), match=name):
        to_fx(graph)


# ---------------------------------------------------------------- expressions

SYMBOLS = {name: sympy.Symbol(name, positive=True, integer=True) for name in ("s0", "s1")}
SYMBOLS["u0"] = sympy.Symbol("u0", integer=True)


@pytest.mark.parametrize(
    "text",
    [
        "s0",
        "(2 * s0 * s1)",
        "((3 * s0) // 2)",
        "((s0 // 2) % 4)",
        "(u0 % 3)",
        "((-1) + s0)",
        "max(2, s0)",
        "min(s0, u0)",
        "((s0 % 4) == 0)",
        "((s0 < 3) or (s1 >= 2))",
        "(not ((s0 < 3) and (s1 >= 2)))",
        "((u0 == 1) * 1 + (not (u0 == 1)) * 0)",
        "trunc((0.3 * float(s0)))",
        "((s0 / 2) <= 3.5)",
        "(round((float(s0) / 2.5)) == 3)",
        "floor(pow(float(s0), 0.7))",
        "ceil(sqrt(float(s0)))",
    ],
)
def test_expressions_come_back(text: str) -> None:
    """What the compiler writes it reads to the same value and writes again, up to the order of terms."""
    again = render(parse(text, SYMBOLS))
    assert parse(again, SYMBOLS) == parse(text, SYMBOLS)
    assert render(parse(again, SYMBOLS)) == again


def test_expressions_are_read_as_the_loader_reads_them() -> None:
    assert parse("007 + 2 * s0 - -3", SYMBOLS) == 10 + 2 * SYMBOLS["s0"]
    for bad in ("s0 +", "__import__('os')", "s0 ** 2", "(" * 200 + "1" + ")" * 200):
        with pytest.raises(CorruptBundleError):
            parse(bad, SYMBOLS)


# ---------------------------------------------------------------- the command


def invoke(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


def test_the_command(tiny_bundle: Path, tmp_path: Path, seen: Mapping[str, Seen]) -> None:
    out = tmp_path / "out.aotpack"
    done = invoke("compile", tiny_bundle, "-o", out, "--target", "seen:a", "--target", "seen:b", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["targets"] == ["portable", "seen:a", "seen:b"]
    assert [stage["name"] for stage in report["stages"]] == ["restore", "compile seen:a, seen:b", "write"]
    shown = invoke("compile", tiny_bundle, "-o", tmp_path / "again.aotpack", "--target", "seen:a", "--target", "seen:b")
    assert report["digest"] in shown.stdout
    assert "✓ compile" in shown.stderr
    assert invoke("verify", out).exit_code == 0


def test_the_command_says_what_is_wrong(tiny_bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.aotpack"
    assert invoke("compile", tiny_bundle, "-o", out).exit_code == 2  # no target
    done = invoke("compile", tiny_bundle, "-o", out, "--target", "portable")
    assert done.exit_code == 1
    assert "has portable already" in done.stderr
    done = invoke("compile", tiny_bundle, "-o", out, "--target", "gpu", "--json")
    assert json.loads(done.stdout)["error"]["kind"] == "BuildError"
    assert not out.exists()


def test_a_graph_that_survives_is_equal(tiny_bundle: Path) -> None:
    """The types of values are read from the fake values, not from what they were made of."""
    from aotpack.graph.restore import symbols_of

    with Bundle.open(tiny_bundle) as bundle:
        method = bundle.program.methods["train"]
        graph = bundle.graph(method.forward)
    symbols = symbols_of(method, [graph])
    module = to_fx(graph, symbols)
    for node in module.graph.nodes:
        node.meta.pop("aotpack", None)
    assert from_fx(module, symbols.env) == graph


def test_operators_of_torchs_python_are_stored_as_those_of_its_kernels() -> None:
    """A reader without Python finds what a bundle has; the compiler finds what its tables have."""
    graph, prims, value = torch.fx.Graph(), torch.ops.prims, torch.randn(3)
    place = {"dtype": torch.int64, "device": torch.device("cpu"), "requires_grad": False}
    given = graph.placeholder("x")
    given.meta["val"] = value
    made = [
        (prims.convert_element_type.default, (given, torch.float64), {}, value.double()),
        (prims.rev.default, (given, [0]), {}, value.flip(0)),
        (prims.iota.default, (3,), {"start": 0, "step": 1, **place}, torch.arange(3)),
        (prims.iota.default, (3,), {"start": 7, "step": -2, **place}, torch.tensor([7, 5, 3])),
    ]
    nodes = []
    for target, args, kwargs, result in made:
        nodes.append(graph.call_function(target, args, kwargs))
        nodes[-1].meta["val"] = result
    graph.output(tuple(nodes))
    stored = from_fx(torch.fx.GraphModule(torch.nn.Module(), graph), None)
    names = ["aten._to_copy.default", "aten.flip.default", "aten.arange.start_step", "aten.arange.start_step"]
    assert [node.op for node in stored.nodes] == names
    for found, (_, _, _, result) in zip(PortableExecutable(stored, torch.device("cpu"))([value]), made, strict=True):
        assert torch.equal(found, result)
    calls = [(node.target, node.kwargs) for node in to_fx(stored).graph.nodes if node.op == "call_function"]
    assert calls == [(target, kwargs) for target, _, kwargs, _ in made]


def restored(path: Path) -> dict[str, GraphToCompile]:
    with Bundle.open(path) as bundle:
        return {item.key: item for item in graphs_of(bundle)}


@pytest.mark.parametrize("change", ["minimum", "maximum", "hint", "constraint"])
def test_what_a_bundle_says_of_sizes_is_in_the_key_of_its_code(tmp_path: Path, change: str) -> None:
    """A bundle with the graph of a public model and a narrower range gave its code to the user's own build of that model."""
    path = ROOT / "spec/vectors/v1/valid/dynamic_batch/bundle.aotpack"
    honest = convert_graph(restored(path)["train.forward"], {}, ()).fingerprint
    documents = Documents(path)
    method = documents.program["methods"]["train"]
    (symbol,) = method["symbols"]
    if change == "constraint":
        method["constraints"] = [*method.get("constraints", []), f"{symbol['name']} == {symbol['hint']}"]
    else:
        symbol[change] = {"minimum": symbol["minimum"] + 1, "maximum": 63, "hint": symbol["hint"] + 1}[change]
    (tmp_path / "other").write_bytes(pack(documents.files()))
    other = restored(tmp_path / "other")["train.forward"]
    assert other.graph == restored(path)["train.forward"].graph
    assert convert_graph(other, {}, ()).fingerprint != honest
    assert other.sizes


STRING = 'left"; asm(".incbin \\"/etc/passwd\\""); auto more = "left'


@pytest.mark.parametrize("text", [STRING, "left\n", "left\\", 'le"ft'])
def test_a_string_cannot_leave_its_literal(text: str) -> None:
    """Inductor writes strings into C++ as they are. Here the compiler would put a file of this machine into the code."""
    value = schema.TensorValue("int64", [4], [1])
    inputs = [schema.TensorValue("float32", [size], [1]) for size in (8, 4)]
    arguments = [schema.ValueRef("a"), schema.ValueRef("b")]
    node = schema.Node(name="s", op="aten.searchsorted.Tensor", args=arguments, kwargs={"side": text}, value=value)
    graph = schema.Graph(["a", "b"], inputs, [node], [schema.ValueRef("s")])
    item = GraphToCompile("infer.forward", graph, schema.Descriptor("", "", 0), to_fx(graph, Symbols()))
    with pytest.raises(BuildError, match="cannot compile a string with quotes") as caught:
        cpu_target._refuse_strings([item])
    assert "searchsorted" in str(caught.value)


def test_the_order_of_targets_decides_nothing(tmp_path: Path) -> None:
    """The graphs are traced for the decompositions of one target, so it must not be the first that is named."""
    orders = [("cpu", "portable"), ("portable", "cpu")]
    first, second = ([target.name for target in check_compile(order, (), tmp_path / "m.aotpack", "file")] for order in orders)
    assert first == second
    assert len(first) == 2
