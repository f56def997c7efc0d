"""Tensor subclasses: which classes may be, what a state dict holds of them, what a document must keep, native code."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from conformance.cases.subclasses import Described
from conformance.quantised import Quantised
from conftest import FreshProcess, compiles_native_code
from msgspec import structs
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import aotpack
from aotpack.tools.cli import main
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import (
    AotpackError,
    AutogradError,
    CheckError,
    CorruptBundleError,
    InputError,
    SubclassError,
    UnsupportedError,
)
from aotpack_loader.format import schema
from aotpack_loader.format.validate import validate_program
from aotpack_loader.selftest import run_self_test

TWO = "torch.testing._internal.two_tensor.TwoTensor"


class Model(nn.Module):
    """A quantised weight, a nested parameter, a buffer, a plain parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(Quantised.of(torch.randn(4, 3)))
        self.nested = nn.Parameter(two(two(torch.randn(4)), two(torch.randn(4))))
        self.register_buffer("shift", TwoTensor(torch.randn(4), torch.randn(4)))
        self.bias = nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        plain = nn.functional.linear(x, self.weight, self.bias)
        return plain, plain.detach() * self.shift


def two(a: Tensor, b: Tensor | None = None) -> Tensor:
    return TwoTensor(a, a.clone() if b is None else b)  # type: ignore[no-any-return]


def make() -> Model:
    torch.manual_seed(3)
    return Model()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("subclasses") / "model.aotpack"
    aotpack.build(make(), (torch.randn(2, 3),), out=path, targets=("portable",), cache=False)
    return path


def load(path: Path, **options: Any) -> Any:
    return aotpack.load(path, subclasses=[TwoTensor, Quantised], **options)


def parts(tensor: Tensor) -> list[Tensor]:
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    return [part for name in tensor.__tensor_flatten__()[0] for part in parts(getattr(tensor, name))]


# ---------------------------------------------------------------- classes


def test_classes_are_named_and_never_imported(bundle: Path) -> None:  # K6
    """The caller brings them; all that are missing are named, with what to pass."""
    with pytest.raises(SubclassError) as caught:
        aotpack.load(bundle)
    assert str(caught.value) == (
        "This bundle has tensor subclasses, whose classes load() must be given.\n"
        "  conformance.quantised.Quantised: is not among the subclasses given\n"
        f"  {TWO}: is not among the subclasses given\n"
        "Import them and pass them: load(…, subclasses=[Quantised, TwoTensor]). A bundle imports nothing by itself."
    )
    with pytest.raises(SubclassError, match=r"TwoTensor: is not among") as one:
        aotpack.load(bundle, subclasses=[Quantised])
    assert len(one.value.problems) == 1


def test_a_class_of_that_name_must_come_apart(bundle: Path) -> None:
    fake = type("Quantised", (torch.Tensor,), {"__module__": "conformance.quantised"})
    with pytest.raises(SubclassError, match="is not a subclass of Tensor with __tensor_flatten__ and __tensor_unflatten__"):
        aotpack.load(bundle, subclasses=[fake, TwoTensor])


@pytest.mark.parametrize("given", [TwoTensor, "TwoTensor", ["TwoTensor"]])
def test_classes_are_given_as_a_collection(bundle: Path, given: Any) -> None:
    with pytest.raises(AotpackError, match=r"Pass classes: subclasses=\[MyTensor\]"):
        aotpack.load(bundle, subclasses=given)


def test_requirements_list_the_classes(bundle: Path) -> None:
    with Bundle.open(bundle) as opened:
        assert opened.program.requirements.subclasses == ["conformance.quantised.Quantised", TWO]


CHILD = """
import importlib.util, json, sys
import torch
import torch.utils._python_dispatch
spec = importlib.util.spec_from_file_location("conformance.quantised", sys.argv[2])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.Quantised.of(torch.ones(2, 2)).detach()  # torch imports its distributed tensors at the first operation on a subclass
before = set(sys.modules)
import aotpack_loader
model = aotpack_loader.load(sys.argv[1], subclasses=[module.Quantised])
model(torch.ones(2, 3)).sum().backward()
added = [name for name in set(sys.modules) - before if name.startswith(("torch._", "sympy", "aotpack."))]
print(json.dumps([added, model.weight.grad.tolist(), type(model.weight).__name__]))
"""


def test_a_process_that_only_loads(tmp_path: Path, fresh_process: FreshProcess) -> None:
    """The class alone is imported there, and nothing of torch beyond what the class itself brings."""
    model = nn.Linear(3, 4)
    model.weight = nn.Parameter(Quantised.of(model.weight))
    aotpack.build(model, (torch.ones(2, 3),), out=tmp_path / "q.aotpack", targets=("portable",), cache=False)
    source = Path(__file__).parent / "conformance/quantised.py"
    added, gradient, kind = fresh_process(CHILD, tmp_path / "q.aotpack", source)
    assert added == []
    assert kind == "Quantised"
    model(torch.ones(2, 3)).sum().backward()
    torch.testing.assert_close(torch.tensor(gradient), model.weight.grad)


# ---------------------------------------------------------------- check="full"


class Doubled(nn.Module):
    """Subclasses everywhere: a parameter, an argument, a result, a saved value, a tangent, gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(two(torch.randn(3)))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight).sin()


@pytest.fixture(scope="module")
def doubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("doubled") / "model.aotpack"
    aotpack.build(Doubled(), (two(torch.randn(2, 3)).requires_grad_(),), out=path, targets=("portable",), cache=False)
    return path


def altered(holder: Any, name: str, change: Callable[[list[Any], list[Any]], Any]) -> None:
    """``change`` sees the inputs and outputs of a graph, and may alter them."""
    original = getattr(holder, name)

    def run(inputs: list[Any]) -> list[Any]:
        given = list(inputs)
        outputs: list[Any] = original(inputs)
        change(given, outputs)
        return outputs

    setattr(holder, name, run)


def doubling(values: list[Any], i: int) -> None:
    values[i] = values[i].double()


def half_double(values: Any, environment: Any) -> Tensor:
    found: Any = two(next(values), next(values))
    found.b = found.b.double()
    return found  # type: ignore[no-any-return]


def only_a(values: Any, environment: Any) -> Tensor:
    first, _ = next(values), next(values)
    return first  # type: ignore[no-any-return]


class Widened:
    """Gives a tangent one of whose parts is of another type than the graph was made for."""

    def __init__(self, tangent: Any) -> None:
        self._tangent, self.position = tangent, tangent.position

    def __call__(self, *args: Any) -> Tensor:
        found = self._tangent(*args)
        found.b = found.b.double()
        return found  # type: ignore[no-any-return]


FAULTS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "a part that goes out": (
        lambda call, step: altered(call._boundary, "forward", lambda given, out: doubling(out, 1)),
        r"train\.forward, output 0 \(result\)\.b: should be float32\[2,3\] on cpu, is float64\[2,3\] on cpu",
    ),
    "a part that is written to": (
        lambda call, step: altered(call._boundary, "forward", lambda given, out: given[0].data.add_(1)),
        r"train\.forward, parameter 'weight'\.a: was changed by the forward, which should not write to it",
    ),
    "a result of no class": (
        lambda call, step: setattr(call._boundary.outputs[0], "unflatten", only_a),
        r"train\.forward, output 0 \(result\): expected a TwoTensor, got a Tensor",
    ),
    "a result of other parts": (
        lambda call, step: setattr(call._boundary.outputs[0], "unflatten", half_double),
        r"train\.forward, output 0 \(result\)\.b: expected float32\[2,3\], got float64\[2,3\]",
    ),
    "a tangent of other parts": (
        lambda call, step: step.tangents.__setitem__(0, Widened(step.tangents[0])),
        r"train\.backward, the tangent of output 0\.b: should be float32\[2,3\] on cpu, is float64\[2,3\] on cpu",
    ),
    "a part of a gradient": (
        lambda call, step: altered(step, "_backward", lambda given, out: doubling(out, 0)),
        r"train\.backward, the gradient of parameter 'weight'\.a: should be float32\[3\] on cpu, is float64\[3\] on cpu",
    ),
    "a gradient of no class": (
        lambda call, step: setattr(step._gradients.wrappers[0], "unflatten", only_a),
        r"train\.backward, the gradient of parameter 'weight': expected a TwoTensor, got a Tensor",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_full_checks_name_the_part(doubled: Path, fault: str) -> None:
    model = load(doubled, check="full")
    call = model._aotpack_calls[True, True]
    violate, message = FAULTS[fault]
    violate(call, call.differentiable)
    with pytest.raises(CheckError, match=message):
        model(two(torch.randn(2, 3)).requires_grad_()).sum().backward()


@pytest.mark.parametrize("part", ["a", "b"])
def test_full_checks_notice_a_saved_part_that_is_changed_unseen(doubled: Path, part: str) -> None:
    model = load(doubled, check="full")
    result = model(two(torch.randn(2, 3)).requires_grad_())
    getattr(model.weight, part).detach().data.add_(1)
    with pytest.raises(CheckError, match=rf"saved parameter 'weight'\.{part}: was changed since the forward, unseen"):
        result.sum().backward()


def test_full_checks_notice_a_write_to_a_part_that_is_not_declared(doubled: Path) -> None:
    model = load(doubled, check="full")
    call = model._aotpack_calls[True, True]
    mutate = call._epilogue._mutate

    def more(primals: list[Any], *rest: Any) -> None:
        mutate(primals, *rest)
        primals[0].b.detach().add_(1)

    call._epilogue._mutate = more
    with pytest.raises(CheckError, match="parameter 'weight': was written to, which the bundle does not declare"):
        model(two(torch.randn(2, 3)).requires_grad_())


def test_what_keeps_to_it_passes_full_checks(bundle: Path) -> None:
    model, eager = load(bundle, check="full"), make()
    x = torch.randn(2, 3)
    for module in (model, eager):
        sum(value.sum() for value in module(x)[:1]).backward()
    assert all(map(torch.equal, parts(model.nested), parts(eager.nested)))
    torch.testing.assert_close(model.bias.grad, eager.bias.grad)
    with torch.no_grad():
        model.eval()(x)


# ---------------------------------------------------------------- self-test and command line

MODULES = ("--import", "conformance.quantised", "--import", "torch.testing._internal.two_tensor")


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tested") / "model.aotpack"
    example = (two(torch.randn(2, 3)).requires_grad_(),)
    aotpack.build(Doubled(), example, out=path, targets=("portable",), cache=False, self_test=True)
    return path


def invoke(*words: object) -> Any:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_self_test_holds_the_plain_tensors(tested: Path) -> None:
    report = run_self_test(tested, subclasses=[TwoTensor])
    assert report.ok
    names = ["result.0", "gradient.weight", "input_gradient.0"]
    assert [row[0] for row in report.rows] == [f"{name}.{part}" for name in names for part in "ab"]
    with pytest.raises(SubclassError, match="TwoTensor: is not among the subclasses given"):
        run_self_test(tested)


def test_state_of_subclasses_in_a_self_test(tmp_path: Path) -> None:
    aotpack.build(make(), (torch.randn(2, 3),), out=tmp_path / "m", targets=("portable",), cache=False, self_test=True)
    report = run_self_test(tmp_path / "m", subclasses=[TwoTensor, Quantised])
    assert report.ok
    assert {"buffer.shift.a", "buffer.shift.b", "gradient.bias"} <= {row[0] for row in report.rows}


def test_the_command_line_takes_the_classes_of_imported_modules(tested: Path) -> None:
    checks = json.loads(invoke("verify", tested, *MODULES, "--json"))["checks"]
    assert [check["status"] for check in checks] == ["ok", "ok", "skipped", "ok"]  # the third is the signature
    (*_, without) = json.loads(invoke("verify", tested, "--json"))["checks"]
    assert without["status"] == "skipped"
    assert "--import MODULE" in without["detail"]
    step = json.loads(invoke("run", tested, *MODULES, "--check", "full", "--steps", 2, "--json"))
    assert step["inputs"] == "recorded"
    assert step["losses"][0] != step["losses"][1]


def test_the_command_line_runs_random_subclasses(doubled: Path) -> None:
    step = json.loads(invoke("run", doubled, *MODULES, "--check", "full", "--json"))
    assert step["inputs"] == "random, seed 0"
    assert step["gradient_norm"] > 0


def test_the_command_line_measures_bundles_of_subclasses(tested: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)  # where a fresh process finds the modules
    (figures,) = json.loads(invoke("bench", tested, *MODULES, "--rounds", 1, "--iterations", 1, "--json"))
    assert figures["name"] == "bundle, portable"
    assert figures["step"] > 0


def test_a_self_test_of_a_new_target_needs_the_classes(tested: Path, tmp_path: Path) -> None:
    words = ("compile", tested, "--target", "cpu", "--self-test", "-o", tmp_path / "more.aotpack")
    refused = CliRunner().invoke(main, [str(word) for word in words])
    if not compiles_native_code():
        pytest.skip("this torch makes no native code")
    assert refused.exit_code == 1
    assert "TwoTensor: is not among the subclasses given" in refused.output
    report = json.loads(invoke(*words, *MODULES, "--json"))
    assert any("cpu" in note and "6 tensors agree" in note for note in report["notes"])


def test_inspect_shows_the_classes_and_what_they_hold(doubled: Path) -> None:
    shown = " ".join(invoke("inspect", "-v", doubled).split())
    held = f"{TWO} of a float32[2, 3], b float32[2, 3]"
    assert f"class {TWO}" in shown
    assert f"x float32[2, 3], requires grad, {held}" in shown
    assert f"result: {held}, differentiable" in shown
    assert f"weight parameter float32[3] {TWO} of a float32[3], b float32[3]" in shown


# ---------------------------------------------------------------- state


def test_state_has_the_original_names_and_classes(bundle: Path) -> None:
    model, loaded = make(), load(bundle)
    assert list(loaded.state_dict()) == list(model.state_dict()) == ["weight", "nested", "bias", "shift"]
    for name, value in model.state_dict().items():
        ours = loaded.state_dict()[name]
        assert type(ours) is type(value)
        assert all(map(torch.equal, parts(ours), parts(value)))
    assert [type(p) for p in loaded.parameters()] == [type(p) for p in model.parameters()]
    assert all(isinstance(p, nn.Parameter) for p in loaded.parameters())


def test_a_state_dict_fills_a_module_without_weights(bundle: Path) -> None:
    model, loaded = make(), load(bundle, weights=False)
    loaded.load_state_dict(model.state_dict())
    x = torch.randn(2, 3)
    torch.testing.assert_close(loaded(x)[0], model(x)[0])


def test_a_copy_has_tensors_of_its_own(bundle: Path) -> None:
    loaded = load(bundle)
    copied = copy.deepcopy(loaded)
    with torch.no_grad():
        copied.weight.zero_()
    assert parts(loaded.weight)[0].count_nonzero() > 0
    copied(torch.randn(2, 3))[0].sum().backward()
    assert loaded.weight.grad is None
    assert type(copied.weight.grad) is Tensor


def test_state_of_another_class_or_metadata_is_refused(bundle: Path) -> None:  # K7
    loaded = load(bundle)
    loaded.weight = nn.Parameter(torch.randn(4, 3))
    loaded.shift = two(torch.randn(5))
    with pytest.raises(InputError) as caught:
        loaded(torch.randn(2, 3))
    assert [str(problem) for problem in caught.value.problems] == [
        "weight: expected a Quantised, got a Parameter",
        "shift: .a: expected float32[4], got float32[5]",
    ]
    quantised = Quantised.of(torch.randn(4, 3))
    loaded.weight = nn.Parameter(Quantised(quantised.data_, quantised.scale, 1, torch.float32))
    loaded.shift = two(torch.randn(4))
    with pytest.raises(InputError, match=r"weight: expected a Quantised with the metadata \{'axis': 0.*\{'axis': 1"):
        loaded(torch.randn(2, 3))


# ---------------------------------------------------------------- calls


def build(path: Path, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    aotpack.build(function, args, out=path / "f.aotpack", targets=("portable",), cache=False, **options)
    return load(path / "f.aotpack")


def leaf(*shape: int) -> Tensor:
    return two(torch.randn(shape), torch.randn(shape)).requires_grad_()


def test_parts_of_an_argument_may_lie_otherwise(tmp_path: Path) -> None:
    """They are brought to the recorded strides as they go into the graph; the gradient fits the argument."""
    loaded = build(tmp_path, lambda x: (x * 2).sin(), leaf(3, 4))
    x = two(torch.randn(4, 3).t(), torch.randn(4, 3).t()).requires_grad_()
    loaded(x).sum().backward()
    for gradient, part in zip(parts(x.grad), parts(x), strict=True):
        torch.testing.assert_close(gradient, 2 * (2 * part).cos())


def test_written_arguments_share_no_memory(tmp_path: Path) -> None:
    """Nor do two parts of one of them."""

    def write(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return x + y

    loaded = build(tmp_path, write, two(torch.randn(3)), two(torch.randn(3)))
    part = torch.randn(3)
    with pytest.raises(InputError, match=r"x: shares its memory with y"):
        loaded(two(part), two(torch.randn(3), part))
    with pytest.raises(InputError, match=r"x: shares its memory with itself: two of its parts are the same"):
        loaded(two(part, part), two(torch.randn(3)))
    doubled = part * 2
    assert torch.equal(parts(loaded(two(part), two(torch.zeros(3))))[0], doubled)


class Coerced(TwoTensor):
    """Makes a TwoTensor of itself where one is wanted."""

    def __coerce_same_metadata_as_tangent__(self, metadata: Any, kind: Any = None) -> Any:
        return TwoTensor(self.a, self.b) if kind is TwoTensor else self.a if kind is Tensor else None

    @staticmethod
    def __tensor_unflatten__(inner: Any, metadata: Any, size: Any, stride: Any) -> Tensor:
        return Coerced(inner["a"], inner["b"], size, stride)


def test_a_gradient_may_make_itself_fit(tmp_path: Path) -> None:
    loaded = build(tmp_path, lambda x, y: (x * 2, y * 3), leaf(3), torch.randn(3, requires_grad=True))
    x, y = leaf(3), torch.randn(3, requires_grad=True)
    out = loaded(x, y)
    torch.autograd.backward(out, [Coerced(torch.ones(3), torch.ones(3)), Coerced(torch.ones(3), torch.ones(3))])
    assert type(x.grad) is TwoTensor
    assert torch.equal(parts(x.grad)[1], torch.full((3,), 2.0))
    assert type(y.grad) is Tensor
    with pytest.raises(AutogradError, match="the gradient: expected a plain tensor, got a TwoTensor"):
        loaded(x, y)[1].backward(two(torch.ones(3)))


class WithoutZeros(TwoTensor):
    """Knows no zeros."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.zeros_like.default:
            raise NotImplementedError("no zeros here")
        return super().__torch_dispatch__(func, types, args, kwargs)

    @staticmethod
    def __tensor_unflatten__(inner: Any, metadata: Any, size: Any, stride: Any) -> Tensor:
        return WithoutZeros(inner["a"], inner["b"], size, stride)


def test_a_class_without_zeros_needs_all_gradients(tmp_path: Path) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x.sin()

    x = WithoutZeros(torch.randn(3), torch.randn(3)).requires_grad_()
    aotpack.build(function, (x,), out=tmp_path / "f.aotpack", targets=("portable",), cache=False)
    loaded = aotpack.load(tmp_path / "f.aotpack", subclasses=[WithoutZeros])
    torch.autograd.backward(loaded(x), [WithoutZeros(torch.ones(3), torch.ones(3))] * 2)
    with pytest.raises(AutogradError, match=r"its class cannot make zeros.\n  zeros_like: NotImplementedError: no zeros here"):
        loaded(x)[0].backward(WithoutZeros(torch.ones(3), torch.ones(3)))


def test_parameters_that_need_more_than_plain_data_are_refused(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    model.bias = nn.Parameter(Described(torch.randn(3), torch.randn(3)))
    message = r"bias.__tensor_flatten__\(\)\[1\]\['recipe'\]: the metadata of Described holds a Recipe"
    with pytest.raises(UnsupportedError, match=message):
        aotpack.build(model, (torch.randn(2, 3),), out=tmp_path / "f.aotpack", targets=("portable",), cache=False)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- documents


def corrupted(bundle: Path, change: Callable[[schema.Program], schema.Program]) -> str:
    with Bundle.open(bundle) as opened:
        program = change(opened.program)
    with pytest.raises(CorruptBundleError) as caught:
        validate_program(program, "program")
    return str(caught.value)


def with_weight(program: schema.Program, **changes: Any) -> schema.Program:
    first, *rest = program.state
    return structs.replace(program, state=[structs.replace(first, **changes), *rest])


def with_subclass(program: schema.Program, **changes: Any) -> schema.Program:
    subclass = program.state[0].subclass
    assert subclass is not None
    return with_weight(program, subclass=structs.replace(subclass, **changes))


def with_method(program: schema.Program, **changes: Any) -> schema.Program:
    return structs.replace(program, methods=program.methods | {"train": structs.replace(program.methods["train"], **changes)})


def nested(depth: int) -> Any:
    return schema.DataSequence("list", [nested(depth - 1)]) if depth else 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # K1
        (lambda p: with_subclass(p, attributes=["data_"]), "K1: there is one part for each attribute"),
        (lambda p: with_subclass(p, attributes=["scale", "scale"]), "K1: there is one part for each attribute"),
        (lambda p: with_subclass(p, metadata=nested(17)), "K1: its metadata is nested more than 16 deep"),
        (lambda p: with_subclass(p, metadata=schema.DataMapping(["a"], [])), "K1: its metadata has a mapping without"),
        (
            lambda p: with_subclass(p, metadata=schema.DataSequence("size", ["a"])),
            "K1: its metadata has a size that is not a number",
        ),
        # K2
        (
            lambda p: structs.replace(p, requirements=structs.replace(p.requirements, subclasses=[TWO])),
            "K2: conformance.quantised",
        ),
        # K3
        (lambda p: with_weight(p, storage="weight"), "K3: the parts of a subclass have a storage, and not it"),
        (lambda p: with_weight(p, subclass=None), "K3: a plain tensor has a storage"),
        (lambda p: with_subclass(p, shape=["s0", 3]), "K3: a size or stride of stored state is a number"),
        (lambda p: with_subclass(p, shape=[5, 3]), "K3: an entry and its subclass have the same shape"),
        (lambda p: with_subclass(p, stride=[1]), "C3: shape and stride differ in length"),
        # K4
        (lambda p: with_method(p, subclasses=[None]), "K4: there is one entry for each forward output"),
        (lambda p: with_method(p, sizes=["s0 +"]), "C13:"),
        (
            lambda p: with_method(p, backward=structs.replace(p.methods["train"].backward, subclasses=[None] * 9)),
            "K4: there is one entry for each output of the backward graph",
        ),
        # K5
        (
            lambda p: with_method(p, backward=structs.replace(p.methods["train"].backward, saved=[schema.SavedPrimal(0)])),
            "K5: a part of a subclass is saved",
        ),
        (
            lambda p: with_method(p, backward=structs.replace(p.methods["train"].backward, saved=[schema.SavedPrimal(0, 2)])),
            "K5: a part of a subclass is saved",
        ),
    ],
)
def test_documents_keep_the_rules(bundle: Path, change: Any, message: str) -> None:
    assert message in corrupted(bundle, change)


def test_subclasses_nest_no_deeper_than_is_walked(bundle: Path) -> None:
    def deep(program: schema.Program) -> schema.Program:
        part: Any = schema.InnerTensor("float32", [1], [1], "x")
        for _ in range(17):
            part = schema.Subclass(TWO, ["a"], [part], [1], [1])
        return with_weight(program, subclass=part)

    assert "K1: it is nested more than 16 deep" in corrupted(bundle, deep)


# ---------------------------------------------------------------- native code


def test_cpu_target(tmp_path: Path) -> None:
    """Compiled code sees plain tensors only; sizes vary, an argument is written to, gradients are eager's."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(Quantised.of(torch.randn(4, 3)))
            self.scale = nn.Parameter(two(torch.randn(4), torch.randn(4)))

        def forward(self, x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
            y = nn.functional.linear(x, self.weight) * self.scale
            seen.add_(y.detach().sum(0))
            return y.sin(), x.sum() * x.size(0)

    torch.manual_seed(0)
    model = Net()
    given = (torch.randn(2, 3, requires_grad=True), two(torch.zeros(4), torch.ones(4)))
    shapes = {"x": {0: torch.export.Dim("batch", min=2)}, "seen": None}
    aotpack.build(model, given, out=tmp_path / "net.aotpack", targets=("cpu",), dynamic_shapes=shapes, methods=("train",))
    loaded = [load(tmp_path / "net.aotpack", backend="cpu", check=check) for check in ("arguments", "full")]
    for batch in (2, 5):
        seen: list[list[Tensor]] = []
        x, start = torch.randn(batch, 3), two(torch.randn(4), torch.randn(4))
        for module in (model, *loaded):
            module.zero_grad()
            leaves = x.clone().requires_grad_(), start.clone()
            out = module(*leaves)
            torch.autograd.backward([out[0].sum(), out[1]])
            results = [*out, leaves[0].grad, leaves[1], module.weight.grad, module.scale.grad]
            assert [type(value) for value in results] == [TwoTensor, Tensor, TwoTensor, TwoTensor, TwoTensor, TwoTensor]
            seen.append([part.detach() for value in results for part in parts(value)])
        for found in seen[1:]:
            torch.testing.assert_close(found, seen[0], rtol=1e-4, atol=1e-5)
