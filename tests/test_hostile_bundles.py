"""What a bundle of a hostile author may not do on the portable tier, although all its digests are right."""

from __future__ import annotations

import copy
import inspect
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import zstandard
from conftest import FreshProcess
from support.archive import Documents, digest_of, members, pack, write_tiny
from support.releases import TORCH

import aotpack
import aotpack_loader
from aotpack.signing.sign import sign
from aotpack_loader.archive import compression, manifests
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.layout import Layout
from aotpack_loader.archive.manifests import require_few_targets
from aotpack_loader.archive.weights import read_header
from aotpack_loader.devices import operators
from aotpack_loader.devices.portable import PortableExecutable, UntrustedExecutable
from aotpack_loader.devices.sandbox import allowed, untrusted
from aotpack_loader.devices.sandbox.untrusted import implementation
from aotpack_loader.errors import AotpackError, BundleError, CorruptBundleError, OperatorError, Problem, TrustError
from aotpack_loader.format import codec, media_types, schema, validate
from aotpack_loader.replay import random_inputs
from aotpack_loader.runtime.epilogue import Epilogue
from aotpack_loader.runtime.views import CallValues, replayer
from aotpack_loader.signing.keys import PrivateKey
from devtools.fuzz import bundles, escapes, page
from devtools.fuzz.operators import built, known_calls
from devtools.fuzz.operators import fuzz as fuzz_operators
from devtools.paths import ROOT
from devtools.spec.case import Function

CPU = torch.device("cpu")
X = schema.ValueRef("x")
VALUE = schema.TensorValue("float32", [4], [1])
GRAPH = schema.Descriptor(media_types.GRAPH, "sha256:" + "0" * 64, 1)


def graph_of(op: str, args: list[Any], kwargs: dict[str, Any] | None = None, inputs: tuple[str, ...] = ("x",)) -> schema.Graph:
    node = schema.Node("y", op, args, VALUE, kwargs or {})
    return schema.Graph(list(inputs), [VALUE] * len(inputs), [node], [schema.ValueRef("y")])


def regraph(documents: Documents, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the graph of a bundle, with all digests."""
    raw = b""

    def rewrite(data: bytes) -> bytes:
        nonlocal raw
        graph = json.loads(zstandard.ZstdDecompressor().decompress(data, max_output_size=1 << 20))
        change(graph)
        raw = json.dumps(graph).encode()
        return compression.compress(raw)

    documents.replace_blob(media_types.GRAPH, rewrite)
    sizes = {media_types.ANNOTATION_RAW_SIZE: str(len(raw)), media_types.ANNOTATION_RAW_DIGEST: digest_of(raw)}
    for descriptor in (*documents.manifest["layers"], documents.program["methods"]["infer"]["forward"]):
        if descriptor["mediaType"] == media_types.GRAPH:
            descriptor["annotations"] = sizes


# ---------------------------------------------------------------- arguments and schemas (G11)


@pytest.mark.parametrize(
    ("op", "args", "kwargs", "message"),
    [
        ("aten._to_copy.default", [X], {"dtype": -1}, "dtype: is -1, expected an element type"),  # crashed
        ("aten._to_copy.default", [X], {"dtype": 128}, "expected an element type"),  # did not end
        ("aten.clone.default", [X], {"memory_format": 4}, "expected a memory format"),  # crashed
        ("aten.empty_like.default", [X], {"layout": 9}, "expected a layout"),
        ("aten._to_copy.default", [X], {"device": "meta"}, "expected a device"),  # was not mapped to the CPU
        ("aten._to_copy.default", [X], {"dtype": X}, "is a value of the graph, expected an element type"),
        ("aten.view.dtype", [X, 1], {}, "expected an element type"),
        ("prims.convert_element_type.default", [X, 200], {}, "expected an element type"),
        ("prims.iota.default", [4], {"start": 0, "step": 1, "dtype": 3, "device": None, "requires_grad": False}, "dtype: is 3"),
        ("aten.bernoulli.default", [X], {"generator": 7}, "nothing that a graph can hold"),
        ("aten.add.Tensor", [X, X], {"beta": 1}, "beta: there is no such argument"),
        ("aten.add.Tensor", [X, X], {"other": X}, "other: is given twice"),
        ("aten.add.Tensor", [X], {}, "other: is missing"),
        ("aten.add.Tensor", [X, X, 1], {}, "3 positional arguments, there are 2"),
        ("aten.cat.default", [X, 0], {}, ""),  # a value may be a list of tensors
        ("aten.sum.dim_IntList", [X, ["a"]], {}, "dim: is a, expected a list, each an integer"),
        ("aten.sum.dim_IntList", [X, [10**5000]], {}, "is no 64-bit integer"),
        ("aten.mul.Tensor", [X, "a"], {}, "other: is a, expected"),
        ("aten.sum.dim_IntList", [[X], [0]], {}, "self: is a list"),
        ("builtin.add", [1, 2], {"x": 1}, "takes none by name"),
    ],
)
def test_arguments_fit_the_schema_of_their_operator(op: str, args: list[Any], kwargs: dict[str, Any], message: str) -> None:
    if not message:
        PortableExecutable(graph_of(op, args, kwargs), CPU)
        return
    with pytest.raises(CorruptBundleError, match="G11") as caught:
        PortableExecutable(graph_of(op, args, kwargs), CPU)
    assert message in str(caught.value)


def test_all_arguments_that_do_not_fit_are_listed() -> None:
    with pytest.raises(CorruptBundleError) as caught:
        PortableExecutable(graph_of("aten._to_copy.default", [X], {"dtype": 1, "layout": 2, "device": 3, "what": 4}), CPU)
    assert [problem.where for problem in caught.value.problems] == ["what", "dtype", "layout", "device"]


@pytest.mark.parametrize(
    ("op", "args", "kwargs"),
    [
        ("aten.add.Tensor", [X, 1], {"alpha": schema.FloatArg(2.0)}),
        ("aten.index.Tensor", [X, [None, X]], {}),
        ("aten.max_pool2d_with_indices.default", [X, 2, [2]], {}),
        ("aten.full.default", [[2, X], schema.FloatArg("-inf")], {"device": schema.DeviceArg("cuda"), "pin_memory": False}),
        ("aten.div.Tensor_mode", [X, X], {"rounding_mode": None}),
    ],
)
def test_honest_forms_of_arguments(op: str, args: list[Any], kwargs: dict[str, Any]) -> None:
    PortableExecutable(graph_of(op, args, kwargs), CPU)


# ---------------------------------------------------------------- views


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (schema.ViewStep("aten.view.dtype", [-1]), "G11"),
        (schema.ViewStep("aten.unsqueeze.default", [X]), "C37"),
        (schema.ViewStep("aten.unbind.int", [0]), "C37"),
        (schema.ViewStep("aten.t.default", [], {}, 0), "C37"),
        (schema.ViewStep("aten.unsqueeze.default", []), "G11"),
    ],
)
def test_steps_of_views_that_do_not_fit(step: schema.ViewStep, message: str) -> None:
    with pytest.raises(CorruptBundleError, match=message):
        replayer(0, schema.AliasResult([step], primal=0), ())


@pytest.mark.parametrize(
    "step",
    [
        schema.ViewStep("aten.unbind.int", [0], {}, 4),  # raised IndexError
        schema.ViewStep("aten.unsqueeze.default", [9]),
        schema.ViewStep("aten.as_strided.default", [[1 << 40], [1]]),
        schema.ViewStep("aten.as_strided.default", [[4], [1], 1]),
    ],
)
def test_views_that_torch_refuses(step: schema.ViewStep) -> None:
    replay = replayer(0, schema.AliasResult([step], primal=0), ())
    with pytest.raises(OperatorError, match="Result 0 of the model is a view that torch refuses"):
        replay(torch.zeros(4), {}, {})


def test_a_view_of_an_expression() -> None:
    step = operators.view_step(schema.ViewStep("aten.select.int", [0, schema.ExprArg("s0 - 1")]))
    assert step is torch.ops.aten.select.int


# ---------------------------------------------------------------- operators of untrusted bundles


def with_operator(path: Path, op: str, args: list[Any]) -> Path:
    """A bundle built by nobody here, whose one node calls ``op``."""
    write_tiny(path)
    documents = Documents(path)
    regraph(documents, lambda graph: graph["nodes"][0].update(op=op, args=args))
    path.write_bytes(pack(documents.files()))
    return path


def test_operators_that_are_not_listed_need_trust(tmp_path: Path) -> None:
    value = {"type": "value", "name": "x"}
    path = with_operator(tmp_path / "m", "aten.linalg_ldl_solve.default", [value] * 3)
    with pytest.raises(TrustError, match="not known to be safe") as caught:
        aotpack.load(path)
    assert [problem.where for problem in caught.value.problems] == ["aten.linalg_ldl_solve.default"]
    with Bundle.open(path) as bundle:
        digest = bundle.digest
    assert f'trust="{digest}"' in caught.value.hint
    aotpack.load(path, trust=digest)


class Recurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.LSTM(4, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers(x)[0]
        return found


def largest(x: torch.Tensor) -> torch.Tensor:
    return torch.segment_reduce(x, "max", lengths=torch.tensor([1, 2]))


def untrusted_copy(path: Path, monkeypatch: pytest.MonkeyPatch) -> torch.nn.Module:
    """The bundle as others load it, who have no record of its build."""
    monkeypatch.setenv("AOTPACK_STATE", str(path.parent / "elsewhere"))
    return aotpack.load(path)


@pytest.mark.parametrize(
    ("model", "x"),
    [(Recurrent(), torch.randn(2, 3, 4)), (torch.linalg.inv, torch.eye(3) * 2 + 0.1), (lambda x: torch.linalg.solve(x, x.cos()),
     torch.eye(3) * 2 + 0.1), (largest, torch.randn(3))],
    ids=["lstm", "inv", "solve", "segment_reduce"],
)  # fmt: skip
def test_models_whose_operators_have_rules_run_untrusted(
    model: Any, x: torch.Tensor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = model if isinstance(model, torch.nn.Module) else Function(model)
    x.requires_grad_()
    aotpack.build(module, (x,), out=tmp_path / "m.aotpack", targets=["portable"])
    loaded = untrusted_copy(tmp_path / "m.aotpack", monkeypatch)
    assert type(loaded._aotpack_calls[True, True].forward) is UntrustedExecutable
    found = []
    for one in (module, loaded):
        y = x.detach().clone().requires_grad_()
        one(y).square().sum().backward()
        found.append((one(y).detach(), y.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


def recorded_as(path: Path, op: str, value: dict[str, Any], kwargs: dict[str, Any] | None = None) -> torch.nn.Module:
    """A bundle of one operator on four floats, whose result the graph records as ``value``."""
    write_tiny(path)
    documents = Documents(path)
    node = {"name": "y", "op": op, "args": [{"type": "value", "name": "x"}], "kwargs": kwargs or {}, "value": value}
    regraph(documents, lambda graph: graph.update(nodes=[node]))
    path.write_bytes(pack(documents.files()))
    return aotpack.load(path).eval()


TENSOR = {"type": "tensor", "dtype": "float32", "shape": [4], "stride": [1]}


@pytest.mark.parametrize(
    ("op", "value", "kwargs", "found"),
    [
        ("aten._to_copy.default", {"dtype": "float64"}, {"dtype": {"type": "dtype", "value": "int8"}}, r"int8\[4\]"),
        ("aten._to_copy.default", {"dtype": "complex128"}, {}, r"float32\[4\]"),
        ("aten.neg.default", {"shape": [4000]}, {}, r"float32\[4\]"),
        ("aten.sum.default", {}, {}, r"float32\[\]"),
        ("aten.neg.default", {"shape": [2, 2], "stride": [2, 1]}, {}, r"float32\[4\]"),
    ],
)
def test_a_compiled_caller_gets_what_the_bundle_records(
    tmp_path: Path, op: str, value: dict[str, Any], kwargs: dict[str, Any], found: str
) -> None:
    """The caller's code reads memory as the record says: a graph that returns less of it was read and written past its end."""
    loaded = recorded_as(tmp_path / "m", op, TENSOR | value, kwargs)
    compiled = torch.compile(lambda x: loaded(x), backend="eager", fullgraph=True)
    with torch.no_grad(), pytest.raises(OperatorError, match=f"output 0: should be .*, is {found}"):
        compiled(torch.ones(4))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"shape": [2**62]}, "it has 18446744073709551616 bytes"),
        ({"stride": [2**61]}, "it has 27670116110564327428 bytes"),
        ({"stride": ["9999999999*9999999999"]}, "it has 1199999999760000000016 bytes"),
        ({"shape": ["s77"]}, "The expression 's77' cannot be evaluated"),
        ({"stride": ["4//0"]}, "The expression '4//0' cannot be evaluated"),
        ({"shape": ["0-4"]}, "negative dimension -4"),
        ({"shape": [2, 2], "stride": [1]}, "argument 2 is shorter"),
    ],
)
def test_records_of_no_tensor_end_the_graph_of_a_compiled_caller(tmp_path: Path, value: dict[str, Any], reason: str) -> None:
    """Dynamo would name its own fake tensors. The call itself does not need the record, and is then made outside the graph."""
    loaded = recorded_as(tmp_path / "m", "aten.neg.default", TENSOR | value)
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        with (
            torch.no_grad(),
            pytest.raises(torch._dynamo.exc.Unsupported, match=f"records results that cannot be made: .*{reason}"),
        ):
            torch.compile(lambda x: loaded(x) * 2, backend=backend, fullgraph=True)(torch.ones(4))
        torch._dynamo.reset()
        with torch.no_grad():
            assert torch.equal(torch.compile(lambda x: loaded(x) * 2, backend=backend)(torch.ones(4)), torch.full((4,), -2.0))


@pytest.mark.parametrize("op", ["aten._neg_view.default", "aten.alias.default"])
@pytest.mark.parametrize("stride", [1, 3])
def test_a_compiled_caller_gets_memory_of_its_own(tmp_path: Path, op: str, stride: int) -> None:
    """Compiled code reads memory and not flags, and may write to it."""
    loaded, x = recorded_as(tmp_path / "m", op, TENSOR | {"stride": [stride]}), torch.ones(4)
    compiled = torch.compile(lambda x: loaded(x), backend="eager", fullgraph=True)
    with torch.no_grad():
        result = compiled(x)
    assert not result.is_neg()
    assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert result.stride() == (stride,)
    assert torch.equal(result, -x if "neg" in op else x)


def test_operators_that_no_bundle_may_use_stay_refused(tmp_path: Path) -> None:
    path = with_operator(tmp_path / "m", "aten.resize_.default", [{"type": "value", "name": "x"}, [4]])
    with pytest.raises(CorruptBundleError, match="may not use"):
        aotpack.load(path)


def test_a_trusted_bundle_runs_without_checks(tmp_path: Path) -> None:
    write_tiny(tmp_path / "m")
    untrusted = aotpack.load(tmp_path / "m").eval()
    trusted = aotpack.load(tmp_path / "m", trust="all").eval()
    kinds = [type(model._aotpack_calls[False, False].forward) for model in (untrusted, trusted)]
    assert kinds == [UntrustedExecutable, PortableExecutable]
    with torch.no_grad():
        assert torch.equal(untrusted(torch.ones(4)), trusted(torch.ones(4)))


@pytest.mark.parametrize("name", ["mlp", "control_flow", "attention"])
def test_the_checks_of_untrusted_bundles_cost_trusted_ones_nothing(name: str) -> None:
    """No function of the modules that check operators is called by a load or a step of a trusted bundle."""
    checks = {"untrusted.py", "rules.py", "plane_rules.py", "operator_rules.py", "allowed.py", "untrusted_calls.py"}

    def called(trust: str | None) -> set[str]:
        found = set()

        def note(frame: Any, event: str, argument: Any) -> None:
            if event == "call" and "aotpack_loader" in frame.f_code.co_filename:
                found.add(Path(frame.f_code.co_filename).name)

        threading.setprofile(note)
        sys.setprofile(note)
        try:
            path = ROOT / "spec/vectors/v1/valid" / name / "bundle.aotpack"
            model = aotpack.load(path, backend="portable", trust=trust)
            args, kwargs = bundles.arguments(model.aotpack.program.methods["train"])
            results = model(*args, **kwargs)
            tensors = [t for t in torch.utils._pytree.tree_leaves(results) if isinstance(t, torch.Tensor) and t.requires_grad]
            torch.autograd.backward(tensors, [torch.ones_like(t) for t in tensors])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        return found

    assert called(None) & checks
    assert called("all") & checks == set()


REMOVED = {"aten.cholesky.default"} if TORCH >= (2, 14) else set()
"""Listed operators that this release of torch has no more. Bundles that call them are refused there."""
LISTED = [name for name in allowed.OPERATORS if name not in REMOVED]


def test_every_listed_operator_exists_and_may_be_used() -> None:
    for name in LISTED:
        assert callable(operators.resolve(name)), name


def test_the_page_lists_the_operators_of_the_code() -> None:
    assert page.PAGE.read_text() == page.text(), "run scripts/fuzz page"


HONEST = known_calls()
RANDOM = ("fractional_max_pool2d.default", "fractional_max_pool3d.default")  # their samples are drawn by other rules here


def test_honest_calls_pass_the_rules() -> None:
    """What torch's own databases call is not refused, unless torch refuses it."""
    ran, refused = 0, []
    for name in LISTED:
        plain, checked = operators.resolve(name), implementation(name)
        for args, kwargs in HONEST[name]:
            given, named = built(args), {key: built(arg) for key, arg in kwargs.items()}
            try:
                plain(*given, **named)
            except Exception:  # it needs other values than these
                continue
            ran += 1
            try:
                checked(*given, **named)
            except (ValueError, IndexError) as error:
                refused.append((name, str(error)))
    assert ran > 1400
    assert {name.removeprefix("aten.") for name, _ in refused} <= set(RANDOM), refused


@pytest.mark.parametrize(
    ("op", "args"),
    [
        # wrote into the heap
        ("max_pool2d_with_indices_backward", [torch.ones(1, 1, 2, 2), torch.ones(1, 1, 4, 4), [2, 2], [2, 2], [0, 0],
         [1, 1], False, torch.full((1, 1, 2, 2), 10**6)]),
        ("native_layer_norm_backward", [torch.ones(2, 3), torch.ones(2, 3), [3], torch.ones(1), torch.ones(1), None, None,
         [True] * 3]),
        ("native_batch_norm_backward", [torch.ones(2, 3), torch.ones(2, 3), None, None, None, None, None, True, 0.1, [True] * 3]),
        ("_fft_c2c", [torch.ones(2, 3, dtype=torch.complex64), [10**6], 0, True]),
        ("gelu_backward", [torch.ones(10), torch.ones(10, 10)]),
        ("_pdist_backward", [torch.ones(1), torch.ones(4, 3), 2.0, torch.ones(1)]),
        ("reflection_pad1d_backward", [torch.ones(1, 1, 110), torch.ones(1, 1, 100), []]),
        ("_adaptive_avg_pool2d_backward", [torch.ones(1, 8, 5, 5), torch.ones(0, 8, 5, 5)]),
        ("multi_margin_loss_backward", [torch.ones(()), torch.ones(2, 3), torch.tensor([0, 10**9]), 1, 1.0, None, 1]),
        ("_embedding_bag_dense_backward", [torch.ones(1, 2), torch.tensor([10**9]), torch.tensor([0]), torch.tensor([1]),
         torch.tensor([0]), 4, False, 0, None]),
        ("lcm", [torch.tensor([-(2**63)]), torch.tensor([-1])]),
        ("remainder.Tensor", [torch.tensor([-(2**63)]), torch.tensor([-1])]),
        ("lu_unpack", [torch.ones(2, 3, 3), torch.full((2, 3), 10**6, dtype=torch.int32)]),
        ("repeat_interleave.Tensor", [torch.tensor([100000])]),
        ("linalg_lu_solve", [torch.eye(3), torch.tensor([1, 2, 10**6], dtype=torch.int32), torch.ones(3, 1)]),
        ("segment_reduce", [torch.ones(5), "sum"]),
        ("mkldnn_rnn_layer", [torch.ones(2, 3, 4), torch.ones(20, 4), torch.ones(20, 5), torch.ones(20), torch.ones(4),
         torch.ones(3, 5), torch.ones(3, 5), False, [], 2, 5, 1, True, False, False, True]),
        ("full", [[2**40], 1.0]),
        ("unbind.int", [torch.ones(1).expand(2**20)]),
        ("special_hermite_polynomial_h", [torch.ones(1), torch.tensor([1e9])]),
        ("add.Tensor", [torch.ones(1), None]),
        ("_embedding_bag_per_sample_weights_backward", [torch.ones(1, 5), torch.ones(10, 5), torch.tensor([5, 1, 6]),
         torch.tensor([0, 2]), torch.tensor([], dtype=torch.int64), 0]),
        *[(f"upsample_nearest{dims}d", [torch.ones([1, 1] + [4] * dims, dtype=torch.uint8), [4] * dims, *[1e-19] * dims])
          for dims in (1, 2, 3)],
        ("_upsample_nearest_exact1d", [torch.ones(2, 3, 4, dtype=torch.uint8), [1000], 5e-324]),
        ("_upsample_nearest_exact2d", [torch.ones(1, 1, 4, 4, dtype=torch.uint8), [4, 4], 2.0, 1e-19]),
        ("upsample_bicubic2d", [torch.ones(2, 3, 4, 4), [6, 6], False, 1.7, 1e-45]),
        ("upsample_nearest1d_backward", [torch.ones(1, 1, 4), [4], [1, 1, 4], 1e-300]),
        *[("grid_sampler_2d_backward", [torch.ones(1, 1, 1, 8), torch.ones(1, 1, 4, 4), torch.full((1, 1, 8, 2), point), 0, mode,
           True, [True, True]]) for point, mode in ((float("nan"), 1), (float("nan"), 2), (float("inf"), 2), (3e38, 2))],
        ("replication_pad2d", [torch.ones(1, 3, 3), [2**63 - 1, 2**63 - 1, 0, 1]]),
        ("constant_pad_nd", [torch.ones(1), [2**40, 0]]),
        ("embedding_dense_backward", [torch.ones(1, 5), torch.tensor([-1]), 10, 1000000, True]),
        ("nll_loss_backward", [torch.ones(2), torch.ones(2, 3), torch.full((2,), 255, dtype=torch.uint8), None, 0, -1,
         torch.ones(())]),
        # divided what both operands are once they have one type
        ("lcm", [torch.tensor(2**31), torch.tensor([2**31 - 1], dtype=torch.int32)]),
        ("fmod.Scalar", [torch.tensor([-(2**31)], dtype=torch.int32), 2**32 - 1]),
        ("remainder.Tensor", [torch.tensor(2**31), torch.tensor([-1], dtype=torch.int32)]),
        ("floor_divide", [torch.tensor([-(2**63)]), torch.tensor(-1).view(torch.uint64)]),
        # did not end, or took much memory
        ("special_zeta", [torch.ones(1) * 2, torch.tensor([-1e13 - 0.5])]),
        ("polygamma", [3, torch.tensor([-1e13 - 0.5])]),
        ("split.Tensor", [torch.ones(1).expand(2**20), torch.tensor(1)]),
        ("tril_indices", [2**20, 2**20]),
        ("slice_backward", [torch.ones(1), [2**40], 0, 0, 1, 1]),
        ("masked_scatter_backward", [torch.ones(1), torch.ones(1, dtype=torch.bool), [2**40]]),
        ("bincount", [torch.ones(2, dtype=torch.int64), None, 2**40]),
        ("diag_embed", [torch.ones(2), 2**22]),
        ("multinomial", [torch.ones(2), 2**40, True]),
        *[(f"upsample_{kind}2d", [torch.ones(1, 1, 2, 2), [2**20, 2**20], *more])
          for kind, more in (("nearest", []), ("bilinear", [False]))],
        ("upsample_nearest1d_backward", [torch.ones(1, 1, 1), [1], [1, 1, 2**40]]),
        ("max_unpool2d", [torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1, dtype=torch.int64), [2**20, 2**20]]),
        ("col2im", [torch.ones(1, 1, 1), [2**20, 2**20], [1, 1], [1, 1], [0, 0], [1, 1]]),
        ("im2col", [torch.ones(1, 1, 2, 2), [1, 1], [1, 1], [2**20, 2**20], [1, 1]]),
        *[("convolution", [torch.ones(1, 1, 2, 2), torch.ones(1, 1, 1, 1), None, *more]) for more in (
            [[1, 1], [2**20, 2**20], [1, 1], False, [0, 0], 1],
            [[2**20, 2**20], [2**20, 2**20], [1, 1], False, [0, 0], 1],
            [[2**20, 2**20], [0, 0], [1, 1], True, [0, 0], 1])],
        *[(name, [torch.ones(1, 2, 2), [2**16, 2**16]]) for name in ("adaptive_max_pool2d", "_adaptive_avg_pool2d")],
    ],
)  # fmt: skip
def test_what_kernels_do_not_check(op: str, args: list[Any]) -> None:
    name = f"aten.{op}" if "." in op else f"aten.{op}.default"
    kwargs = {"output_size": 5} if op.startswith("repeat_interleave") else {}
    with pytest.raises((ValueError, IndexError)):
        implementation(name)(*args, **kwargs)


def repeated(*shape: int) -> torch.Tensor:
    """One element, seen as many: what lies behind it is not the tensor's."""
    return torch.full((1,), 7.0).expand(*shape)


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("_scaled_dot_product_flash_attention_for_cpu", [*[torch.ones(1, 1, 4, 64)] * 2, repeated(1, 1, 4, 64)]),
        ("_scaled_dot_product_flash_attention_for_cpu", [repeated(1, 1, 4, 64), torch.ones(1, 4, 64).expand(1, 1, 4, 64),
         torch.ones(1, 1, 1, 64).expand(1, 1, 4, 64)]),
        ("native_group_norm", [torch.ones(1, 64, 1), repeated(64), repeated(64), 1, 64, 1, 1, 1.0]),
        ("native_group_norm_backward", [repeated(1, 64, 1), repeated(1, 64, 1), repeated(1, 1), repeated(1, 1), repeated(64), 1,
         64, 1, 1, [True] * 3]),
        ("native_layer_norm_backward", [repeated(64, 1), repeated(64, 1), [1], repeated(64, 1), repeated(64, 1), repeated(1),
         repeated(1), [True] * 3]),
        *[(f"{name}.dim", [repeated(64), 0]) for name in ("median", "nanmedian")],
        *[(name, [repeated(64), *arguments]) for name, arguments in (("kthvalue", [3]), ("mode", []))],
    ],
)  # fmt: skip
def test_kernels_that_do_not_look_at_strides(op: str, args: list[Any]) -> None:
    """They read what lies behind the tensor, and returned it."""
    run = implementation(f"aten.{op}" if "." in op else f"aten.{op}.default")
    plain = [arg.contiguous() if isinstance(arg, torch.Tensor) else arg for arg in args]
    found, wanted = (
        [each for each in results if isinstance(each, torch.Tensor) and each.is_floating_point()]
        for results in (run(*args), run(*plain))
    )
    torch.testing.assert_close(found, wanted)


def test_integers_are_copied_before_they_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread that runs the bundle may write to a buffer between the check and the use."""
    seen: list[Any] = []
    real = operators.implementation

    def watched(name: str, declared: Any = ()) -> Callable[..., Any]:
        return lambda *args, **kwargs: seen.extend([*args, *kwargs.values()]) or real(name, declared)(*args, **kwargs)

    monkeypatch.setattr(operators, "implementation", watched)
    shared, passed = set(), 0
    for name, recorded in known_calls().items():
        if not operators.is_registered(name) or not allowed.OPERATORS.get(name):
            continue
        for args, kwargs in recorded[:4]:
            given, named = built(args), {key: built(arg) for key, arg in kwargs.items()}
            seen.clear()
            try:
                implementation(name)(*given, **named)
            except Exception:  # it needs other values than these
                continue
            mine = {tensor.data_ptr() for tensor in _integers([*given, *named.values()])}
            passed += len(mine)
            if mine & {tensor.data_ptr() for tensor in _integers(seen)}:
                shared.add(name)
    assert shared == set()
    assert passed > 200


def _integers(values: Any) -> list[torch.Tensor]:
    """The tensors of integers and truth values, also in lists."""
    if isinstance(values, (list, tuple)):
        return [tensor for value in values for tensor in _integers(value)]
    fits = isinstance(values, torch.Tensor) and values.numel() and not values.is_floating_point() and not values.is_complex()
    return [values] if fits else []


def test_the_data_of_operators_is_that_of_the_code() -> None:
    """A loader in another language reads what each rule checks, and its parameters. An operator is listed once."""
    document = json.loads(allowed.PATH.read_bytes())
    names = [name for group in document["operators"] for name in group["names"]]
    assert len(names) == len(set(names)) == len(allowed.OPERATORS)
    used: set[str] = set()

    def note(rule: Any) -> None:
        name, *arguments = [rule] if isinstance(rule, str) else rule
        used.add(name)
        for argument in arguments:
            if isinstance(argument, list):
                note(argument)

    for group in document["operators"]:
        for rule in group["rules"]:
            note(rule)
    assert used == set(document["rules"])
    for name, described in document["rules"].items():
        function = allowed.function(name)
        assert described["checks"] == str(function.__doc__).strip().partition("\n")[0].replace("``", "`"), name
        kinds = inspect.signature(function).parameters.values()
        parameters = [str(one).partition(":")[0] if one.kind is one.VAR_POSITIONAL else one.name for one in kinds]
        assert described.get("parameters", ["given"]) == parameters, name


def test_operators_with_indices_have_rules() -> None:
    """Whoever adds one to the list says whether its kernel may read them twice."""
    words = ("index", "indices", "offset", "length", "repeats", "sorter", "pivot")
    for name, found in allowed.OPERATORS.items():
        if operators.is_registered(name) and not found:
            schema_of: Any = operators.resolve(name)
            names = [argument.name for argument in schema_of._schema.arguments if "Tensor" in str(argument.type)]
            assert not [each for each in names if any(word in each for word in words)], name


def test_batch_norm_writes_to_no_argument() -> None:
    mean, variance = torch.zeros(3), torch.ones(3)
    implementation("aten.native_batch_norm.default")(torch.randn(4, 3), None, None, mean, variance, True, 0.1, 1e-5)
    assert torch.equal(mean, torch.zeros(3))
    assert torch.equal(variance, torch.ones(3))


# ---------------------------------------------------------------- budgets


def subgraph(*nodes: schema.Node, out: str = "a", subgraphs: dict[str, schema.Graph] | None = None) -> schema.Graph:
    return schema.Graph(["a"], [VALUE], list(nodes), [schema.ValueRef(out)], subgraphs or {})


def test_a_loop_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "MAX_STEPS", 1000)
    always = subgraph(schema.Node("t", "aten.ones.default", [[]], VALUE, {"dtype": schema.DTypeArg("bool")}), out="t")
    body = subgraph(schema.Node("b", "aten.neg.default", [schema.ValueRef("a")], VALUE), out="b")
    loop = schema.Node("y", "higher_order.while_loop", [schema.GraphArg("c"), schema.GraphArg("b"), [X], []], VALUE)
    graph = schema.Graph(["x"], [VALUE], [loop], [schema.ValueRef("y")], {"c": always, "b": body})
    run = UntrustedExecutable(graph, CPU, (), lambda error, node: error)
    for _ in range(2):
        with pytest.raises(OperatorError, match="runs more than 1000 operators"):
            run([torch.zeros(4)])


def test_calls_that_multiply_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "MAX_STEPS", 1000)
    graph = subgraph()
    for _ in range(40):
        calls = [
            schema.Node(n, "higher_order.invoke_subgraph", [schema.GraphArg("s"), None, schema.ValueRef("a")], VALUE)
            for n in "pq"
        ]
        graph = subgraph(*calls, subgraphs={"s": graph})
    with pytest.raises(OperatorError, match="runs more than 1000 operators"):
        UntrustedExecutable(graph, CPU, (), lambda error, node: error)([torch.zeros(4)])


def test_rows_are_bounded() -> None:
    for sizes in ((2**40,), (2**15, 2**15)):  # each row is a run of the body
        rows = [torch.zeros(1).expand(size) for size in sizes]
        with pytest.raises(ValueError, match="rows"):
            implementation("higher_order.scan")(None, [], rows, [])


# ---------------------------------------------------------------- bounds of documents


def test_many_short_items_are_refused_before_they_are_parsed() -> None:
    text = b'{"nodes":[' + b"[]," * 3_000_000 + b"[]]}"
    with pytest.raises(CorruptBundleError, match="more than 4000000 items"):
        codec.decode(text, schema.Graph, where="graph")


def test_a_long_header_of_short_items() -> None:
    text = b'{"a":[' + b"0," * 4_100_000 + b"0]}"
    data = memoryview(len(text).to_bytes(8, "little") + text)
    with pytest.raises(CorruptBundleError, match="more than 4000000 items"):
        read_header(data, "weights")


@pytest.mark.parametrize("document", [b'{"major":' + b"1" * 5000 + b',"minor":0}', b'{"major":1' + b"0" * 400 + b',"minor":-'])
def test_integers_of_many_digits(document: bytes) -> None:
    with pytest.raises(CorruptBundleError, match="is not a valid Version"):
        codec.decode(document, schema.Version, where="version")


def test_names_of_many_parts(tmp_path: Path) -> None:
    write_tiny(tmp_path / "m", tensors=[("other", torch.ones(1))])
    documents = Documents(tmp_path / "m")
    for parts, refused in ((2000, True), (64, False)):
        name = ".".join("x" * parts)
        entry = {"name": name, "kind": "buffer", "dtype": "float32", "shape": [1], "stride": [1], "storage": "other"}
        documents.program["state"][1:] = [entry]
        (tmp_path / "m").write_bytes(pack(documents.files()))
        if refused:
            with pytest.raises(CorruptBundleError, match="C2"):
                aotpack.load(tmp_path / "m")
        else:
            assert name in aotpack.load(tmp_path / "m").state_dict()
        documents = Documents(tmp_path / "m") if refused else documents


def test_many_output_symbols_take_no_time(tmp_path: Path) -> None:
    write_tiny(tmp_path / "m")
    documents = Documents(tmp_path / "m")
    symbols = [{"name": f"u{i}", "output": 0, "dim": 0} for i in range(50_000)]
    documents.program["methods"]["infer"]["output_symbols"] = symbols
    (tmp_path / "m").write_bytes(pack(documents.files()))
    start = time.process_time()
    Bundle.open(tmp_path / "m").close()
    assert time.process_time() - start < 10, "it was quadratic: minutes"


def bounded(path: Path, seconds: float, match: str) -> None:
    """Opening a hostile file is refused in bounded time, which is generous for a busy machine."""
    start = time.process_time()
    with pytest.raises(CorruptBundleError, match=match):
        Bundle.open(path)
    assert time.process_time() - start < seconds


def changed(path: Path, change: Callable[[Documents], object]) -> Path:
    write_tiny(path)
    documents = Documents(path)
    change(documents)
    path.write_bytes(pack(documents.files()))
    return path


def test_a_manifest_is_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 MB took 5 GB: each entry of the index was read, decoded and kept."""
    entry = schema.Descriptor(media_types.OCI_MANIFEST, "sha256:" + "0" * 64, 1)
    with pytest.raises(CorruptBundleError, match="lists 500 manifests, 1 different"):
        require_few_targets(schema.ImageIndex(2, [entry] * 500))
    many = [schema.Descriptor(media_types.OCI_MANIFEST, f"sha256:{i:064x}", 1) for i in range(1025)]
    with pytest.raises(CorruptBundleError, match="1025 different"):
        require_few_targets(schema.ImageIndex(2, many))
    require_few_targets(schema.ImageIndex(2, many[:1024]))


def test_names_of_many_modules(tmp_path: Path) -> None:
    """20,000 names of 60 parts took 15 s and 3.7 GB: a module for each part."""

    def change(documents: Documents) -> None:
        documents.program["state"] = [
            {"name": ".".join([f"m{i}"] * 60), "kind": "parameter", "dtype": "float32", "shape": [], "stride": [], "storage": "w"}
            for i in range(3000)
        ]

    bounded(changed(tmp_path / "m", change), 8, "more than 131072 modules")


def test_attributes_and_parameters_are_bounded(tmp_path: Path) -> None:
    """1.9 million attributes, and a million parameters, were loaded in 6 s and 7 s."""

    def attributes(documents: Documents) -> None:
        names = [f"a{i}" for i in range(2**18 + 1)]
        documents.program |= {"module_classes": [{"name": "a.B"}]}
        documents.program["modules"] = [{"kind": 0, "name": "", "attributes": dict.fromkeys(names, 1)}]

    def parameters(documents: Documents) -> None:
        documents.program["signature"] = [{"name": f"p{i}", "kind": "keyword_only"} for i in range(2**16 + 1)]

    bounded(changed(tmp_path / "a", attributes), 4, "more than 262144 attributes")
    bounded(changed(tmp_path / "p", parameters), 4, "more than 65536 parameters")


def test_expressions_are_bounded_together(tmp_path: Path) -> None:
    """8 MB of them took 28 s."""

    def change(documents: Documents) -> None:
        method = documents.program["methods"]["infer"]
        method["constraints"] = [f"{'1+' * 9900}{i}>0" for i in range(60)]

    bounded(changed(tmp_path / "m", change), 4, "1[0-9]* characters in all; the limit is 500000")


def test_few_of_many_problems_are_looked_for() -> None:
    made = []

    def problems() -> Iterator[Problem]:
        for i in range(10**9):
            made.append(i)
            yield Problem("$", "wrong")

    with pytest.raises(CorruptBundleError) as caught:
        validate.refuse("program", problems())
    assert len(caught.value.problems) == len(made) == 50


@pytest.mark.parametrize(
    ("operator", "arguments"),
    [("unbind.int", [0]), ("split.Tensor", [1]), ("tensor_split.sections", [2**20])],
)
def test_pieces_of_a_view_are_bounded(operator: str, arguments: list[Any]) -> None:
    """9 KB took 6 GB: a tensor without memory, taken apart for one of its rows."""
    step = schema.ViewStep(f"aten.{operator}", arguments, select=0)
    replay = replayer(0, schema.AliasResult([step], primal=0), set())
    with pytest.raises(OperatorError, match="the limit is 65536"):
        replay(torch.ones(1).expand(2**20), {}, {})
    small = schema.ViewStep(f"aten.{operator}", [min(arguments[0], 2)], select=0)
    assert replayer(0, schema.AliasResult([small], primal=0), set())(torch.ones(4), {}, {}).numel() in (1, 2)


@pytest.mark.parametrize("digits", [-(2**62), 401])
def test_a_number_is_not_rounded_to_many_digits(digits: int) -> None:
    """Python computes 10 to that power."""
    with pytest.raises(CorruptBundleError, match="more than 400 digits"):
        operators.implementation("builtin.round")(1, digits)
    assert operators.implementation("builtin.round")(1.26, 1) == 1.3


def test_a_graph_returns_few_values(tmp_path: Path) -> None:
    """9 KB took 8 GB of ``inspect``."""
    path = changed(tmp_path / "m", lambda documents: documents.program["methods"]["infer"].update(num_outputs=250_000_000))
    bounded(path, 5, "C14: a graph returns at most")


def test_a_long_name_of_a_method_is_spelled_once(tmp_path: Path) -> None:
    """9 MB took 10 s: each path in the document had the name."""

    def change(documents: Documents) -> None:
        method = documents.program["methods"].pop("infer")
        method["results"] *= 20_000
        method["outputs"] = {"type": "tuple", "items": [{"type": "leaf"}] * 20_000}
        documents.program["methods"]["m" * (8 << 20)] = method

    path = changed(tmp_path / "m", change)
    start = time.process_time()
    Bundle.open(path).close()
    assert time.process_time() - start < 5


def test_attributes_are_none_of_pythons_own(tmp_path: Path) -> None:
    attributes = {"__deepcopy__": 7, "__signature__": 7, "_repr_html_": 7, "_aotpack_adapters": 7, "width": 3}

    def change(documents: Documents) -> None:
        documents.program["modules"] = [{"name": "", "kind": 0, "attributes": attributes}]
        documents.program["module_classes"] = [{"name": "a.B", "base": "Module", "names": []}]
        documents.program["pretrained"] = {"attributes": attributes}

    loaded = aotpack.load(changed(tmp_path / "m", change))
    assert loaded.width == 3
    assert copy.deepcopy(loaded).width == 3
    assert callable(loaded._repr_html_)
    inspect.signature(loaded)
    with pytest.raises(AotpackError, match="no bundle of a model with adapters"):
        aotpack_loader.save_adapter(loaded, tmp_path / "adapter")


def test_attributes_hide_no_state(tmp_path: Path) -> None:
    def change(documents: Documents) -> None:
        documents.program["modules"] = [{"name": "", "kind": 0, "attributes": {"scale": 5}}]
        documents.program["module_classes"] = [{"name": "a.B", "base": "Module", "names": []}]

    with pytest.raises(CorruptBundleError, match=r"attributes\['scale'\]: N1: a submodule, parameter or buffer"):
        aotpack.load(changed(tmp_path / "m", change))


def test_a_program_of_many_targets_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """6 MB took more than 200 s: the program was decoded and checked for each target."""
    write_tiny(tmp_path / "m")
    read, reads = manifests.read_program, []

    def counted(layout: Layout, descriptor: schema.Descriptor) -> schema.Program:
        reads.append(descriptor.digest)
        return read(layout, descriptor)

    with Bundle.open(tmp_path / "m") as bundle:
        found = [found.manifest for found in bundle._manifests.values()] * 50
        monkeypatch.setattr(manifests, "read_program", counted)
        assert len(manifests.read_programs(bundle._layout, found)) == 50
    assert len(reads) == 1


def test_an_attachment_is_read_once(tmp_path: Path) -> None:
    """4 MB took more than 8 GB: one manifest, listed 1,024 times, was kept as often."""
    write_tiny(tmp_path / "m")
    sign(tmp_path / "m", PrivateKey.generate("ed25519"))
    files = members(tmp_path / "m")
    top = json.loads(files["index.json"])
    top["manifests"] += top["manifests"][1:] * 1023
    (tmp_path / "m").write_bytes(pack({**files, "index.json": json.dumps(top).encode()}))
    with Bundle.open(tmp_path / "m") as bundle:
        found, problems = bundle.attachments()
    assert len(found) == 1
    assert problems == []


def test_inputs_are_not_made_of_any_size(tmp_path: Path) -> None:
    def change(documents: Documents) -> None:
        documents.program["methods"]["infer"]["leaves"][0].update(shape=[2**40, 2**20], stride=[1, 1])

    with Bundle.open(changed(tmp_path / "m", change)) as bundle, pytest.raises(AotpackError, match=r"no memory .* args\[0\]"):
        random_inputs(bundle.program, bundle.program.methods["infer"], seed=0)


def test_a_compiled_caller_writes_what_the_bundle_records(tmp_path: Path) -> None:
    """The write was part of the caller's graph, and ended in an error of torch's about sizes."""
    write_tiny(tmp_path / "m", tensors=[("buffer", torch.ones(5))])
    documents = Documents(tmp_path / "m")
    entry = {"name": "buffer", "kind": "buffer", "dtype": "float32", "shape": [5], "stride": [1], "storage": "buffer"}
    documents.program["state"].append(entry)
    method = documents.program["methods"]["infer"]
    method["primals"].append({"type": "buffer", "name": "buffer"})
    method["mutations"] = [{"primal": 2, "output": 0}]
    regraph(documents, lambda graph: (graph["inputs"].append("b"), graph["input_values"].append(TENSOR | {"shape": [5]})))
    (tmp_path / "m").write_bytes(pack(documents.files()))
    loaded = aotpack.load(tmp_path / "m").eval()
    for call in (loaded, torch.compile(lambda x: loaded(x), backend="eager")):
        with torch.no_grad(), pytest.raises(AotpackError, match="The size of tensor"):
            call(torch.ones(4))
    assert torch.equal(loaded.buffer, torch.ones(5))


@pytest.mark.parametrize("change", ["nested", "named"])
def test_a_second_derivative_returns_tensors(tmp_path: Path, change: str) -> None:
    """Its results became gradients as they were."""
    documents = Documents(ROOT / "spec/vectors/v1/valid/second_derivatives/bundle.aotpack")
    second = documents.program["methods"]["train.second"]
    leaves = second["outputs"]["items"]
    nested = {"type": "tuple", "items": [second["outputs"]]}
    named = {"type": "dict", "keys": [str(i) for i in range(len(leaves))], "items": leaves}
    second["outputs"] = nested if change == "nested" else named
    (tmp_path / "m").write_bytes(pack(documents.files()))
    model = aotpack.load(tmp_path / "m", backend="portable").train()
    args, kwargs = bundles.arguments(model.aotpack.program.methods["train"])
    results = [t for t in torch.utils._pytree.tree_leaves(model(*args, **kwargs)) if t.requires_grad]
    leaves = [t for t in torch.utils._pytree.tree_leaves((args, kwargs, list(model.parameters()))) if t.requires_grad]
    with pytest.raises(OperatorError, match="The backward graph returns"):
        torch.autograd.grad(results, leaves, [torch.ones_like(t) for t in results], create_graph=True, allow_unused=True)


def test_files_that_cannot_be_read() -> None:
    with pytest.raises(BundleError):
        aotpack.load("/proc/self/mem")


# ---------------------------------------------------------------- arguments after a failure


def test_a_failing_call_leaves_arguments_as_they_were() -> None:
    """The first write fits, and the second does not."""
    leaves = [schema.TensorLeaf(f"args[{i}]", "float32", [4], [1]) for i in range(2)]
    mutations = [schema.Mutation(primal=0, output=0), schema.Mutation(primal=1, output=1)]
    method = schema.Method(
        [], schema.TupleNode([]), leaves, schema.LeafNode(), [schema.FreshResult(0)],
        [schema.InputPrimal(0), schema.InputPrimal(1)], GRAPH, 2, mutations=mutations,
    )  # fmt: skip
    first, second = torch.zeros(4), torch.zeros(4)
    values = CallValues([first, second], [first, second], [torch.ones(4), torch.ones(5)])
    with pytest.raises(OperatorError, match="cannot be made as the bundle says"):
        Epilogue(method, restores=True)(values, {})
    assert torch.equal(first, torch.zeros(4))


def test_a_failing_view_gives_sizes_back() -> None:
    geometry = schema.Geometry([2, 2], [2, 1])
    method = schema.Method(
        [], schema.TupleNode([]), [schema.TensorLeaf("args[0]", "float32", [4], [1])], schema.LeafNode(),
        [schema.AliasResult([schema.ViewStep("aten.unsqueeze.default", [9])], primal=0)], [schema.InputPrimal(0)], GRAPH, 1,
        mutations=[schema.Mutation(primal=0, output=0, kind="data_and_metadata", geometry=geometry)],
    )  # fmt: skip
    x = torch.arange(4.0)
    with pytest.raises(OperatorError, match="a view that torch refuses"):
        Epilogue(method, restores=True)(CallValues([x], [x], [torch.ones(2, 2)]), {})
    assert x.tolist() == [0, 1, 2, 3], "both its elements and its sizes"
    assert x.shape == (4,)


def test_a_failing_call_gives_back_what_lies_around_an_argument() -> None:
    """As much as a write with other sizes reaches."""
    geometry = schema.Geometry([4], [1])
    method = schema.Method(
        [], schema.TupleNode([]), [schema.TensorLeaf("args[0]", "float32", [2], [1])], schema.LeafNode(),
        [schema.AliasResult([schema.ViewStep("aten.unsqueeze.default", [9])], primal=0)], [schema.InputPrimal(0)], GRAPH, 1,
        mutations=[schema.Mutation(primal=0, output=0, kind="data_and_metadata", geometry=geometry)],
    )  # fmt: skip
    whole = torch.arange(6.0)
    x = whole[2:4]
    with pytest.raises(OperatorError, match="a view that torch refuses"):
        Epilogue(method, restores=True)(CallValues([x], [x], [torch.ones(4)]), {})
    assert whole.tolist() == [0, 1, 2, 3, 4, 5]
    assert x.tolist() == [2, 3]


# ---------------------------------------------------------------- fuzzing


MUTANTS = """
import json, sys, warnings
from pathlib import Path
warnings.simplefilter("default")
from devtools.fuzz import bundles
print(json.dumps(bundles.fuzz(bundles.vectors(Path(sys.argv[1])), range(1_000_000, 1_000_000 + 1200), seconds=15)))
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="a fork runs no backward where torch finds a GPU")
def test_mutants_end_in_one_kind_of_error(fresh_process: FreshProcess) -> None:
    """A part of what ``scripts/fuzz bundles`` runs, the same at every run.

    In a process of its own, because it forks: torch's CUDA builds run no backward in a fork of a process that ran one.
    """
    found = fresh_process(MUTANTS, ROOT)
    assert found["findings"] == []
    assert found["mutants"] >= 400
    assert found["outcomes"].get("ran", 0) > 0


def test_operators_survive_arguments_that_do_not_agree() -> None:
    """A part of what ``scripts/fuzz operators`` runs: those with rules, under guard pages."""
    names = [name for name, rules in allowed.OPERATORS.items() if rules][::8]
    found = fuzz_operators(names, 12, start=5000)
    assert found["found"] == {}
    assert found["wrote"] == {}
    assert found["ran"] > 30


def test_known_escapes_are_refused_within_bounds() -> None:
    """Each took seconds or gigabytes, or raised an error that is none of ours."""
    ours = ("CorruptBundleError", "BundleError", "OperatorError", "TrustError", "UnsupportedVersionError")
    for name, found in escapes.measure().items():
        assert found["ended"].startswith(ours), (name, found)
        assert found["seconds"] < 4, (name, found)  # 0.7 at most on a quiet machine
        assert found["MiB"] < 200, (name, found)
        assert found["imported"] == found["files"] == [], (name, found)


@pytest.mark.filterwarnings("ignore::aotpack_loader.LayoutWarning")
@pytest.mark.parametrize("path", sorted((ROOT / "tests/hostile").glob("*.aotpack")), ids=lambda path: path.stem)
def test_the_corpus(path: Path) -> None:
    """Mutants that once did what they should not."""
    bundles.use(str(path))
