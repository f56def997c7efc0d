"""``load(..., check="full")``: each thing that a build assumes is asserted, and a bundle that keeps to it passes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import aotpack
from aotpack_loader.errors import AotpackError, CheckError
from aotpack_loader.format import expressions, schema
from aotpack_loader.runtime.expectations import Expected


class Subject(nn.Module):
    """A parameter, a buffer that counts, fresh results, an alias, a saved activation of its own, a size that varies."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        self.seen.add_(x.detach().sum(0))
        hidden = (x @ self.weight).sin()
        return {"out": hidden * hidden.cos(), "plain": x.detach() + 1, "view": y.t()}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("checks") / "subject.aotpack"
    rows = torch.export.Dim("rows", min=2, max=16)
    args = (torch.randn(4, 3, requires_grad=True), torch.randn(4, 3))
    aotpack.build(Subject(), args, out=out, targets=("portable",), dynamic_shapes=({0: rows}, {0: rows}), partitioner="default")
    return out


def _changed(original: Any, change: Callable[[list[Any], list[Any]], Any]) -> Callable[[list[Any]], list[Any]]:
    """An executable whose inputs and outputs ``change`` sees, and may alter."""

    def run(inputs: list[Any]) -> list[Any]:
        given = list(inputs)
        outputs: list[Any] = original(inputs)
        change(given, outputs)
        return outputs

    return run


class Broken:
    """A loaded bundle, parts of which a test replaces."""

    def __init__(self, bundle: Path) -> None:
        self.model = aotpack.load(bundle, check="full")
        self.call: Any = self.model._aotpack_calls[True, True]
        self.step: Any = self.call.differentiable
        self.method = self.model.aotpack.program.methods["train"]
        self.x = torch.randn(5, 3, requires_grad=True)
        self.y = torch.randn(5, 3)

    def position(self, field: str) -> int:
        """The forward output behind a result."""
        index = ["out", "plain", "view"].index(field)
        result = self.method.results[index]
        assert isinstance(result, schema.FreshResult)
        return result.output

    def donated(self) -> int:
        """A forward output that only the backward sees."""
        assert self.method.backward is not None
        saved = self.method.backward.saved
        return next(s.output for s in saved if isinstance(s, schema.SavedOutput) and s.donated)

    def forward(self, change: Callable[[list[Any], list[Any]], Any]) -> None:
        """``change`` sees the inputs and outputs of the forward graph."""
        self.step.forward = _changed(self.step.forward, change)

    def backward(self, change: Callable[[list[Any], list[Any]], Any]) -> None:
        """``change`` sees the inputs and outputs of the backward graph."""
        self.step.backward = _changed(self.step.backward, change)
        self.step.retaining = _changed(self.step.retaining, change)

    def inputs(self, change: Callable[[list[Any], dict[str, int]], Any]) -> None:
        """``change`` sees the arguments on their way to the graphs, and the sizes."""
        original = self.call.inputs

        def inputs(args: Any, kwargs: Any) -> Any:
            leaves, laid_out, environment = original(args, kwargs)
            change(laid_out, environment)
            return leaves, laid_out, environment

        self.call.inputs = inputs

    def run(self) -> None:
        """A step."""
        self.model(self.x, self.y)["out"].sum().backward()


def put(values: list[Any], i: int, value: Any) -> None:
    values[i] = value


def write(tensor: Tensor) -> None:
    """In place, unseen by the version counter."""
    tensor.detach().data.add_(1)


def results(broken: Broken, index: int, change: Callable[[Any], Any]) -> None:
    build = broken.call._epilogue._results[index]
    broken.call._epilogue._results[index] = lambda *args: change(build(*args))


def writes_to_weight(broken: Broken) -> None:
    mutate = broken.call._epilogue._mutate
    at = next(i for i, p in enumerate(broken.method.primals) if isinstance(p, schema.ParameterPrimal))

    def more(primals: list[Tensor], *rest: Any) -> None:
        mutate(primals, *rest)
        primals[at].detach().add_(1)

    broken.call._epilogue._mutate = more


VIOLATIONS: dict[str, tuple[Callable[[Broken], Any], str]] = {
    "forward input, strides": (
        lambda b: b.inputs(lambda laid_out, env: put(laid_out, 0, laid_out[0].t().contiguous().t())),
        r"train\.forward, x: should have the strides \[3, 1\], has \[1, 5\]",
    ),
    "forward input, size": (
        lambda b: b.inputs(lambda laid_out, env: put(laid_out, 1, laid_out[1][:4])),
        r"train\.forward, y: should be float32\[5,3\] on cpu, is float32\[4,3\] on cpu",
    ),
    "symbol, range": (
        lambda b: b.inputs(lambda laid_out, env: env.update(dict.fromkeys(env, 99))),
        r"train, size s\d+: should be in 2\.\.16, is 99",
    ),
    "symbol, unbound": (
        lambda b: b.inputs(lambda laid_out, env: env.clear()),
        r"train, size s\d+: no argument determines it",
    ),
    "forward output, element type": (
        lambda b: b.forward(lambda given, out: put(out, b.position("out"), out[b.position("out")].double())),
        r"train\.forward, output \d+ \(result\['out'\]\): should be float32\[5,3\] on cpu, is float64\[5,3\] on cpu",
    ),
    "forward output, shape": (
        lambda b: b.forward(lambda given, out: put(out, b.donated(), out[b.donated()][:2])),
        r"train\.forward, output \d+: should be float32\[5,3\] on cpu, is float32\[2,3\] on cpu",
    ),
    "forward output, strides": (
        lambda b: b.forward(lambda given, out: put(out, b.position("plain"), out[b.position("plain")].t().contiguous().t())),
        r"output \d+ \(result\['plain'\]\): should have the strides \[3, 1\], has \[1, 5\]",
    ),
    "forward output, kind": (
        lambda b: b.forward(lambda given, out: put(out, b.position("plain"), 7)),
        r"output \d+ \(result\['plain'\]\): should be a tensor of float32, is 7",
    ),
    "forward outputs, number": (
        lambda b: b.forward(lambda given, out: out.pop()),
        r"train: there should be \d+ values, there are \d+",
    ),
    "forward writes to an input": (
        lambda b: b.forward(lambda given, out: write(given[0])),
        r"train\.forward, parameter 'weight': was changed by the forward, which should not write to it",
    ),
    "fresh result in an input's memory": (
        lambda b: b.forward(
            lambda given, out: put(out, b.position("plain"), next(g for g in given if g.shape == (5, 3)).detach())
        ),
        r"\(result\['plain'\]\): should have memory of its own, and shares it with x",
    ),
    "donated value in a result's memory": (
        lambda b: b.forward(lambda given, out: put(out, b.donated(), out[b.position("out")])),
        r"output \d+: is donated to the backward, so it should have memory of its own, and shares it with .*result\['out'\]",
    ),
    "saved primal changed unseen": (
        lambda b: b.model.register_forward_hook(lambda *_: write(b.model.weight)),
        r"train\.backward, saved parameter 'weight': was changed since the forward, unseen by its version counter",
    ),
    "tangent, layout": (
        lambda b: put(b.step.tangents, 0, _Twisted(b.step.tangents[0])),
        r"train\.backward, the tangent of output \d+: should have the strides \[3, 1\], has \[1, 5\]",
    ),
    "backward output, shape": (
        lambda b: b.backward(lambda given, out: put(out, 0, out[0][:1])),
        r"train\.backward, the gradient of parameter 'weight': should be float32\[3,3\] on cpu, is float32\[1,3\] on cpu",
    ),
    "backward output, element type": (
        lambda b: b.backward(lambda given, out: put(out, 0, out[0].double())),
        r"the gradient of parameter 'weight': should be float32\[3,3\] on cpu, is float64\[3,3\] on cpu",
    ),
    "backward writes to what it was lent": (
        lambda b: b.backward(lambda given, out: write(given[0])),
        r"train\.backward, saved parameter 'weight': was changed by the backward, which does not own it",
    ),
    "backward writes to the tangent": (
        lambda b: b.backward(lambda given, out: write(given[-1])),
        r"train\.backward, the tangent of output \d+: was changed by the backward",
    ),
    "write that is not declared": (
        writes_to_weight,
        r"train\.forward, parameter 'weight': was written to, which the bundle does not declare",
    ),
    "alias in other memory": (
        lambda b: results(b, 2, lambda view: view.clone()),
        r"train, result\['view'\]: should be a view of its base, and is in other memory",
    ),
    "gradient where none should be": (
        lambda b: results(b, 1, lambda plain: plain.requires_grad_()),
        r"train, result\['plain'\]: requires a gradient, and should carry none",
    ),
}


class _Twisted:
    """Gives a tangent in another layout than the graph was compiled for."""

    def __init__(self, tangent: Any) -> None:
        self._tangent, self.position = tangent, tangent.position

    def __call__(self, *args: Any) -> Tensor:
        return self._tangent(*args).t().contiguous().t()  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", VIOLATIONS)
def test_violation_is_named(bundle: Path, name: str) -> None:
    broken = Broken(bundle)
    violate, message = VIOLATIONS[name]
    violate(broken)
    with pytest.raises(CheckError, match="Method 'train' does not do what the bundle says") as caught:
        broken.run()
    assert re.search(message, str(caught.value)), str(caught.value)


def test_view_that_lost_its_gradient(tmp_path: Path) -> None:
    def turned(x: Tensor) -> tuple[Tensor, Tensor]:
        x.t_()
        return x[0], x * 2

    out = tmp_path / "turned.aotpack"
    leaf = torch.randn(3, 4, requires_grad=True)
    aotpack.build(turned, (leaf + 0,), out=out, targets=("portable",), methods=("train",), cache=False)
    model = aotpack.load(out, check="full")
    call: Any = model._aotpack_calls[True, True]
    assert model(leaf + 0)[0].requires_grad
    build = call._epilogue._results[0]
    call._epilogue._results[0] = lambda *args: build(*args).detach()
    with pytest.raises(CheckError, match=r"train, result\[0\]: should carry a gradient, as its base does, and carries none"):
        model(leaf + 0)


@pytest.fixture(scope="module")
def selecting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def positive(x: Tensor) -> tuple[Tensor, Tensor]:
        indices = (x > 0).nonzero()
        return x[indices[:, 0]] * 2, indices

    out = tmp_path_factory.mktemp("checks") / "selecting.aotpack"
    aotpack.build(positive, (torch.randn(6),), out=out, targets=("portable",), methods=("infer",))
    return out


def test_ranges_of_sizes_that_depend_on_data_are_kept_and_checked(selecting: Path) -> None:  # C24
    model = aotpack.load(selecting, check="full")
    (symbol,) = model.aotpack.program.methods["infer"].output_symbols
    assert (symbol.minimum, symbol.maximum, symbol.needed) == (0, 6, False)
    assert [len(value) for value in model.eval()(torch.ones(6))] == [6, 6]
    call: Any = model._aotpack_calls[False, False]
    call.forward = _changed(
        call.forward, lambda given, out: out.__setitem__(slice(None), [x.new_zeros(9, *x.shape[1:]) for x in out])
    )
    with pytest.raises(CheckError, match=r"infer, size u\d+, which depends on data: should be in 0\.\.6, is 9"):
        model(torch.ones(6))


def test_sizes_that_depend_on_data_are_the_same_everywhere(selecting: Path) -> None:
    model = aotpack.load(selecting, check="full").eval()
    call: Any = model._aotpack_calls[False, False]
    call.forward = _changed(call.forward, lambda given, out: put(out, 1, out[1][:2]))
    with pytest.raises(CheckError, match=r"output 1 \(result\[1\]\): should be int64\[6,1\] on cpu, is int64\[2,1\] on cpu"):
        model(torch.ones(6))


def test_donated_values_outlive_a_retained_graph(bundle: Path) -> None:
    def overwrite(given: list[Any], out: list[Any]) -> None:
        assert broken.method.backward is not None
        saved = broken.method.backward.saved
        write(given[next(i for i, s in enumerate(saved) if isinstance(s, schema.SavedOutput) and s.donated)])

    broken = Broken(bundle)
    broken.backward(overwrite)
    broken.run()  # its own: the graph is not kept
    with pytest.raises(CheckError, match=r"train\.backward, saved output \d+: was changed by the backward"):
        broken.model(broken.x, broken.y)["out"].sum().backward(retain_graph=True)


def test_what_keeps_to_it_passes(bundle: Path) -> None:
    plain, full = aotpack.load(bundle), aotpack.load(bundle, check="full")
    x, y = torch.randn(5, 3), torch.randn(5, 3)
    seen = []
    for model in (plain, full):
        leaf = x.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone() + 0, lambda t: t):
            result = model(leaf, y)
        result["out"].sum().backward(retain_graph=True)
        result["out"].sum().backward()
        with torch.no_grad():
            idle = model.eval()(leaf, y)
        seen.append([result["out"], result["plain"], idle["out"], leaf.grad, *model.parameters(), *model.buffers()])
    torch.testing.assert_close(seen[0], seen[1])


def test_values_that_hooks_bring_back_in_other_memory_may_differ(bundle: Path) -> None:
    model = aotpack.load(bundle, check="full")
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float()):
        result = model(torch.randn(5, 3, requires_grad=True), torch.randn(5, 3))
    result["out"].sum().backward()


def test_off_by_default(bundle: Path) -> None:
    calls = aotpack.load(bundle)._aotpack_calls.values()
    assert all(call.checks is None and call._epilogue._checks is None for call in calls)
    with pytest.raises(AotpackError, match="check='all' is not known"):
        aotpack.load(bundle, check="all")  # type: ignore[arg-type]


def test_constraints(bundle: Path) -> None:
    broken = Broken(bundle)
    checks = broken.call.checks
    symbol = broken.method.symbols[0]
    checks._constraints.append((f"{symbol.name} % 2 == 0", expressions.parse(f"{symbol.name} % 2 == 0")))
    with pytest.raises(CheckError, match=r"train, sizes: should satisfy s\d+ % 2 == 0, are \{'s\d+': 5"):
        broken.run()


@pytest.mark.parametrize(("value", "wrong"), [(4, False), (torch.tensor(4), False), (5, True), ("4", True)])
def test_integers(value: Any, wrong: bool) -> None:
    problems = list(Expected("here", schema.IntValue("s0 * 2")).problems(value, {"s0": 2}, torch.device("cpu")))
    assert [str(p) for p in problems] == ([f"here: should be the integer 4, is {value!r}"] if wrong else [])


def test_sizes_that_depend_on_data_are_not_looked_at() -> None:
    expected = Expected("here", schema.TensorValue("float32", ["u0", 2], [2, 1]))
    assert list(expected.problems(torch.zeros(7, 2), {}, torch.device("cpu"))) == []
    assert len(list(expected.problems(torch.zeros(7, 3), {}, torch.device("cpu")))) == 1
