"""A build checks itself: planted faults are found, rounding is not called an error, and the model stays as it was."""

from __future__ import annotations

import inspect
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.ao.quantization import FusedMovingAvgObsFakeQuantize
from torch.fx import GraphModule, Node
from torch.utils._pytree import register_pytree_node
from torch.utils.checkpoint import checkpoint

import aotpack
from aotpack.checking.calling import Call
from aotpack.checking.comparison import Reference
from aotpack.checking.eager import Eager, Example
from aotpack.checking.rounding import value_at
from aotpack.pipeline import check, documents
from aotpack.pipeline.traced_methods import TracedMethod
from aotpack.tools.cli.build import command as build_command
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import WrongResultsError

pytestmark = pytest.mark.filterwarnings("ignore")
Plant = Callable[[TracedMethod], None]
aten = torch.ops.aten


class Convolutions(nn.Module):
    """BatchNorm and a loss. The gradient of the bias before BatchNorm is zero but for rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.head(self.norm(self.conv(x)).relu().mean((2, 3))), y)


class Attention(nn.Module):
    """A block with a mask of padded tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(2, 6, 3, 2, 8).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1) / 8**0.5).masked_fill(~seen[:, None, None], -1e4)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(2, 6, 16)
        return (x + self.out(mixed)).square().mean()


def convolutions() -> tuple[nn.Module, tuple[Any, ...]]:
    return Convolutions(), (torch.randn(4, 3, 8, 8), torch.tensor([0, 4, 2, 2]))


@pytest.fixture(autouse=True)
def time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds of small models are so short that further inputs may not fit into a tenth of one."""
    monkeypatch.setattr(check, "_SHARE", 100.0)


def attention() -> tuple[nn.Module, tuple[Any, ...]]:
    seen = torch.ones(2, 6, dtype=torch.bool)
    seen[1, 4:] = False
    return Attention(), (torch.randn(2, 6, 16, requires_grad=True), seen)


def _added(graph: GraphModule, after: Node, target: Any, *args: Any, value: torch.Tensor) -> Node:
    with graph.graph.inserting_after(after):
        node = graph.graph.call_function(target, args)
    node.meta = dict(after.meta) | {"val": value}
    return node


def _gradient(method: TracedMethod) -> tuple[GraphModule, Node]:
    graph = method.convention.backward
    assert graph is not None
    nodes: Any = graph.graph.output_node().args[0]
    return graph, next(node for node in nodes if isinstance(node, Node) and node.meta["val"].numel() > 3)


def wrong_element(method: TracedMethod) -> None:
    """One element of one gradient is a hundredth too large."""
    graph, node = _gradient(method)
    value = node.meta["val"]
    flat = _added(graph, node, aten.reshape.default, node, [-1], value=value.reshape(-1))
    part = _added(graph, flat, aten.slice.Tensor, flat, 0, 1, 2, value=value.reshape(-1)[1:2])
    more = _added(graph, part, aten.mul.Tensor, part, 1.01, value=value.reshape(-1)[1:2])
    whole = _added(graph, more, aten.slice_scatter.default, flat, more, 0, 1, 2, value=value.reshape(-1))
    back = _added(graph, whole, aten.reshape.default, whole, list(value.shape), value=value)
    graph.graph.output_node().replace_input_with(node, back)
    graph.recompile()


def lost_gradient(method: TracedMethod) -> None:
    """A gradient is zero."""
    graph, node = _gradient(method)
    zero = _added(graph, node, aten.mul.Tensor, node, 0.0, value=node.meta["val"])
    graph.graph.output_node().replace_input_with(node, zero)
    graph.recompile()


def wrong_count(method: TracedMethod) -> None:
    """A mean divides by one less."""
    graph = method.convention.forward
    node = next(node for node in graph.graph.nodes if node.target in (aten.mean.dim, aten.mean.default))
    count = 64 if node.target is aten.mean.dim else 192
    more = _added(graph, node, aten.mul.Tensor, node, count / (count - 1), value=node.meta["val"])
    node.replace_all_uses_with(more, delete_user_cb=lambda user: user is not more)
    graph.recompile()


def dropped_row(method: TracedMethod) -> None:
    """Every row has the mask of the first."""
    graph = method.convention.forward
    node = next(node for node in graph.graph.nodes if "masked_fill" in str(node.target))
    mask = node.args[1]
    value = mask.meta["val"]
    row = _added(graph, mask, aten.slice.Tensor, mask, 0, 0, 1, value=value[:1])
    rows = _added(graph, row, aten.expand.default, row, list(value.shape), value=value[:1].expand(value.shape))
    node.args = (node.args[0], rows, *node.args[2:])
    graph.recompile()


def plant(monkeypatch: pytest.MonkeyPatch, fault: Plant) -> None:
    """Change the graphs of the method ``train`` before they are stored."""
    describe = documents.describe

    def changed(traced: Any, *rest: Any) -> Any:
        for method in traced:
            if method.plan.name == "train":
                fault(method)
        return describe(traced, *rest)

    monkeypatch.setattr(documents, "describe", changed)


@pytest.mark.parametrize(
    ("make", "fault", "expected"),
    [
        (convolutions, wrong_element, r"state.conv.weight.grad: values differ"),
        (convolutions, lost_gradient, r"state.conv.weight.grad: values differ.*begins at: backward: mul_tensor"),
        (convolutions, wrong_count, r"out: values differ.*begins at: the result of linear at .*test_check.py:\d+: return F"),
        (attention, wrong_element, r"\.grad: values differ"),
        (attention, lost_gradient, r"\.grad: values differ"),
        (attention, wrong_count, r"out: values differ"),
        (attention, dropped_row, r"begins at: the result of masked_fill at .*test_check.py:\d+: scores = "),
    ],
)
def test_a_planted_fault_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, fault: Plant, expected: str
) -> None:
    """The error names the method, the result, and where the fault begins, and nothing is written."""
    torch.manual_seed(0)
    model, args = make()
    plant(monkeypatch, fault)
    out = tmp_path / "m.aotpack"
    with pytest.raises(WrongResultsError, match=rf"(?s)'train' of target 'portable'.*{expected}"):
        aotpack.build(model, args, out=out, targets=("portable",), methods=("train",), check=True)
    assert list(tmp_path.iterdir()) == []
    assert aotpack.build(model, args, out=out, targets=("portable",), methods=("train",), check=False).warnings == ()


@pytest.mark.parametrize("make", [convolutions, attention])
def test_nothing_of_the_model_changes(tmp_path: Path, make: Any) -> None:
    """Values, version counters, gradients, modes and the random state are as before."""
    model, args = make()
    model(*args).backward()
    tensors = [*model.parameters(), *model.buffers(), *args]
    before = [
        (x.clone(), x._version, None if x.grad is None else x.grad.clone()) for x in tensors if not x.requires_grad or x.is_leaf
    ]
    generator, training = torch.get_rng_state(), model.training
    aotpack.build(model, args, out=tmp_path / "m.aotpack", targets=("portable",), check=True)
    after = [(x, x._version, x.grad) for x in tensors]
    for (value, version, gradient), (now, version_now, gradient_now) in zip(before, after, strict=True):
        assert torch.equal(value, now)
        assert version == version_now
        assert (gradient is None) == (gradient_now is None)
        assert gradient is None or torch.equal(gradient, gradient_now)  # type: ignore[arg-type]
    assert torch.equal(generator, torch.get_rng_state())
    assert model.training is training


def test_python_state_is_as_before(tmp_path: Path) -> None:
    """Values that the model keeps in Python stay what they are."""

    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.seen = nn.Linear(3, 3), []  # type: ignore[var-annotated]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = x.shape
            return self.linear(x)

    model = Keeps()
    aotpack.build(model, (torch.randn(2, 3),), out=tmp_path / "m.aotpack", targets=("portable",), check=True)
    assert model.seen == []
    assert not hasattr(model, "last")


def toolchain(path: Path) -> dict[str, str]:
    """The record of the portable target."""
    with Bundle.open(path) as bundle:
        return bundle.targets["portable"].toolchain


def test_what_was_not_checked_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check, with weights on meta, and with too little memory the bundle says so; else it says nothing."""
    out, x = tmp_path / "m.aotpack", torch.randn(2, 3)

    def built(model: nn.Module, **options: Any) -> tuple[str, tuple[str, ...]]:
        report = aotpack.build(model, (x,), out=out, targets=("portable",), methods=("train",), **{"check": True, **options})
        return toolchain(out).get(check.KEY, ""), report.warnings

    assert built(nn.Linear(3, 3)) == ("", ())
    assert built(nn.Linear(3, 3), check=False) == (check.LEFT_OUT, ())
    monkeypatch.setattr(check, "_free_memory", lambda: 10)
    reason, warned = built(nn.Linear(3, 3))
    assert reason.startswith("not made: it needs about")
    assert "not compared" in warned[0]


def test_inputs_by_shape_alone_get_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example on meta is checked with drawn values."""
    example = torch.empty(2, 3, device="meta", requires_grad=True)
    out = tmp_path / "m.aotpack"
    aotpack.build(torch.sin, (example,), out=out, targets=("portable",), methods=("train",), check=True)
    assert check.KEY not in toolchain(out)
    plant(monkeypatch, lost_gradient)
    with pytest.raises(WrongResultsError):
        aotpack.build(torch.sin, (example,), out=out, targets=("portable",), methods=("train",), check=True)


def test_a_second_draw_finds_what_the_example_hides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An example that masks nothing does not show a lost mask."""
    model, (x, seen) = attention()
    plant(monkeypatch, dropped_row)
    with pytest.raises(WrongResultsError, match="on inputs with masked rows"):
        aotpack.build(
            model, (x, torch.ones_like(seen)), out=tmp_path / "m.aotpack", targets=("portable",), methods=("train",), check=True
        )


def test_dropout_is_compared_where_the_draws_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Portable graphs draw eager's numbers."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 4))
    args = (torch.randn(3, 4),)
    report = aotpack.build(model, args, out=tmp_path / "m.aotpack", targets=("portable",), methods=("train",), check=True)
    assert not any("were not compared" in text for text in (*report.warnings, *report.notes))
    plant(monkeypatch, lost_gradient)
    with pytest.raises(WrongResultsError):
        aotpack.build(model, args, out=tmp_path / "m.aotpack", targets=("portable",), methods=("train",), check=True)


def test_the_check_is_timed(tmp_path: Path) -> None:
    """The report has its stage."""
    with warnings.catch_warnings(action="ignore"):
        report = aotpack.build(
            nn.Linear(3, 3), (torch.randn(2, 3),), out=tmp_path / "m.aotpack", targets=("portable",), check=True
        )
    assert [stage.name for stage in report.stages].count("check") == 1


def test_a_build_is_checked_unless_it_says_otherwise() -> None:
    """The check is the default of the function and of the command."""
    assert inspect.signature(aotpack.build).parameters["check"].default is True
    assert next(option for option in build_command.params if option.name == "check").default is True


class Kinked(nn.Module):
    """Sums before a ReLU that are zero but for rounding: their signs hang on the order of the terms."""

    def __init__(self, order: tuple[int, int, int], factor: float = 1.0) -> None:
        super().__init__()
        self.order, self.factor = order, factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b, c = (x[:, i] for i in self.order)
        return F.relu(a + b + c) * self.factor


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_rounding_before_a_kink_is_no_error(factor: float) -> None:
    """Another order of additions may take another branch of a ReLU. A wrong factor beside it is an error."""
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    x[:48, 2] = -(x[:48, 0] + x[:48, 1])
    example = Example((x.requires_grad_(),), {})
    method: Any = SimpleNamespace(autocast=None)
    eager, other = (Eager(model, method, True, Call()) for model in (Kinked((0, 1, 2)), Kinked((2, 1, 0), factor)))
    reference, found = Reference(eager, example, same_numbers=True), other.run(example)
    gradients = [value_at(seen, "args[0].grad") for seen in (reference.plain, found)]
    assert not torch.equal(*(gradient != 0 for gradient in gradients if gradient is not None))
    assert bool(reference.differences(found)) is (factor != 1.0)


class Summed(torch.autograd.Function):
    """Adds the gradients of rows in eager's order or one after the other, with a factor that is wrong."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, factor: float | None) -> torch.Tensor:
        ctx.factor = factor
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        rows = torch.full_like(gradient, 1.447e-5)
        if ctx.factor is None:
            return None, rows.sum(0), None
        total = rows[0] * 0
        for row in rows:
            total = total + row
        return None, total * ctx.factor, None


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_a_long_sum_in_another_order_is_no_error(factor: float) -> None:
    """Equal terms one after the other are all rounded in one direction."""
    method: Any = SimpleNamespace(autocast=None)
    example = Example((torch.ones(2048, 3), torch.ones(3, requires_grad=True)), {})
    eager, other = (Eager(Adding(each), method, True, Call()) for each in (None, factor))
    assert bool(Reference(eager, example, same_numbers=True).differences(other.run(example))) is (factor != 1.0)


class Adding(nn.Module):
    def __init__(self, factor: float | None) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> Any:
        return Summed.apply(x, weight, self.factor)  # type: ignore[no-untyped-call]


class Normed(nn.Module):
    """A layer norm of half precision whose weights are float32: by eager's kernel, or computed in float32."""

    def __init__(self, factor: float | None) -> None:
        super().__init__()
        self.factor, self.norm = factor, nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.factor is None:
            normed: torch.Tensor = self.norm(x)
            return normed
        return (F.layer_norm(x.float(), (16,)) * self.norm.weight * self.factor + self.norm.bias).to(x.dtype)


@pytest.mark.parametrize("factor", [1.0, 1.5])
def test_a_kernel_that_adds_in_half_precision_is_no_reference_for_float32(factor: float) -> None:
    method: Any = SimpleNamespace(autocast=None)
    example = Example((torch.randn(64, 16, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_(),), {})
    eager, other = (Eager(Normed(each), method, True, Call()) for each in (None, factor))
    reference, found = Reference(eager, example, same_numbers=True), other.run(example)
    gradients = [value_at(seen, "state.norm.bias.grad") for seen in (reference.plain, found)]
    assert not torch.allclose(*(gradient for gradient in gradients if gradient is not None), rtol=1e-4)
    assert bool(reference.differences(found)) is (factor != 1.0)


def test_a_reentrant_checkpoint_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses a backward for chosen leaves, so there the gradients go to all."""
    x = torch.randn(3, requires_grad=True)
    options: dict[str, Any] = {"out": tmp_path / "m.aotpack", "targets": ("portable",), "methods": ("train",), "check": True}
    assert aotpack.build(lambda x: checkpoint(torch.sin, x, use_reentrant=True), (x,), **options).warnings == ()
    plant(monkeypatch, lost_gradient)
    x = torch.randn(5, requires_grad=True)
    with pytest.raises(WrongResultsError, match=r"args\[0\].grad: values differ"):
        aotpack.build(lambda x: checkpoint(torch.sin, x, use_reentrant=True), (x,), **options)


class Recomputed(nn.Module):
    """Eager writes the statistics twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.norm, x, use_reentrant=False).sin()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("model", "x"),
    [(Recomputed(), torch.randn(5, 4, requires_grad=True)), (lambda x: (x, x * 2), torch.randn(3, dtype=torch.complex64).conj())],
)
def test_documented_differences_end_no_build(tmp_path: Path, model: Any, x: torch.Tensor) -> None:
    """A norm inside a checkpoint, of which a warning speaks, and lazy flags of arguments that are passed on."""
    out = tmp_path / "m.aotpack"
    report = aotpack.build(model, (x,), out=out, targets=("portable",), methods=("train",), check=True)
    assert not any("not compared" in text for text in report.warnings)
    assert check.KEY not in toolchain(out)


class _Rounded(nn.Module):
    """Rows in eight bits, as quantizers write it: a row of zeros is divided by zero, and NaN is cast to an integer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = x.abs().amax(-1, keepdim=True) / 127
        bits = (x / scale).round().clamp(-128, 127).to(torch.int8)
        return self.head(x + (bits * scale - x).detach()), bits


def _observed() -> nn.Module:
    """A layer whose range is observed: the kernel writes buffers, and counts no versions."""
    return nn.Sequential(nn.Linear(8, 4), FusedMovingAvgObsFakeQuantize(quant_min=0, quant_max=255))


@pytest.mark.parametrize("make", [_Rounded, _observed])
def test_quantizers_pass(tmp_path: Path, make: Callable[[], nn.Module]) -> None:
    report = aotpack.build(make(), (torch.randn(4, 8),), out=tmp_path / "m.aotpack", targets=("cpu",))
    assert not any("not compared" in text for text in report.warnings)


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(3), nn.InstanceNorm2d(3), nn.GroupNorm(3, 3)], ids=["batch", "instance", "group"]
)
def test_constants_before_a_norm_pass(tmp_path: Path, norm: nn.Module) -> None:
    """Eager multiplies before it subtracts the mean: of 3 it leaves 3e-5, and compiled code 0."""
    x = torch.full((4, 3, 5, 5), 3.0)
    report = aotpack.build(norm, (x,), out=tmp_path / "m.aotpack", targets=("cpu",), methods=("train",))
    assert not any("not compared" in text for text in report.warnings)


def test_an_input_at_a_threshold_is_what_it_is() -> None:
    """Inputs are not rounded, so a comparison of them has one outcome."""
    method: Any = SimpleNamespace(autocast=None)
    x = torch.tensor([0.3, 0.31], dtype=torch.bfloat16)
    eager = Eager(nn.Threshold(float(x[0]), 20.0), method, True, Call())
    other = Eager(nn.Threshold(0.29, 20.0), method, True, Call())
    example = Example((x.requires_grad_(),), {})
    assert len(Reference(eager, example, same_numbers=True).differences(other.run(example))) == 2


class ByType(nn.Module):
    """Computes something else in float64."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp() * (7.0 if x.dtype == torch.float64 else self.factor)


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_a_model_that_acts_otherwise_in_float64_is_compared(factor: float) -> None:
    """What it computes there is no measure of its rounding: it would allow any result."""
    example, method = Example((torch.randn(5, requires_grad=True),), {}), SimpleNamespace(autocast=None)
    eager, other = (Eager(ByType(each), method, True, Call()) for each in (1.0, factor))  # type: ignore[arg-type]
    assert bool(Reference(eager, example, same_numbers=True).differences(other.run(example))) is (factor != 1.0)


class Odd(nn.Module):
    """Its last value is NaN, infinite or large; with ``overflows``, it is as large as half precision can be."""

    def __init__(self, value: float, *, overflows: bool = False) -> None:
        super().__init__()
        self.value, self.overflows = value, overflows

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = x.exp() * (self.value if self.overflows else 1.0)
        return scaled.half() if self.overflows else torch.where(x < 0, scaled, self.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 2.0])
@pytest.mark.parametrize("other", [float("nan"), float("inf"), -float("inf"), 2.0])
def test_nan_is_no_rounding_of_infinity(value: float, other: float) -> None:
    """What is not finite must be equal in kind."""
    example, method = Example((torch.tensor([-1.0, -2.0, 1.0], requires_grad=True),), {}), SimpleNamespace(autocast=None)
    eager, bundle = (Eager(Odd(each), method, True, Call()) for each in (value, other))  # type: ignore[arg-type]
    found = Reference(eager, example, same_numbers=True).differences(bundle.run(example))
    assert bool(found) is (repr(value) != repr(other))


@pytest.mark.parametrize("value", [65519.97, 65520.03])
def test_an_overflow_at_the_largest_number_is_rounding(value: float) -> None:
    """Eager is a few roundings from the other side. Where it is not, infinity is an error."""
    example, method = Example((torch.zeros(5),), {}), SimpleNamespace(autocast=None)
    other = 65520.03 if value < 65520 else 65519.97
    eager, bundle = (Eager(Odd(each, overflows=True), method, False, Call()) for each in (value, other))  # type: ignore[arg-type]
    assert Reference(eager, example, same_numbers=True).differences(bundle.run(example)) == []
    eager = replace(eager, module=Odd(value - 9e3 if value < 65520 else value + 9e3, overflows=True))
    assert Reference(eager, example, same_numbers=True).differences(bundle.run(example))


class Watched(nn.Module):
    """Computes something else where its operators are watched, as the fast path of ``nn.TransformerEncoder`` does."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.exp() * (7.0 if torch._C._len_torch_dispatch_stack() else self.factor)


@pytest.mark.parametrize("factor", [1.0, 7.0])
def test_a_model_that_acts_otherwise_when_watched_is_compared(factor: float) -> None:
    """What it computes there is no rounding of what it computes alone. A trace sees only the former."""
    example, method = Example((torch.randn(5, requires_grad=True),), {}), SimpleNamespace(autocast=None)
    eager, other = (Eager(Watched(each), method, True, Call()) for each in (1.0, factor))  # type: ignore[arg-type]
    assert bool(Reference(eager, example, same_numbers=True).differences(other.run(example))) is (factor != 1.0)


@dataclass
class Output(OrderedDict[str, Any]):
    """A result with names that is no model output of transformers."""

    y: torch.Tensor

    def __post_init__(self) -> None:
        self["y"] = self.y


register_pytree_node(Output, lambda output: ([output.y], None), lambda values, _: Output(*values))


def test_records_of_own_classes_are_no_difference(tmp_path: Path) -> None:
    """A bundle returns a replacement of the class, which has methods that the class lacks."""
    out, x = tmp_path / "m.aotpack", torch.randn(3)
    aotpack.build(lambda x: Output(y=x * 2), (x,), out=out, targets=("portable",), methods=("infer",), check=True)
    assert check.KEY not in toolchain(out)


class BesideADraw(nn.Module):
    """A thread draws from the default generator while the model runs. The model itself may draw, too."""

    def __init__(self, *, drops: bool) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(3, 3), nn.Dropout(0.5 if drops else 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        other = threading.Thread(target=torch.rand, args=(5,))
        other.start()
        other.join()
        dropped: torch.Tensor = self.drop(self.layer(x)) if self.drop.p else self.layer(x)
        return dropped


@pytest.mark.parametrize("drops", [False, True])
def test_what_another_thread_draws_is_not_the_models(drops: bool) -> None:
    """No run of eager was compared, as each left the generator in another state: rounding was an error."""
    method: Any = SimpleNamespace(autocast=None)
    eager = Eager(BesideADraw(drops=drops), method, True, Call(draws=True))
    reference = Reference(eager, Example((torch.ones(2, 3),), {}), same_numbers=True, may_draw=drops)
    assert reference.draws is drops
    assert bool(reference.plain.generator) is drops
    assert drops or reference.exact is not None
