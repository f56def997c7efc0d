"""The call library: whose calls it makes, that it makes them, and that Python makes all others."""

from __future__ import annotations

import copy
import re
import threading
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import FreshProcess
from msgspec import structs
from torch import nn

import aotpack
import aotpack_loader
from aotpack._torch.inductor.toolchain import call_compiler, commands
from aotpack.targets.cpu import call_library
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.devices.call_library import INTERFACE, open_library
from aotpack_loader.errors import AutogradError, InputError
from aotpack_loader.format.native_call import Refusal
from aotpack_loader.runtime.call import MethodCall
from devtools.native_calls import load_native
from devtools.paths import ROOT


def step(model: nn.Module, batch: int = 4, seed: int = 0) -> dict[str, torch.Tensor]:
    """Everything a caller sees of one step."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(batch, 1, 8, 8, generator=generator)
    labels = torch.randint(10, (batch,), generator=generator)
    model.zero_grad()
    torch.manual_seed(seed)
    out = model(images, labels)
    out["loss"].backward()
    seen = {name: value.detach() for name, value in out.items()}
    seen |= {f"grad {name}": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return seen | {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}


NEVER_PYTHON = """
import json, sys, torch, aotpack_loader
from aotpack_loader.runtime.call import MethodCall
def refuse(*arguments):
    raise AssertionError("a call was made in Python")
MethodCall.__call__ = refuse
model = aotpack_loader.load(sys.argv[1], backend="cpu")
for batch in (4, 7, 4):
    model(torch.rand(batch, 1, 8, 8), torch.randint(10, (batch,)))["loss"].backward()
print(json.dumps(dict(model.aotpack.calls)))
"""


def test_native_code_makes_every_call(digits_bundle: Path, fresh_process: FreshProcess) -> None:
    """In a process of its own: what other tests leave behind must not decide it."""
    assert fresh_process(NEVER_PYTHON, digits_bundle) == {"train": "native", "infer": "native"}


def test_what_a_trace_leaves_behind_is_no_mode(digits_bundle: Path) -> None:
    """The key of dense tensors stays included in the thread after some traces."""
    loaded = aotpack.load(digits_bundle, backend="cpu")
    before = torch._C._dispatch_tls_is_dispatch_key_included("Dense")
    torch._C._dispatch_tls_set_dispatch_key_included("Dense", True)
    try:
        loss = loaded(torch.rand(4, 1, 8, 8), torch.randint(10, (4,)))["loss"]
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included("Dense", before)
    assert loss.grad_fn.name() == "AotpackStep"


def test_native_code_trains_like_eager(digits_bundle: Path, digits_model: nn.Module) -> None:
    loaded, eager = aotpack.load(digits_bundle, backend="cpu"), copy.deepcopy(digits_model)
    for seed, batch in enumerate((4, 7, 4)):
        torch.testing.assert_close(step(loaded, batch, seed), step(eager, batch, seed))


def test_it_can_be_switched_off(digits_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # X3
    native = aotpack.load(digits_bundle, backend="cpu")
    monkeypatch.setenv("AOTPACK_NATIVE_CALL", "0")
    python = aotpack.load(digits_bundle, backend="cpu")
    assert set(python.aotpack.calls.values()) == {"python: switched off by AOTPACK_NATIVE_CALL=0"}
    for seed in range(2):
        torch.testing.assert_close(step(python, seed=seed), step(native, seed=seed), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"torch": "2.13.0+other"}, "is for torch 2.13.0+other"),
        ({"python": ".cpython-39-x86_64-linux-gnu.so"}, "is for Python .cpython-39"),
        ({"interface": 99}, "has interface 99"),
    ],
)
def test_a_library_for_something_else_is_not_opened(digits_bundle: Path, change: dict[str, Any], reason: str) -> None:  # X3
    bundle = Bundle.open(digits_bundle)
    target = next(target for target in bundle.targets.values() if target.call is not None)
    assert target.call is not None
    assert target.call.python == EXTENSION_SUFFIXES[0]
    other = structs.replace(target, call=structs.replace(target.call, **change))
    assert open_library(bundle, target)[0] is not None
    found, why = open_library(bundle, other)
    assert found is None
    assert reason in why


def test_a_library_that_does_not_load(digits_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = Bundle.open(digits_bundle)
    target = next(target for target in bundle.targets.values() if target.call is not None)
    (tmp_path / "broken.so").write_bytes(b"no code")
    monkeypatch.setattr(Bundle, "code", lambda self, descriptor: tmp_path / "broken.so")
    found, why = open_library(bundle, target)
    assert found is None
    assert why.startswith("the call library cannot be loaded")


def test_a_build_without_a_compiler_for_it_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_compiler, "call_library_fingerprint", lambda: {"flags": "none that was ever cached"})
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(commands, "inductor_fingerprint", dict)
    with pytest.warns(call_library.CallLibraryWarning, match="no-such-compiler"):
        assert call_library.library_bytes() is None


def test_what_does_not_fit_is_pythons_to_refuse(digits_bundle: Path) -> None:
    loaded = aotpack.load(digits_bundle, backend="cpu")
    step(loaded)
    with pytest.raises(InputError, match=r"expected float32\[.*8,8\], got float64"):
        loaded(torch.rand(4, 1, 8, 8, dtype=torch.float64), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(InputError, match=r"expected float32\["):
        loaded(torch.rand(4, 1, 8), torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize(
    "mode",
    [
        lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(), lambda x: x),
        lambda: torch.device("cpu"),
        torch.inference_mode,
        torch.autograd.detect_anomaly,
    ],
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_modes_of_the_caller(digits_bundle: Path, digits_model: nn.Module, mode: Any) -> None:
    loaded, eager = aotpack.load(digits_bundle, backend="cpu"), copy.deepcopy(digits_model)
    images, labels = torch.rand(3, 1, 8, 8), torch.tensor([1, 2, 3])
    with mode():
        if torch.is_inference_mode_enabled():
            loaded.eval()
            eager.eval()
        found, expected = loaded(images, labels)["loss"], eager(images, labels)["loss"]
        torch.testing.assert_close(found, expected)
        if found.requires_grad:
            found.backward()
            expected.backward()
    for mine, other in zip(loaded.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_gradients_that_are_no_plain_tensors(digits_bundle: Path) -> None:
    loaded = aotpack.load(digits_bundle, backend="cpu")
    loss = loaded(torch.rand(3, 1, 8, 8), torch.tensor([1, 2, 3]))["loss"]
    parameters = list(loaded.parameters())
    with pytest.raises(AutogradError, match="one gradient at a time"):
        torch.autograd.grad(loss, parameters, torch.ones(2), is_grads_batched=True, retain_graph=True)
    expected = torch.autograd.grad(loss, parameters, torch.tensor(-1.0), retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, parameters, torch._neg_view(torch.tensor(1.0))), expected)


class Written(nn.Module):
    """Writes to buffers of a few bytes, of many, and whose elements are not in order in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("few", torch.zeros(4))
        self.register_buffer("many", torch.zeros(100, 100))
        self.register_buffer("crossed", torch.zeros(3, 5).t())
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x.detach().sum()
        for buffer in (self.few, self.many, self.crossed[1:3]):
            buffer.add_(total)
        self.count.add_(1)
        return x * self.few * self.count


def test_writes_of_few_and_of_many_bytes(tmp_path: Path) -> None:
    eager, out = Written(), tmp_path / "m.aotpack"
    aotpack.build(eager, (torch.ones(4, requires_grad=True),), out=out, targets=("portable",), methods=("train",))
    loaded = load_native(out)
    assert loaded.aotpack.calls == {"train": "native"}
    for given in (torch.arange(4.0).requires_grad_(), torch.ones(4, requires_grad=True)):
        versions = [{n: b._version for n, b in model.named_buffers()} for model in (loaded, eager)]
        torch.testing.assert_close(loaded(given), eager(given), rtol=0, atol=0)
        for name, buffer in loaded.named_buffers():
            expected = eager.get_buffer(name)
            torch.testing.assert_close(buffer, expected, rtol=0, atol=0)
            assert buffer.stride() == expected.stride()
            assert (buffer._version > versions[0][name]) == (expected._version > versions[1][name])


class SameOrOther(nn.Module):
    """Attention asks so whether it attends to itself."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 if x is y else x + y


@pytest.mark.parametrize("same", [True, False])
def test_a_comparison_of_arguments_is_checked_before_native_code(same: bool, tmp_path: Path) -> None:
    x, y = torch.rand(3, requires_grad=True), torch.rand(3)
    given, other = ((x, x), (x, y)) if same else ((x, y), (x, x))
    aotpack.build(SameOrOther(), given, out=tmp_path / "m", targets=("portable",), methods=("train",))
    loaded = load_native(tmp_path / "m")
    assert loaded.aotpack.calls == {"train": "native"}
    loaded(*given).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.full((3,), 2.0 if same else 1.0))
    assert loaded(*given).grad_fn.name() == "AotpackStep"
    with pytest.raises(InputError, match="the same tensor as"):
        loaded(*other)


class Turned(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.t_() + 1


def test_a_reason_says_what_to_change(tmp_path: Path) -> None:
    aotpack.build(Turned(), (torch.ones(3, 2),), out=tmp_path / "m", targets=("portable",), methods=("infer",))
    reason = "python: it changes sizes or strides in place; return a new tensor"
    assert load_native(tmp_path / "m").aotpack.calls == {"infer": reason}


class Views(nn.Module):
    """Results that are views: of an argument, of a parameter, of a buffer that is written to, and of values inside."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(12.0).reshape(3, 4))
        self.register_buffer("count", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        self.count.add_(1)
        hidden = torch.tanh(x @ self.weight)
        first, second = hidden.chunk(2, dim=1)
        flat = hidden.view(-1)
        return [x[1:], x.t(), self.weight[0], self.count[2:], first, second.t(), flat, flat[2:], hidden.detach()[0], hidden]


def seen_views(model: nn.Module, x: torch.Tensor, grad: bool) -> list[Any]:
    """What a caller sees of the views: values, gradients, their bases, and what writes to them change."""
    model.zero_grad()
    given = x.clone().requires_grad_(grad)
    kept = given * 1
    with torch.set_grad_enabled(grad):
        results = model(kept)
    seen = [(one.clone(), one.stride(), one.storage_offset(), one.requires_grad) for one in results]
    same = [[a.untyped_storage()._cdata == b.untyped_storage()._cdata for a in (*results, kept)] for b in results]
    if grad:
        sum((one * (i + 1)).sum() for i, one in enumerate(results) if one.requires_grad).backward()
        weight = model.get_parameter("weight")
        seen += [(given.grad, weight.grad)]
        return [*seen, same, *model.buffers()]
    results[0].mul_(2)
    results[3].add_(5)
    results[6].mul_(3)
    return [*seen, same, [one.clone() for one in results], kept.clone(), *[buffer.clone() for buffer in model.buffers()]]


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_are_made_after_a_native_call(dynamic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = ({0: torch.export.Dim("rows", min=2, max=8)},) if dynamic else None
    model = Views()
    aotpack.build(
        model, (torch.rand(4, 3, requires_grad=True),), out=tmp_path / "m", targets=("portable",), dynamic_shapes=shapes
    )
    native = load_native(tmp_path / "m")
    assert native.aotpack.calls == {"train": "native", "infer": "native"}
    monkeypatch.setattr(MethodCall, "__call__", lambda *arguments: pytest.fail("a call was made in Python"))
    eager = copy.deepcopy(model)
    for rows, grad in ((4, True), (4, False), *([(6, True), (3, False)] if dynamic else [])):
        x = torch.rand(rows, 3)
        for one in (native, eager):
            one.load_state_dict(model.state_dict())
            one.train(grad)
        found, wanted = seen_views(native, x, grad), seen_views(eager, x, grad)
        torch.testing.assert_close(found, wanted)
    monkeypatch.undo()
    with pytest.raises(InputError, match="expected float32"):
        native.train()(torch.rand(4, 5))


class FromStart(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.as_strided((2, 2), (2, 1), 0) * 2


def test_an_argument_that_begins_its_storage_is_checked_before_native_code(tmp_path: Path) -> None:
    aotpack.build(FromStart(), (torch.rand(2, 2),), out=tmp_path / "m", targets=("portable",), methods=("infer",))
    loaded = load_native(tmp_path / "m")
    assert loaded.aotpack.calls == {"infer": "native"}
    x = torch.rand(3, 2)
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval()(x[:2]), x[:2] * 2)
    with torch.no_grad(), pytest.raises(InputError, match="has the storage offset 2, expected 0"):
        loaded(x[1:])


def test_threads_share_a_model(digits_bundle: Path) -> None:
    loaded = aotpack.load(digits_bundle, backend="cpu").eval()
    images = [torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(4)]
    labels = torch.tensor([1, 2, 3, 4, 5])
    with torch.no_grad():
        expected = [loaded(given, labels)["loss"].clone() for given in images]
    wrong: list[int] = []

    def call(number: int) -> None:
        with torch.no_grad():
            wrong.extend(number for _ in range(50) if not torch.equal(loaded(images[number], labels)["loss"], expected[number]))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_backward_outlives_its_model(digits_bundle: Path, digits_model: nn.Module) -> None:
    loaded = aotpack.load(digits_bundle, backend="cpu")
    parameter = next(iter(loaded.parameters()))
    loss = loaded(torch.rand(3, 1, 8, 8), torch.tensor([1, 2, 3]))["loss"]
    del loaded
    loss.backward()
    assert parameter.grad is not None


def sources() -> str:
    """All sources of the call library."""
    return "".join(path.read_text() for path in sorted(call_compiler.CSRC.iterdir()))


def test_twins_exist_and_name_each_other() -> None:
    """What native code computes as Python does is named there, and the module says that it has a twin."""
    loader = Path(aotpack_loader.__file__).parent
    twins = re.findall(r"(\S+\.py), (\w+)", " ".join(re.findall(r"// .*Twin: (.*)\.\n", sources())))
    assert len(twins) > 25
    for file, name in twins:
        text = (loader / file).read_text()
        assert re.search(rf"^ *(class|def) {name}\b", text, re.MULTILINE), f"{file} has no {name}"
        assert "``csrc/`` has twins" in text, file


def test_rules_that_native_code_names_are_rules_of_the_spec() -> None:
    pages = "".join(path.read_text() for path in (ROOT / "spec").glob("*.md"))
    named = {rule for line in re.findall(r"// (.*)Twin: ", sources()) for rule in re.findall(r"\b[A-Z]\d+\b", line)}
    assert len(named) > 10
    assert {rule for rule in named if f"**({rule})**" not in pages} == set()


def test_the_interface_has_one_number() -> None:
    assert f"constexpr int64_t kInterface = {INTERFACE};" in sources()
    assert f"the version of what this page describes, {INTERFACE}." in (ROOT / "spec/native-call.md").read_text()


def test_the_reasons_of_refusals_are_the_same_on_both_sides() -> None:
    (listed,) = re.findall(r"enum class Refusal : uint8_t \{(.*?)\};", sources(), re.DOTALL)
    assert {name.upper(): int(value) for name, value in re.findall(r"(\w+) = (\d+)", listed)} == dict(Refusal.__members__)
