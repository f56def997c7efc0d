"""What a bundle, an argument or a module's state may not do to the loader: one test a finding, small bundles written by hand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from conftest import FreshProcess
from support.archive import Documents, digest_of, pack, tiny_graph, write_tiny

import aotpack
import aotpack_loader
from aotpack_loader import replay
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.layout import open_layout
from aotpack_loader.devices import aoti, operators
from aotpack_loader.devices.backends import unfit
from aotpack_loader.devices.packages import package_of
from aotpack_loader.devices.portable import PortableExecutable
from aotpack_loader.errors import (
    AotpackError,
    CorruptBundleError,
    InputError,
    NotABundleError,
    Problem,
    TrustError,
    UnsupportedError,
    UnsupportedVersionError,
)
from aotpack_loader.format import expressions, media_types, schema
from aotpack_loader.format.validate import validate_program
from aotpack_loader.format.validate_graph import validate_graph
from aotpack_loader.runtime.bases import Base
from aotpack_loader.runtime.call import MethodCall
from aotpack_loader.runtime.epilogue import Epilogue
from aotpack_loader.runtime.loaded_method import LoadedMethod
from aotpack_loader.runtime.views import CallValues
from aotpack_loader.selftest import run_self_test
from devtools.paths import ROOT

CPU = torch.device("cpu")
GRAPH = schema.Descriptor(media_types.GRAPH, "sha256:" + "0" * 64, 1)


# ---------------------------------------------------------------- operators


@pytest.mark.parametrize(
    "name",
    [
        "aten._reshape_alias.default",
        "aten._reshape_alias_copy.default",
        "aten._resize_output.default",
        "aten.resize.default",
        "aten.set.source_Tensor",
        "aten._nested_view_from_buffer.default",
        "aten._sparse_coo_tensor_unsafe.default",
        "aten._convert_indices_from_coo_to_csr.default",
        "aten.add_.Tensor",  # changes its argument
        "aten.add.out",
        "aten.resize_.default",
        "prims.copy_to.default",
        "aten.save.default",  # TorchScript's own
        "aten.mul.left_t",
        "aten.__class__.mro",
        "aten.add.__class__",
        "aten.add",
        "inductor._reinterpret_tensor.default",
        "prim.Print.default",
        "profiler._record_function_enter_new.default",
    ],
)
def test_operators_no_graph_may_use(name: str) -> None:
    with pytest.raises(CorruptBundleError, match="may not use"):
        operators.resolve(name, declared=("inductor", "prim", "profiler"))


@pytest.mark.parametrize(
    "name",
    ["aten.add.Tensor", "aten.sym_size.int", "aten._unsafe_index.Tensor", "aten._assert_scalar.default", "prims.iota.default"],
)
def test_operators_of_honest_graphs(name: str) -> None:
    assert callable(operators.implementation(name))


def test_every_namespace_of_torch_is_known(fresh_process: FreshProcess) -> None:
    """A release of torch with a new one needs a decision here."""
    code = "import json, torch; print(json.dumps([name.partition('::')[0] for name in torch._C._dispatch_get_all_op_names()]))"
    assert set(fresh_process(code, from_nothing=True)) <= operators.MATH_NAMESPACES | operators.TORCH_NAMESPACES


@pytest.fixture(scope="module")
def halver() -> Any:
    """A package's operator, ``test_hardening::halve``."""
    library = torch.library.Library("test_hardening", "FRAGMENT")
    library.define("halve(Tensor x, Tensor y) -> Tensor")
    library.impl("halve", lambda x, y: x / 2, "CompositeExplicitAutograd")
    yield library
    library._destroy()


def _edited(path: Path, edit: Callable[[Documents], object]) -> Path:
    documents = Documents(path)
    edit(documents)
    path.write_bytes(pack(documents.files()))
    return path


def _regraph(documents: Documents, change: Callable[[dict[str, Any]], object]) -> None:
    from aotpack_loader.archive import compression

    raw = b""

    def rewrite(data: bytes) -> bytes:
        nonlocal raw
        size = int(
            next(layer for layer in documents.manifest["layers"] if layer["mediaType"] == media_types.GRAPH)["annotations"][
                media_types.ANNOTATION_RAW_SIZE
            ]
        )
        graph = json.loads(compression.decompress(data, size))
        change(graph)
        raw = json.dumps(graph).encode()
        return compression.compress(raw)

    documents.replace_blob(media_types.GRAPH, rewrite)
    for descriptor in (*documents.manifest["layers"], documents.program["methods"]["infer"]["forward"]):
        if descriptor["mediaType"] == media_types.GRAPH:
            descriptor["annotations"] = {
                media_types.ANNOTATION_RAW_SIZE: str(len(raw)),
                media_types.ANNOTATION_RAW_DIGEST: digest_of(raw),
            }


@pytest.fixture
def custom_bundle(tmp_path: Path, halver: Any) -> Path:
    """A bundle whose graph calls ``test_hardening.halve``, built by nobody here."""
    write_tiny(tmp_path / "m")

    def edit(documents: Documents) -> None:
        documents.program["requirements"]["operators"] = ["test_hardening"]
        _regraph(documents, lambda graph: graph["nodes"][0].update(op="test_hardening.halve.default"))

    return _edited(tmp_path / "m", edit)


def test_operators_of_others_need_consent(custom_bundle: Path) -> None:
    with pytest.raises(TrustError, match=r"operators=\('test_hardening',\)") as caught:
        aotpack.load(custom_bundle)
    assert [problem.where for problem in caught.value.problems] == ["test_hardening"]
    with pytest.raises(TrustError):
        aotpack.load(custom_bundle, operators=("other",))
    with Bundle.open(custom_bundle) as bundle:
        digest = bundle.digest
    for consent in ({"operators": ["test_hardening"]}, {"trust": digest}, {"trust": "all"}):
        model = aotpack.load(custom_bundle, **consent).eval()
        with torch.no_grad():
            assert torch.equal(model(torch.ones(4)), torch.full((4,), 0.5))
    with pytest.raises(aotpack_loader.AotpackError, match="Pass a collection"):
        aotpack.load(custom_bundle, operators="test_hardening")


def test_namespaces_of_torch_are_refused_with_consent_too(tmp_path: Path) -> None:
    write_tiny(tmp_path / "m")
    _edited(tmp_path / "m", lambda d: d.program["requirements"].update(operators=["inductor"]))
    with pytest.raises(CorruptBundleError, match="inductor, which bundles may not use"):
        aotpack.load(tmp_path / "m", operators=("inductor",), trust="all")


def test_a_build_refuses_what_the_portable_target_would(tmp_path: Path) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten._reshape_alias(x * 2, [4], [1])

    with pytest.raises(UnsupportedError, match="_reshape_alias"):
        aotpack.build(model, (torch.ones(4),), out=tmp_path / "m", targets=("portable",), methods=("infer",))


@pytest.mark.parametrize(
    ("name", "operands"),
    [
        ("mod", ("%999999999d", 5)),
        ("mul", ([0], 10**12)),
        ("mul", ("a", 3)),
        ("mul", (2**62, 4)),
        ("add", (2**64, 1)),
        ("pow", (9, 10**9)),
        ("pow", (9, 64)),
        ("floordiv", (1, 0)),
        ("ceil", (float("nan"),)),
        ("and", (True, 1.5)),
        ("getitem", ({"a": 1}, "a")),
        ("getitem", ((1, 2), 2)),
        ("getitem", ((1, 2), -1)),
        ("getitem", ("text", 0)),
        ("add", (1,)),
    ],
)
def test_builtins_are_bounded(name: str, operands: tuple[Any, ...]) -> None:
    with pytest.raises(CorruptBundleError, match=rf"builtin\.{name}"):
        operators.implementation(f"builtin.{name}")(*operands)


def test_builtins_of_honest_graphs() -> None:
    def compute(name: str, *operands: Any) -> Any:
        return operators.implementation(f"builtin.{name}")(*operands)

    assert compute("floordiv", -7, 2) == -4
    assert compute("pow", 2, 10) == 1024
    assert compute("pow", 2.0, 0.5) == 2**0.5
    assert compute("getitem", (1, torch.ones(1)), 1).item() == 1
    assert compute("sym_max", 3, 4) == 4
    assert compute("sym_not", False) is True
    assert compute("truediv", 1, 4) == 0.25
    assert compute("round", 2.5) == 2


@pytest.mark.skipif(find_spec("torch.nn.modules.linear_cross_entropy") is None, reason="this torch has no such operators")
def test_operators_that_torch_registers_at_their_first_use_are_there() -> None:
    code = (
        "import torch; from aotpack_loader.devices import operators\n"
        "assert not hasattr(torch.ops.torch_nn, '_linear_cross_entropy_batch_chunked')\n"
        "operators.require(['torch_nn._linear_cross_entropy_batch_chunked.default'])"
    )
    subprocess.run([sys.executable, "-I", "-c", code], check=True, timeout=120)


# ---------------------------------------------------------------- code


def test_a_code_package_is_checked_before_it_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / ("ab" * 32 + ".so")
    library.write_bytes(b"first")
    package = package_of(library, b"[]")
    code = package / "data/aotinductor/model/code.wrapper.so"
    assert package_of(library, b"[]") == package
    assert len({package, package_of(library, None), package_of(library, b"[1]")}) == 3, "fallbacks are part of it"
    library.unlink()
    library.write_bytes(b"again")
    assert package_of(library, b"[]") == package
    assert code.read_bytes() == b"again", "the damaged file that the cache has replaced"
    (package / "data/aotinductor/model/code.wrapper.json").write_bytes(b"other")
    package_of(library, b"[]")
    assert (package / "data/aotinductor/model/code.wrapper.json").read_bytes() == b"[]"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]

    def no_links(*arguments: object) -> None:
        raise PermissionError(1, "no links here")

    shutil.rmtree(package)
    monkeypatch.setattr(os, "link", no_links)
    assert package_of(library, b"[]") == package
    assert code.read_bytes() == b"again"
    assert not code.samefile(library)
    assert package_of(library, b"[]") == package


class _Runner:
    """Stands in for torch's runner: returns as many tensors as it was told to."""

    def __init__(self, count: int) -> None:
        self.count, self.given = count, []

    def __call__(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        self.given = list(inputs)
        return [torch.ones(1)] * self.count


@pytest.mark.parametrize("outputs", [[0, 1], [1, 0, 1]])
def test_code_that_returns_too_little(outputs: list[int]) -> None:
    runner = _Runner(1)
    compiled = aoti.AotiExecutable(runner, schema.Executable(GRAPH, [schema.SizeCarrier(0)], outputs))
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"), pytest.raises(CorruptBundleError, match="returned 1 values; its target uses 2"):
            compiled([5])
    finally:
        torch.set_default_dtype(torch.float32)
    (carrier,) = runner.given
    assert (carrier.dtype, carrier.device, carrier.shape) == (torch.float32, CPU, (5, 0)), "whatever the process's defaults"
    runner.count = 2
    assert len(compiled([5])) == len(outputs)


def test_code_for_another_system() -> None:
    target = schema.Target("cpu", "aoti", "cpu")
    program = _program()
    assert unfit(target, program, schema.Platform("amd64", "plan9")).startswith("built for plan9, this machine runs")
    assert "plan9" not in unfit(target, program, schema.Platform("amd64", "linux"))


# ---------------------------------------------------------------- the archive


def test_what_is_parsed_is_a_copy(tmp_path: Path) -> None:
    """A file that is changed or cut while it is open changes nothing that was read, and kills nobody."""
    write_tiny(tmp_path / "m")
    layout = open_layout(tmp_path / "m")
    with Bundle.open(tmp_path / "m") as bundle:
        (graph,) = {method.forward.digest: method.forward for method in bundle.program.methods.values()}.values()
        data = layout.read(graph)
        kept = bytes(data)
        (tmp_path / "m").write_bytes(bytes((tmp_path / "m").stat().st_size))
        assert bytes(data) == kept
        os.truncate(tmp_path / "m", 512)
        with pytest.raises(CorruptBundleError, match="damaged"):
            layout.read(graph)
        with pytest.raises(CorruptBundleError, match="damaged"):
            layout.verify(graph)


def test_blank_weights_allocate_what_is_stored(tmp_path: Path) -> None:
    write_tiny(tmp_path / "m")
    model = aotpack.load(tmp_path / "m", weights=False)
    assert model.state_dict()["scale"].shape == (4,)
    _edited(tmp_path / "m", lambda d: d.program["state"][0].update(shape=[1 << 40], stride=[1]))
    with pytest.raises(CorruptBundleError, match="is needed, it holds 4"):
        aotpack.load(tmp_path / "m", weights=False)


def test_blank_weights_share_memory_as_the_stored_do(tmp_path: Path) -> None:
    write_tiny(tmp_path / "m", state=[schema.StateEntry("tail", "buffer", "float32", [2], [1], "scale", offset=2)])
    model = aotpack.load(tmp_path / "m", weights=False)
    model.load_state_dict({"scale": torch.arange(4.0), "tail": torch.tensor([7.0, 8.0])})
    assert model.scale.tolist() == [0, 1, 7, 8]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: _retype(d, media_types.WEIGHTS), "not weights"),
        (lambda d: _retype(d, media_types.GRAPH), "not a graph"),
        (
            lambda d: d.target.update(
                kind="aoti", executables={"infer.forward": {"code": d.program["weights"][0], "inputs": [], "outputs": [0]}}
            ),
            "not aoti code",
        ),
        (lambda d: d.program.update(self_test=d.program["weights"][0]), "not a self-test"),
    ],
)
def test_descriptors_of_another_kind(tmp_path: Path, edit: Callable[[Documents], object], message: str) -> None:
    write_tiny(tmp_path / "m")
    with pytest.raises(CorruptBundleError, match=message):
        Bundle.open(_edited(tmp_path / "m", edit))


def _retype(documents: Documents, kind: str) -> None:
    for descriptor in (
        *documents.manifest["layers"],
        *documents.program["weights"],
        documents.program["methods"]["infer"]["forward"],
    ):
        if descriptor["mediaType"] == kind:
            descriptor["mediaType"] = "application/json"


@pytest.mark.parametrize("which", ["top", "index"])
def test_an_index_of_another_kind(tmp_path: Path, which: str) -> None:
    write_tiny(tmp_path / "m")
    with pytest.raises(NotABundleError):
        Bundle.open(_edited(tmp_path / "m", lambda d: getattr(d, which).update(mediaType=media_types.OCI_MANIFEST)))


# ---------------------------------------------------------------- expressions


@pytest.mark.parametrize(
    "text", ["1 < 2 < 3", "not not 1", "٣", "s٣", "1\u00a0+ 1", "9" * 20, "9" * 5000, "(" * 101 + "1" + ")" * 101]
)
def test_texts_that_are_no_expressions(text: str) -> None:
    with pytest.raises(CorruptBundleError, match="is not valid"):
        expressions.parse(text)


def test_long_and_deep_expressions() -> None:
    assert expressions.evaluate("+".join(["s"] * 9000), {"s": 1}) == 9000
    assert expressions.evaluate("(" * 100 + "1" + ")" * 100, {}) == 1
    assert expressions.evaluate("or ".join(["0 "] * 4000), {}) == 0
    assert expressions.evaluate("0" * 50 + "7", {}) == 7
    with pytest.raises(CorruptBundleError, match="cannot be evaluated"):
        expressions.evaluate("*".join(["s"] * 9000), {"s": 2**62})


def test_expressions_where_little_stack_is_left() -> None:
    text = "s or s and not 1 < 1 + 1 * (" * 100 + "1" + ")" * 100

    def deeper(frames: int) -> object:
        return deeper(frames - 1) if frames else expressions.evaluate(text, {"s": 0})

    with pytest.raises(CorruptBundleError, match=r"too deeply|cannot be evaluated"):
        deeper(sys.getrecursionlimit() - 300)
    assert deeper(0) == 0


def test_values_beyond_all_sizes() -> None:
    """Nested products had thousands of digits, which Python refuses to print in messages and warnings."""
    text = "s"
    for _ in range(20):
        text = f"({text}) * ({text})" if len(text) < 5000 else f"({text}) * s"
    for wrong in (text, f"({text}) - ({text})", f"max({text}, 1) + 1"):
        with pytest.raises(CorruptBundleError, match="beyond all sizes"):
            expressions.evaluate(wrong, {"s": 2**60})
    assert expressions.evaluate("s * s", {"s": 2**60}) == 2**120


def test_messages_about_integers_of_many_digits(tmp_path: Path) -> None:
    model = aotpack_loader.load(ROOT / "tests/hostile/huge_shape_expression.aotpack").eval()
    for argument in (10**5000, torch.ones(4), "x" * 10**4):
        with torch.no_grad(), pytest.raises(AotpackError):
            model(argument)


def test_a_self_test_of_nothing() -> None:
    report = run_self_test(ROOT / "tests/hostile/selftest_empty.aotpack", "portable")
    assert not report.ok


# ---------------------------------------------------------------- a recorded configuration


def _configured(path: Path, config: dict[str, Any], **attributes: Any) -> Any:
    def data(value: Any) -> Any:
        if isinstance(value, dict):
            return {"type": "mapping", "keys": list(value), "items": [data(item) for item in value.values()]}
        return {"type": "sequence", "kind": "list", "items": [data(item) for item in value]} if isinstance(value, list) else value

    write_tiny(path)
    recorded = {"config": data(config), "generation_config": data(config), "attributes": attributes}
    _edited(path, lambda documents: documents.program.update(pretrained=recorded))
    return aotpack_loader.load(path)


def test_a_configuration_names_no_code(tmp_path: Path) -> None:
    """The library downloads and runs what ``auto_map`` and ``attn_implementation`` name."""
    names = ["auto_map", "attn_implementation", "_attn_implementation_internal", "experts_implementation", "custom_pipelines",
             "_name_or_path", "trust_remote_code", "custom_generate", "use_kernels"]  # fmt: skip
    bad: dict[str, Any] = dict.fromkeys(names, "evil/repository")
    kept = {"model_type": "bert", "hidden_size": 4, "cache_implementation": "static"}
    model = _configured(
        tmp_path / "m", {**bad, **kept, "text_config": {**bad, **kept, "parts": [{**bad, **kept}]}}, _auto_class="X"
    )
    for config in (model.config, model.generation_config):
        assert config.to_dict() == {**kept, "text_config": {**kept, "parts": [kept]}}
        assert "evil" not in repr(config)
    assert getattr(model, "_auto_class", None) is None  # transformers gives its own models the attribute


@pytest.mark.parametrize("name", ["to_dict", "to_json_string", "save_pretrained", "get", "__class__", "__dict__", "__getattr__"])
def test_values_of_a_configuration_replace_no_method(tmp_path: Path, name: str) -> None:
    with pytest.raises(CorruptBundleError, match=f"'{name}' is a method"):
        _configured(tmp_path / "m", {name: 1})


def test_odd_values_of_a_configuration(tmp_path: Path) -> None:
    config = _configured(tmp_path / "m", {"id2label": 5, "num_labels": 3, "mixed": {1: 2, "a": 3}, "": 1}).config
    with pytest.raises(CorruptBundleError, match="names no classes"):
        _ = config.num_labels
    assert config.to_dict()["mixed"] == {1: 2, "a": 3}
    assert '"a": 3' in repr(config)


# ---------------------------------------------------------------- rules of documents


def _method(**changes: Any) -> schema.Method:
    return msgspec.structs.replace(
        schema.Method(
            serves=[schema.Mode(False, False)],
            inputs=schema.TupleNode([schema.TupleNode([schema.LeafNode()]), schema.DictNode([], [])]),
            leaves=[schema.TensorLeaf("args[0]", "float32", [4], [1])],
            outputs=schema.LeafNode(),
            results=[schema.FreshResult(0)],
            primals=[schema.InputPrimal(0), schema.BufferPrimal("b")],
            forward=GRAPH,
            num_outputs=1,
        ),
        **changes,
    )


def _program(state: list[schema.StateEntry] | None = None, **changes: Any) -> schema.Program:
    return schema.Program(
        format=schema.Version(1, 0),
        name="",
        producer=schema.Producer("", ""),
        requirements=schema.Requirements(""),
        state=[schema.StateEntry("b", "buffer", "float32", [4], [1], "b")] if state is None else state,
        methods={"infer": _method(**changes)},
    )


def _nested(depth: int) -> schema.Tree:
    tree: schema.Tree = schema.LeafNode()
    for _ in range(depth):
        tree = schema.ListNode([tree])
    return tree


def _arguments(args: schema.Tree, kwargs: schema.Tree | None = None) -> dict[str, Any]:
    return {"inputs": schema.TupleNode([args, schema.DictNode([], []) if kwargs is None else kwargs])}


_LEAF = schema.LeafNode()
_VIEW = schema.ViewStep("aten.unsqueeze.default", [1])


def _shared_memory(*members: schema.BaseMember, dtype: Any = "float32", view: bool = False, shape: Any = 4) -> dict[str, Any]:
    """A method over a base of four elements, and one argument of two or another shape."""
    base: Any = schema.SyntheticBasePrimal(list(members), dtype, 4)
    if view:
        base = schema.ViewBasePrimal(list(members), dtype, [2, 2], [2, 1])
    leaves: list[Any] = [schema.TensorLeaf("args[0]", "float32", [2], [1]), schema.TensorLeaf("args[1]", "float32", [shape], [1])]
    return {**_arguments(schema.TupleNode([_LEAF, _LEAF])), "leaves": leaves, "primals": [base]}


def _aliases(view: list[schema.ViewStep], shared: schema.Shared, earlier: Any = (), **different: bool) -> dict[str, Any]:
    """An alias that goes on from an earlier one."""
    first = [] if earlier is None else [schema.AliasResult([_VIEW], primal=0, **different)]
    return {
        "outputs": schema.TupleNode([_LEAF] * (len(first) + 1)),
        "results": [*first, schema.AliasResult(view, primal=0, shared=shared)],
    }


@pytest.mark.parametrize(
    ("rule", "changes"),
    [
        ("A1: ", {"inputs": _LEAF}),
        ("A1: ", _arguments(schema.TupleNode([]), schema.DictNode([1], [_LEAF]))),
        ("A2: ", {"symbols": [schema.Symbol("s0", 2)]}),
        ("C3: ", {"leaves": [schema.TensorLeaf("args[0]", "float32", [4], [4, 1])]}),
        ("C3: ", {"leaves": [schema.TensorLeaf("args[0]", "float32", [-4])]}),
        ("C3: ", {"leaves": [schema.TensorLeaf("args[0]", "float32", [4], [-1])]}),
        ("C3: ", {"leaves": [schema.TensorLeaf("args[0]", "float32", [2**63])]}),
        ("C13: a symbol is declared", {"symbols": [schema.Symbol("s0", 2)] * 2}),
        ("C13: the maximum", {"symbols": [schema.Symbol("s0", 9, 2)]}),
        # C15 trees, C16 what may require a gradient
        ("C15: there is one item", {"outputs": schema.DictNode(["a", "b"], [_LEAF])}),
        ("C15: there is one item", {"outputs": schema.RecordNode("R", [], [_LEAF])}),
        ("C15: a key", {"outputs": schema.DictNode([1, True], [_LEAF, _LEAF])}),
        ("C15: a key", {"outputs": schema.RecordNode("R", ["a", "a"], [_LEAF, _LEAF])}),
        ("C15: it is nested", {"outputs": _nested(400)}),
        ("C15: it is nested", _arguments(schema.TupleNode([_nested(400)]))),
        ("C15: the sizes", {"outputs": schema.TupleNode([schema.ListNode([_LEAF])], size=True)}),
        ("C16: ", {"leaves": [schema.TensorLeaf("args[0]", "int64", [4], requires_grad=True)]}),
        # C17 values that aliases have in common
        ("C17: ", _aliases([_VIEW], schema.Shared(0, 1), earlier=None)),
        ("C17: ", _aliases([_VIEW], schema.Shared(1, 1))),
        ("C17: ", _aliases([_VIEW], schema.Shared(0, 2))),
        ("C17: ", _aliases([_VIEW], schema.Shared(0, 1), history=False)),
        ("C17: ", _aliases([schema.ViewStep("aten.unsqueeze.default", [0])], schema.Shared(0, 1))),
        ("C17: ", _aliases([schema.ViewStep("aten.split.Tensor", [1], select=0)], schema.Shared(0, 0, call=True))),
        ("C17: ", _aliases([_VIEW], schema.Shared(0, 0))),
        ("C17: ", _aliases([_VIEW], schema.Shared(0, 1), laid_out=True)),
        # C28 results of arguments as they are laid out
        ("C28: ", {"results": [schema.AliasResult([_VIEW], output=0, laid_out=True)]}),
        ("C28: ", {"results": [schema.AliasResult([_VIEW], output=0, reshaped=True)]}),
        ("C28: ", {"results": [schema.InputResult(0, laid_out=True)], "mutations": [schema.Mutation(0, 0, "data")]}),
        # C18 arguments in one memory
        ("C18: a base has two", _shared_memory(schema.BaseMember(0))),
        ("C18: a base has two", _shared_memory(schema.BaseMember(0), schema.BaseMember(0))),
        ("C18: leaf 2 is not a strided tensor", _shared_memory(schema.BaseMember(0), schema.BaseMember(2))),
        ("C18: leaf 0 is not a strided tensor", _shared_memory(schema.BaseMember(0), schema.BaseMember(1), dtype="int32")),
        ("C18: leaf 0 reaches beyond", _shared_memory(schema.BaseMember(0, 3), schema.BaseMember(1))),
        ("C18: the sizes or strides of leaf 1 vary", _shared_memory(schema.BaseMember(0), schema.BaseMember(1), shape="s0")),
        ("C18: leaf 1 reaches beyond", _shared_memory(schema.BaseMember(0), schema.BaseMember(1, 1), view=True)),
        (
            "C18: no member is a view",
            _shared_memory(schema.BaseMember(0, detached=True), schema.BaseMember(1, detached=True), view=True),
        ),
        # C32 sparse results
        ("C32: a sparse", {"results": [schema.FreshResult(0, requires_grad=True, sparse_dim=1)]}),
        # C24 sizes that depend on data
        ("C24: index", {"output_symbols": [schema.OutputSymbol("u0", 9)]}),
        ("C24: 'u0'", {"output_symbols": [schema.OutputSymbol("u0", 0), schema.OutputSymbol("u0", 0, 0)]}),
        ("C24: the maximum", {"output_symbols": [schema.OutputSymbol("u0", 0, 0, 3, 2)]}),
        ("C24: '1'", {"output_symbols": [schema.OutputSymbol("1", 0)]}),
        ("C13: unknown symbols u0", {"output_symbols": [schema.OutputSymbol("u0", 0)], "constraints": ["u0 > 1"]}),
    ],
)
def test_rules_of_methods(rule: str, changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptBundleError, match=rule):
        validate_program(_program(**changes), "program")


def test_values_in_common_are_those_of_the_first() -> None:  # C17
    second = schema.ViewStep("aten.select.int", [0, 1])
    views = [[_VIEW], [_VIEW, second], [_VIEW, second]]
    shares = [None, schema.Shared(0, 1), schema.Shared(1, 1)]
    results = [schema.AliasResult(view, primal=0, shared=share) for view, share in zip(views, shares, strict=True)]
    validate_program(_program(outputs=schema.TupleNode([_LEAF] * 3), results=results), "program")
    x = torch.zeros(3)
    made = Epilogue(_method(outputs=schema.TupleNode([_LEAF] * 3), results=results))(CallValues([x], [x], []), {})
    assert made[1]._base is x
    assert made[1] is not made[2]
    assert [value.shape for value in made] == [(3, 1), (1,), (1,)]


def _with_second(**changes: Any) -> schema.Program:
    backward = schema.Backward(GRAPH, [schema.SavedPrimal(0)], [schema.Tangent(0, "float32", [4])], [0])
    arguments = schema.TupleNode([schema.TupleNode([_LEAF, _LEAF]), schema.DictNode([], [])])
    leaves = [schema.TensorLeaf(f"args[{i}]", "float32", [4], [1]) for i in range(2)]
    primals = [schema.InputPrimal(0), schema.InputPrimal(1)]
    second = _method(serves=[], inputs=arguments, leaves=leaves, primals=primals, backward=backward)
    second = msgspec.structs.replace(second, backward=msgspec.structs.replace(backward, gradients=[0, None]))
    first = _method(primals=[schema.InputPrimal(0)], backward=msgspec.structs.replace(backward, second=schema.Second("second")))
    methods = {"first": first, "second": msgspec.structs.replace(second, **changes)}
    return msgspec.structs.replace(_program(), methods=methods)


def test_the_method_of_second_derivatives_fits() -> None:  # C31
    validate_program(_with_second(), "program")


@pytest.mark.parametrize(
    "changes",
    [
        {"serves": [schema.Mode(True, True)]},
        {"backward": None},
        {"mutations": [schema.Mutation(1, 0)]},
        {"leaves": [schema.TensorLeaf("args[0]", "float32", [4], [1]), schema.TensorLeaf("args[1]", "float64", [4], [1])]},
        {"outputs": schema.TupleNode([_LEAF, _LEAF]), "results": [schema.FreshResult(0), schema.FreshResult(0)]},
    ],
)
def test_another_method_is_not_taken_for_second_derivatives(changes: dict[str, Any]) -> None:  # C31
    with pytest.raises(CorruptBundleError, match="C31: "):
        validate_program(_with_second(**changes), "program")


def test_an_integer_cannot_be_trainable() -> None:  # C16
    with pytest.raises(CorruptBundleError, match="C16: "):
        validate_program(_program([schema.StateEntry("b", "parameter", "int64", [4], [1], "b", requires_grad=True)]), "program")


def test_honest_depth() -> None:
    validate_program(_program(outputs=_nested(60)), "program")


def test_subgraphs_are_not_nested_without_end() -> None:
    graph = tiny_graph()
    for _ in range(400):
        graph = msgspec.structs.replace(graph, subgraphs={"sub": graph})
    with pytest.raises(CorruptBundleError, match="nested more than 64 deep"):
        validate_graph(graph, "graph")


# ---------------------------------------------------------------- modules and calls


NAMES = ["current_state", "add_call", "_calls", "forward.w", "state_dict.w", "_register", "half"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_a_module_has(tmp_path: Path, name: str) -> None:
    write_tiny(
        tmp_path / "m",
        tensors=[("other", torch.tensor([5.0]))],
        state=[schema.StateEntry(name, "buffer", "float32", [1], [1], "other")],
    )
    model = aotpack.load(tmp_path / "m").eval()
    assert model.state_dict()[name].item() == 5
    with torch.no_grad():
        assert torch.equal(model(torch.ones(4)), torch.arange(4.0))
    if name in ("current_state", "add_call", "_calls", "_register"):
        assert getattr(model, name).item() == 5, "the original's, not ours"


def _call(method: schema.Method, forward: Callable[[list[Any]], list[Any]]) -> MethodCall:
    entry = schema.StateEntry("b", "buffer", "float32", [4], [1], "b")
    return MethodCall(LoadedMethod("infer", method, {}, {"b": entry}, CPU, {}), forward)


def _double(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """A stand-in for native code: reads memory, not flags."""
    x = inputs[0]
    return [torch.frombuffer(bytearray(x.untyped_storage().tolist()), dtype=torch.float32)[: x.numel()] * 2]


@pytest.mark.parametrize("lazy", [torch._neg_view, lambda x: torch.complex(x, -x).conj().imag.clone().neg()])
def test_lazily_negated_arguments_are_resolved(lazy: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = lazy(torch.arange(4.0))
    (result,) = [_call(_method(), _double)((x,), {}, {"b": torch.zeros(4)})]
    assert torch.equal(result, x * 2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "was removed"),
        (torch._neg_view(torch.ones(4)), "lazily negated"),
        (torch.ones(5), "expected"),
        (torch.ones(4).as_subclass(type("Wrapped", (torch.Tensor,), {})), "is a Wrapped"),
        (torch.ones(4, device="meta"), "on meta"),
    ],
)
def test_state_that_code_cannot_read(value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        _call(_method(), _double)((torch.ones(4),), {}, {"b": value})


def test_a_removed_parameter(tmp_path: Path) -> None:
    write_tiny(tmp_path / "m")
    model = aotpack.load(tmp_path / "m").eval()
    model.scale = None
    with torch.no_grad(), pytest.raises(InputError, match="was removed"):
        model(torch.ones(4))


def test_a_constraint_without_a_value_is_not_met() -> None:
    method = _method(
        leaves=[schema.TensorLeaf("args[0]", "float32", ["s0"])],
        symbols=[schema.Symbol("s0", 0)],
        constraints=["10 % s0 == 0"],
    )
    with pytest.raises(InputError, match=r"must satisfy 10 % args\[0\].shape\[0\] == 0; here args\[0\].shape\[0\] = 0"):
        _call(method, _double)((torch.ones(0),), {}, {"b": torch.zeros(4)})


@pytest.mark.filterwarnings("ignore::aotpack_loader.runtime.inputs.LayoutWarning")
def test_strides_no_tensor_can_have() -> None:
    method = _method(leaves=[schema.TensorLeaf("args[0]", "float32", [4], [2**61])])
    with pytest.raises(InputError, match="cannot be copied to the strides"):
        _call(method, _double)((torch.ones(4),), {}, {"b": torch.zeros(4)})


def test_an_argument_that_is_a_written_buffer() -> None:
    call = _call(_method(mutations=[schema.Mutation(primal=1, output=0)]), lambda inputs: [inputs[0] + 1])
    buffer = torch.arange(8.0)
    state = {"b": buffer[:4]}
    for shared in (buffer[:4], buffer[2:6], torch.from_numpy(buffer.numpy())[3:7]):
        with pytest.raises(InputError, match=r"b: shares its memory with args\[0\]"):
            call((shared,), {}, state)
    call((buffer[4:],), {}, state)
    assert state["b"].tolist() == [5, 6, 7, 8]


def test_a_written_argument_that_is_a_buffer() -> None:
    call = _call(_method(mutations=[schema.Mutation(primal=0, output=0)]), lambda inputs: [inputs[0] + 1])
    buffer = torch.arange(4.0)
    with pytest.raises(InputError, match="share memory"):
        call((buffer,), {}, {"b": buffer})


def test_a_gradient_that_would_be_lost() -> None:
    leaf = schema.TensorLeaf("args[0]", "float32", [4], requires_grad=True)
    call = _call(_method(leaves=[leaf]), lambda inputs: [inputs[0] * 2])
    with pytest.raises(InputError, match="has no backward for this mode"):
        call((torch.ones(4, requires_grad=True),), {}, {"b": torch.zeros(4)})
    with torch.no_grad():
        call((torch.ones(4, requires_grad=True),), {}, {"b": torch.zeros(4)})
    call((torch.ones(4),), {}, {"b": torch.zeros(4)})


def test_a_frozen_model_in_eval_loses_no_gradient(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2).requires_grad_(False)
    aotpack.build(model, (torch.randn(4, 3, requires_grad=True),), out=tmp_path / "m", targets=("portable",))
    loaded = aotpack.load(tmp_path / "m").eval()
    assert loaded(torch.randn(4, 3)).shape == (4, 2)
    with pytest.raises(InputError, match="has no backward for this mode"):
        loaded(torch.randn(4, 3, requires_grad=True))


def test_storage_mutations_are_refused_at_load() -> None:
    with pytest.raises(UnsupportedVersionError, match="replaces the storage"):
        _call(_method(mutations=[schema.Mutation(0, 0, kind="storage")]), _double)


def test_a_nan_argument() -> None:
    method = _method(
        **_arguments(schema.TupleNode([_LEAF, _LEAF])),
        leaves=[schema.TensorLeaf("args[0]", "float32", [4]), schema.ConstantLeaf("args[1]", schema.FloatArg("nan"))],
    )
    call = _call(method, lambda inputs: [inputs[0] * 2])
    call((torch.ones(4), float("nan")), {}, {"b": torch.zeros(4)})
    with pytest.raises(InputError):
        call((torch.ones(4), 1.0), {}, {"b": torch.zeros(4)})


def test_the_self_test_misses_what_does_not_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(OrderedDict(linear=torch.nn.Linear(3, 2)))
    bundle = tmp_path / "m"
    aotpack.build(model, (torch.ones(4, 3),), out=bundle, targets=("portable",), methods=("train",), self_test=True)
    assert run_self_test(bundle).ran
    assert run_self_test(bundle).ok
    original = replay.observe
    monkeypatch.setattr(replay, "observe", lambda *a: (row for row in original(*a) if row[0] != "gradient.linear.bias"))
    report = run_self_test(bundle)
    assert not report.ok
    assert [row[0] for row in report.rows if not row[3]] == ["gradient.linear.bias"]


def test_the_interpreter_bounds_its_builtins() -> None:
    """Not only the table: what a graph runs."""
    value = schema.IntValue(0)
    graph = schema.Graph(
        ["n"], [value], [schema.Node("m", "builtin.pow", [schema.ValueRef("n"), 10**9], value)], [schema.ValueRef("m")]
    )
    with pytest.raises(CorruptBundleError, match="exponent"):
        PortableExecutable(graph, CPU)([9])


def test_problems_name_their_place() -> None:
    with pytest.raises(CorruptBundleError) as caught:
        validate_program(_program(symbols=[schema.Symbol("s0", 2)]), "program")
    assert caught.value.problems == (Problem("$.methods['infer'].symbols", "A2: no argument determines the sizes s0"),)


def test_a10_arguments_share_memory_as_they_did() -> None:
    described = _shared_memory(schema.BaseMember(0, written=True), schema.BaseMember(1, 2), shape=2)
    base = Base(described["primals"][0], described["leaves"])
    storage = torch.arange(9.0)
    good = [storage[3:5], storage[5:7]]
    assert base(good, good).tolist() == [3.0, 4.0, 5.0, 6.0]
    assert base(good, good)._version == storage._version
    for bad in ([storage[3:5], storage[6:8]], [storage[3:5], storage[5:7].clone()], [storage[7:9], storage[0:2]]):
        with pytest.raises(InputError, match=r"args\[[01]\]: must share memory.* with args\[[01]\]"):
            base(bad, bad)
    with pytest.raises(InputError, match=r"args\[1\]: has other strides"):
        base([good[0], storage[5:9:2]], good)


@pytest.mark.filterwarnings("ignore:.*has the strides")
@pytest.mark.parametrize("kind", ["metadata", "data_and_metadata", "resize"])
def test_a12_what_is_reshaped_lies_as_it_did(kind: Any) -> None:
    geometry = None if kind == "resize" else schema.Geometry([2, 2], [1, 2], 0, absolute=True)
    leaves = [schema.TensorLeaf("args[0]", "float32", [2, 2], [2, 1]), schema.TensorLeaf("args[1]", "float32", [2], [1])]
    method = _method(
        **_arguments(schema.TupleNode([_LEAF, _LEAF])),
        leaves=leaves,
        primals=[schema.InputPrimal(0), schema.InputPrimal(1)],
        mutations=[schema.Mutation(0, 0, kind=kind, geometry=geometry)],
    )
    call = _call(method, lambda inputs: [inputs[0].t() if kind == "metadata" else inputs[0].t().clone()])
    storage = torch.arange(9.0)
    call((storage[:4].clone().view(2, 2), storage[6:8]), {}, {})
    with pytest.raises(InputError, match=r"args\[0\]: has the strides \[1, 2\], the example had others"):
        call((storage[:4].clone().view(2, 2).t(), storage[6:8]), {}, {})
    if kind != "metadata":
        with pytest.raises(InputError, match=r"args\[0\]: shares its memory with args\[1\]"):
            call((storage[:4].view(2, 2), storage[6:8]), {}, {})
    if kind == "data_and_metadata":
        with pytest.raises(InputError, match=r"args\[0\]: has the storage offset 1, expected 0"):
            call((storage.clone()[1:5].view(2, 2), storage[6:8]), {}, {})
