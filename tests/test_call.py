"""Calling a loaded module: what it takes, what it refuses, and that autograd and torch's tools work with it."""

from __future__ import annotations

import copy
import pickle  # noqa: TID251 - to show that it is refused
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.releases import TORCH
from torch import nn
from torch.nn import functional as F

import aotpack
from aotpack_loader.errors import AutogradError, InputError, ModeError, OperatorError
from devtools.native_calls import has_library, load_native


class Caller(nn.Module):
    """Arguments of every kind: nested, by keyword, with a default, constants of several types; dropout and BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.frozen = nn.Linear(3, 3)
        self.frozen.requires_grad_(False)
        self.norm = nn.BatchNorm1d(3)
        self.p = 0.5

    def forward(
        self,
        x: torch.Tensor,
        pair: dict[str, Any],
        labels: torch.Tensor,
        *,
        double: bool = False,
        mode: str = "mean",
        times: int = 1,
    ) -> dict[str, torch.Tensor]:
        hidden = self.norm(self.linear(x) * pair["a"] + pair["b"][0])
        logits = self.frozen(F.dropout(hidden, self.p, self.training)) * times
        if double:
            logits = logits * 2
        return {"loss": F.cross_entropy(logits, labels, reduction=mode), "logits": logits}


def arguments(batch: int = 5, seed: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, 4, generator=generator)
    pair = {"b": [torch.randn(3, generator=generator)], "a": torch.randn(batch, 1, generator=generator)}
    labels = torch.randint(3, (batch,), generator=generator)
    return (x, pair), {"labels": labels, "double": True, "mode": "sum", "times": 3}


@pytest.fixture(scope="module")
def original() -> Caller:
    torch.manual_seed(0)
    return Caller()


@pytest.fixture(scope="module")
def bundle(original: Caller, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("caller") / "caller.aotpack"
    batch = torch.export.Dim("batch", min=2, max=8)
    args, kwargs = arguments()
    dynamic = {"x": {0: batch}, "pair": {"a": {0: batch}, "b": [None]}, "labels": {0: batch}}
    aotpack.build(
        original,
        args,
        kwargs,
        out=out,
        targets=("portable",),
        dynamic_shapes={**dynamic, "double": None, "mode": None, "times": None},
    )
    return out


Load = Callable[[Path], aotpack.LoadedProgram]


@pytest.fixture(params=["python", "native"])
def load(request: pytest.FixtureRequest) -> Load:
    """Both ways to make the calls of a bundle."""
    return aotpack.load if request.param == "python" else native_throughout


def native_throughout(path: Path) -> aotpack.LoadedProgram:
    if not has_library():
        pytest.skip("the call library needs torch 2.13")
    loaded = load_native(path)
    assert set(loaded.aotpack.calls.values()) == {"native"}
    return loaded


@pytest.fixture
def loaded(bundle: Path, load: Load) -> aotpack.LoadedProgram:
    return load(bundle)


@pytest.fixture
def eager(original: Caller) -> Caller:
    return copy.deepcopy(original)


def one_step(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int = 7) -> dict[str, torch.Tensor]:
    """Everything a caller sees of one step."""
    torch.manual_seed(seed)
    model.zero_grad()
    out = model(*args, **kwargs)
    out["loss"].backward()
    seen = {"loss": out["loss"].detach(), "logits": out["logits"].detach()}
    seen |= {f"grad {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    return seen | {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, msg=lambda text, name=name: f"{name}: {text}")


def refused(call: Callable[[], object]) -> list[str]:
    """The problems of the one InputError that ``call`` raises."""
    with pytest.raises(InputError) as caught:
        call()
    assert isinstance(caught.value, TypeError)
    return [str(problem) for problem in caught.value.problems]


# ---------------------------------------------------------------- right arguments


@pytest.mark.parametrize("batch", [2, 5, 8])
def test_a_step_is_eagers(loaded: aotpack.LoadedProgram, eager: Caller, batch: int) -> None:
    for seed in range(2):
        args, kwargs = arguments(batch, seed)
        assert_same(one_step(loaded, args, kwargs), one_step(eager, args, kwargs))


def test_arguments_may_go_by_position_or_keyword(loaded: aotpack.LoadedProgram, eager: Caller) -> None:
    (x, pair), kwargs = arguments()
    expected = one_step(eager.eval(), (x, pair), kwargs)["loss"]
    labels = kwargs.pop("labels")
    loaded.eval()
    with torch.no_grad():
        for args, more in (
            ((x, pair, labels), {}),
            ((x,), {"labels": labels, "pair": pair}),
            ((), {"labels": labels, "pair": pair, "x": x}),
        ):
            torch.testing.assert_close(loaded(*args, **more, **kwargs)["loss"], expected)
        reordered = {"a": pair["a"], "b": tuple(pair["b"])}
        torch.testing.assert_close(loaded(x, reordered, labels, **kwargs)["loss"], expected)


@pytest.mark.filterwarnings("ignore::aotpack_loader.runtime.inputs.LayoutWarning")
def test_inputs_need_not_be_contiguous(loaded: aotpack.LoadedProgram, eager: Caller) -> None:
    (x, pair), kwargs = arguments()
    wide = torch.randn(10, 8)
    shapes = {
        "transposed": x.t().contiguous().t(),
        "strided": wide[::2, ::2],
        "offset": wide[3:8, 2:6],
        "expanded": x[:1].expand(5, 4),
    }
    for name, value in shapes.items():
        other = {"a": pair["a"].expand(5, 3)[:, 1:2], "b": [torch.randn(6)[::2]]}
        labels = torch.stack([kwargs["labels"]] * 2, 1)[:, 0]
        found, expected = (one_step(m, (value, other), {**kwargs, "labels": labels}) for m in (loaded, eager))
        assert_same({f"{name} {key}": v for key, v in found.items()}, {f"{name} {key}": v for key, v in expected.items()})


# ---------------------------------------------------------------- wrong arguments


class Subclass(torch.Tensor):
    pass


Change = Callable[[list[Any], dict[str, Any]], object]

WRONG: list[tuple[str, Change, list[str]]] = [
    ("dtype", lambda a, k: a.__setitem__(0, a[0].double()), ["x: expected float32[batch=2..8,4], got float64[5,4]"]),
    ("static size", lambda a, k: a.__setitem__(0, torch.zeros(5, 3)), ["x: expected float32[batch=2..8,4], got float32[5,3]"]),
    (
        "too few dimensions",
        lambda a, k: a.__setitem__(0, torch.zeros(5)),
        ["x: expected float32[batch=2..8,4], got float32[5]"],
    ),
    (
        "too many",
        lambda a, k: a.__setitem__(0, torch.zeros(5, 4, 1)),
        ["x: expected float32[batch=2..8,4], got float32[5,4,1]"],
    ),
    (
        "device",
        lambda a, k: a.__setitem__(0, a[0].to("meta")),
        ["x: expected float32[batch=2..8,4] on cpu, got float32[5,4] on meta; move it with .to('cpu')"],
    ),
    ("a number", lambda a, k: a.__setitem__(0, 3), ["x: expected float32[batch=2..8,4], got int 3"]),
    ("none", lambda a, k: a.__setitem__(0, None), ["x: expected float32[batch=2..8,4], got NoneType None"]),
    ("a list", lambda a, k: a.__setitem__(0, [1.0]), ["x: expected float32[batch=2..8,4], got list [1.0]"]),
    (
        "a subclass",
        lambda a, k: a.__setitem__(0, a[0].as_subclass(Subclass)),
        ["x: expected float32[batch=2..8,4], got float32[5,4] (Subclass)"],
    ),
    (
        "gradient",
        lambda a, k: a.__setitem__(0, a[0].requires_grad_()),
        ["x: requires a gradient, and the bundle was built"],
    ),
    ("constant", lambda a, k: k.update(double=False), ["double: the graphs were built for True, got bool False"]),
    ("constant's type", lambda a, k: k.update(times=3.0), ["times: the graphs were built for 3, got float 3.0"]),
    ("bool for int", lambda a, k: k.update(double=1), ["double: the graphs were built for True, got int 1"]),
    ("string", lambda a, k: k.update(mode="mean"), ["mode: the graphs were built for 'sum', got str 'mean'"]),
    ("missing keyword", lambda a, k: k.pop("labels"), ["missing argument 'labels'"]),
    (
        "unexpected keyword",
        lambda a, k: k.update(extra=1, other=2),
        ["unexpected argument 'extra'", "unexpected argument 'other'"],
    ),
    ("extra positional", lambda a, k: a.extend([1, 2, 3]), ["expected 2 positional arguments, got 5"]),
    ("missing positional", lambda a, k: a.pop(), ["missing argument 'pair'"]),
    ("missing key", lambda a, k: a[1].pop("a"), ["pair['a']: missing"]),
    ("unexpected key", lambda a, k: a[1].update(c=1), ["pair['c']: unexpected"]),
    ("no dict", lambda a, k: a.__setitem__(1, 4), ["pair: expected a dict, got int"]),
    ("no list", lambda a, k: a[1].update(b=a[0]), ["pair['b']: expected a list, got Tensor"]),
    ("list of another length", lambda a, k: a[1].update(b=[]), ["pair['b']: expected 1 items, got 0"]),
    (
        "below the range",
        lambda a, k: (a.__setitem__(0, a[0][:1]), a[1].update(a=a[1]["a"][:1]), k.update(labels=k["labels"][:1])),
        ["x: expected float32[batch=2..8,4], got float32[1,4]"],
    ),
    (
        "above the range",
        lambda a, k: (
            a.__setitem__(0, torch.zeros(9, 4)),
            a[1].update(a=torch.zeros(9, 1)),
            k.update(labels=torch.zeros(9).long()),
        ),
        ["x: expected float32[batch=2..8,4], got float32[9,4]"],
    ),
    (
        "sizes that must be equal",
        lambda a, k: (a[1].update(a=a[1]["a"][:4]), k.update(labels=k["labels"][:3])),
        ["pair['a']: expected float32[batch=5,1], got float32[4,1]", "labels: expected int64[batch=5], got int64[3]"],
    ),
    (
        "everything at once",
        lambda a, k: (
            a.__setitem__(0, a[0].half()),
            a[1].update(b=["x"], extra=1),
            k.update(labels=k["labels"].float(), double=None),
        ),
        [
            "x: expected float32[batch=2..8,4], got float16[5,4]",
            "pair['b'][0]: expected float32[3], got str 'x'",
            "pair['extra']: unexpected",
            "double: the graphs were built for True, got NoneType None",
            "labels: expected int64[batch=5], got float32[5]",
        ],
    ),
]


@pytest.mark.parametrize(("change", "expected"), [pytest.param(*row[1:], id=row[0]) for row in WRONG])
def test_wrong_arguments_are_listed_and_nothing_runs(loaded: aotpack.LoadedProgram, change: Change, expected: list[str]) -> None:
    before = {name: value.clone() for name, value in loaded.state_dict().items()}
    (x, pair), kwargs = arguments()
    args = [x, pair]
    change(args, kwargs)
    problems = refused(lambda: loaded(*args, **kwargs))
    assert len(problems) == len(expected), "\n".join(problems)
    for wanted in expected:
        assert any(problem.startswith(wanted) for problem in problems), "\n".join(problems)
    assert all(torch.equal(value, before[name]) for name, value in loaded.state_dict().items())


def test_a_lazy_conjugate_is_computed_or_refused(load: Load, tmp_path: Path) -> None:
    """A build takes it as an example. A view of it as real numbers, which torch makes by a lazy negation, is refused."""
    z = torch.randn(3, 4, dtype=torch.complex64)
    out = tmp_path / "m.aotpack"
    aotpack.build(lambda z: (z.imag * 2, z.real), (z.conj(),), out=out, targets=("portable",), methods=("infer",))
    model = load(out)
    with torch.no_grad():
        found = model(z.conj().resolve_conj())
        assert torch.equal(found[0], -2 * z.imag)
        assert torch.equal(found[1], z.real)
        with pytest.raises(OperatorError, match=r"one of a lazy conjugate\.\s*Pass x\.resolve_conj\(\)"):
            model(z.conj())


def test_an_input_that_requires_a_gradient_is_fine_without_gradients(loaded: aotpack.LoadedProgram) -> None:
    (x, pair), kwargs = arguments()
    with torch.no_grad():
        assert not loaded(x.requires_grad_(), pair, **kwargs)["loss"].requires_grad


# ---------------------------------------------------------------- parameters that changed


def test_a_parameter_may_be_frozen(loaded: aotpack.LoadedProgram, eager: Caller) -> None:
    for model in (loaded, eager):
        model.get_parameter("linear.weight").requires_grad_(False)
    args, kwargs = arguments()
    assert_same(one_step(loaded, args, kwargs), one_step(eager, args, kwargs))
    assert loaded.get_parameter("linear.weight").grad is None


def test_a_parameter_that_was_frozen_cannot_be_trained(loaded: aotpack.LoadedProgram) -> None:
    loaded.requires_grad_(True)
    args, kwargs = arguments()
    problems = refused(lambda: loaded(*args, **kwargs))
    assert [problem.partition(":")[0] for problem in problems] == ["frozen.weight", "frozen.bias"]
    assert "was frozen when the bundle was built" in problems[0]


def test_a_module_without_gradients_needs_no_backward(loaded: aotpack.LoadedProgram, eager: Caller) -> None:
    args, kwargs = arguments()
    for model in (loaded.requires_grad_(False), eager.requires_grad_(False)):
        torch.manual_seed(0)
        assert not model(*args, **kwargs)["loss"].requires_grad
    assert_same(dict(loaded.named_buffers()), dict(eager.named_buffers()))
    torch.testing.assert_close(loaded.eval()(*args, **kwargs), eager.eval()(*args, **kwargs))


@pytest.mark.parametrize("cast", ["half", "double", "bfloat16"])
def test_a_cast_module_is_refused(loaded: aotpack.LoadedProgram, cast: str) -> None:
    getattr(loaded, cast)()
    args, kwargs = arguments()
    problems = refused(lambda: loaded(*args, **kwargs))
    wrong = {problem.partition(":")[0] for problem in problems}
    floating = {name for name, value in loaded.state_dict().items() if value.is_floating_point()}
    assert wrong == floating
    assert all("expected torch.float32" in problem for problem in problems)
    torch.testing.assert_close(loaded.float()(*args, **kwargs)["loss"].isfinite(), torch.tensor(True))


def test_a_parameter_of_another_shape_is_refused(loaded: aotpack.LoadedProgram) -> None:
    loaded.get_submodule("linear").weight = nn.Parameter(torch.zeros(3, 5))
    args, kwargs = arguments()
    (problem,) = refused(lambda: loaded(*args, **kwargs))
    assert problem == "linear.weight: expected torch.float32[3, 4] on cpu, got torch.float32[3, 5] on cpu"


def test_a_replaced_parameter_is_used(loaded: aotpack.LoadedProgram, eager: Caller) -> None:
    for model in (loaded, eager):
        model.get_submodule("linear").weight = nn.Parameter(torch.full((3, 4), 0.5))
    args, kwargs = arguments()
    assert_same(one_step(loaded, args, kwargs), one_step(eager, args, kwargs))


# ---------------------------------------------------------------- modes


def test_each_mode_is_right_or_refused(loaded: aotpack.LoadedProgram, eager: Caller) -> None:
    args, kwargs = arguments()

    def call(model: nn.Module, training: bool, grad: bool) -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        model.train(training)
        with torch.set_grad_enabled(grad):
            out = dict(model(*args, **kwargs))
        assert out["loss"].requires_grad is grad
        return {**out, **{name: buffer.clone() for name, buffer in model.named_buffers()}}

    for mode in ((True, True), (True, False), (False, False)):
        assert_same(call(loaded, *mode), call(eager, *mode))
    with pytest.raises(ModeError) as caught:
        call(loaded, False, True)
    assert isinstance(caught.value, RuntimeError)
    assert caught.value.summary == "This bundle has no method for eval() with gradients on. It has:"
    assert {str(problem) for problem in caught.value.problems} == {
        "train(), gradients on: method 'train'",
        "train(), gradients off: method 'train'",
        "eval(), gradients off: method 'infer'",
    }
    assert "torch.no_grad()" in str(caught.value)


def test_inference_mode_counts_as_gradients_off(loaded: aotpack.LoadedProgram, eager: Caller) -> None:
    args, kwargs = arguments()
    with torch.inference_mode():
        torch.testing.assert_close(dict(loaded.eval()(*args, **kwargs)), eager.eval()(*args, **kwargs))


# ---------------------------------------------------------------- autograd


def cube(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = (x * w).sin()
    return hidden.exp() * w, (hidden * hidden).sum()


@pytest.fixture(scope="module")
def cube_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cube") / "cube.aotpack"
    x, w = torch.randn(3, 2), torch.randn(3, 2)
    aotpack.build(cube, (x.requires_grad_(), w.requires_grad_()), out=out, targets=("portable",), methods=("train",))
    return out


def leaves(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, w = torch.randn(3, 2, generator=generator), torch.randn(3, 2, generator=generator)
    return x.requires_grad_(), w.requires_grad_()


def test_a_second_derivative_is_refused(load: Load, cube_bundle: Path) -> None:
    model, inputs = load(cube_bundle), leaves()
    first = torch.autograd.grad(model(*inputs)[1], inputs, create_graph=True)
    expected = torch.autograd.grad(cube(*inputs)[1], inputs)
    torch.testing.assert_close(first, expected)
    with pytest.raises(AutogradError, match="first derivatives only"):
        torch.autograd.grad(sum(g.sum() for g in first), inputs)
    with pytest.raises(AutogradError, match="first derivatives only"):
        torch.autograd.grad(first[0].sum(), inputs, allow_unused=True)
    given = [x * 1 for x in inputs]
    first = torch.autograd.grad(model(*given)[1], inputs, create_graph=True)
    with pytest.raises(AutogradError, match="first derivatives only"):
        torch.autograd.grad(first[0].sum(), inputs[0], allow_unused=True)


def test_the_graph_may_be_kept(load: Load, cube_bundle: Path) -> None:
    model, inputs, expected = load(cube_bundle), leaves(), leaves()
    out, wanted = model(*inputs)[0].sum(), cube(*expected)[0].sum()
    for kept in (True, True, False):
        out.backward(retain_graph=kept)
        wanted.backward(retain_graph=kept)
        torch.testing.assert_close([x.grad for x in inputs], [x.grad for x in expected])
    with pytest.raises(RuntimeError, match="a second time"):
        out.backward()


def test_a_second_backward_without_the_graph_is_torchs_error(load: Load, cube_bundle: Path) -> None:
    model, inputs = load(cube_bundle), leaves()
    out = model(*inputs)[1]
    out.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        out.backward()


def test_the_same_where_only_intermediates_are_saved(load: Load, tmp_path: Path) -> None:
    aotpack.build(lambda x: x.exp().sin(), (torch.randn(3, requires_grad=True),), out=tmp_path / "m", targets=("portable",))
    out = load(tmp_path / "m")(torch.randn(3, requires_grad=True)).sum()
    out.backward()
    with pytest.raises(RuntimeError, match="a second time"):
        out.backward()


def test_several_forwards_before_the_backwards(load: Load, cube_bundle: Path) -> None:
    model = load(cube_bundle)
    inputs, expected = [leaves(seed) for seed in range(3)], [leaves(seed) for seed in range(3)]
    ours, eagers = [model(*given) for given in inputs], [cube(*given) for given in expected]
    for i in (1, 2, 0):
        for out in (ours[i], eagers[i]):
            (out[0].sum() + out[1]).backward()
    torch.testing.assert_close([[x.grad for x in pair] for pair in inputs], [[x.grad for x in pair] for pair in expected])


@pytest.mark.parametrize("used", [0, 1])
def test_a_gradient_through_one_result_only(load: Load, cube_bundle: Path, used: int) -> None:
    model, inputs, expected = load(cube_bundle), leaves(), leaves()
    model(*inputs)[used].sum().backward()
    cube(*expected)[used].sum().backward()
    torch.testing.assert_close([x.grad for x in inputs], [x.grad for x in expected])


def test_gradients_accumulate(loaded: aotpack.LoadedProgram, eager: Caller) -> None:
    for model in (loaded, eager):
        for seed in range(3):
            torch.manual_seed(seed)
            args, kwargs = arguments(4, seed)
            model(*args, **kwargs)["loss"].backward()
    assert_same(*({n: p.grad for n, p in m.named_parameters() if p.grad is not None} for m in (loaded, eager)))


needs_unpack = pytest.mark.skipif(TORCH < (2, 13), reason="this torch does not tell which saved tensor was changed")


@needs_unpack
def test_a_parameter_changed_between_forward_and_backward_is_noticed(loaded: aotpack.LoadedProgram) -> None:
    args, kwargs = arguments()
    loss = loaded(*args, **kwargs)["loss"]
    with torch.no_grad():
        loaded.get_parameter("frozen.weight").add_(1)
    with pytest.raises(AutogradError, match=r"modified by an inplace operation(.|\n)*parameter 'frozen.weight': was modified"):
        loss.backward()


def test_a_buffer_that_requires_a_gradient_after_the_build_is_refused(load: Load, tmp_path: Path) -> None:
    model, x = nn.BatchNorm1d(3).eval(), torch.randn(4, 3)
    aotpack.build(model, (x,), out=tmp_path / "norm", targets=("portable",), methods=("eval",))
    loaded = load(tmp_path / "norm").eval()
    loaded.get_buffer("running_mean").requires_grad_()
    with pytest.raises(InputError, match="running_mean: was frozen when the bundle was built and now requires a gradient"):
        loaded(x)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), model(x))


class Clipped(nn.Module):
    """Eager saves no argument; a bundle compares ``x`` with 0 again. Both save the scale and the first result."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = (torch.where(x > 0, x, 0 * x) * self.scale).exp()
        return hidden, hidden.sin()


@needs_unpack
@pytest.mark.parametrize("modified", ["x", "buffer 'scale'", "result[0]"])
def test_an_error_names_what_was_modified_before_the_backward(modified: str, load: Load, tmp_path: Path) -> None:
    out, x = tmp_path / "clipped", torch.randn(3, requires_grad=True)
    aotpack.build(Clipped(), (x,), out=out, targets=("portable",), methods=("train",))
    loaded = load(out)
    first, second = loaded(x)
    named = {"x": x, "buffer 'scale'": loaded.get_buffer("scale"), "result[0]": first}
    with torch.no_grad():
        named[modified].add_(1)
    with pytest.raises(AutogradError, match=rf"modified by an inplace operation(.|\n)*{re.escape(modified)}: was modified"):
        second.sum().backward()


def test_hooks_run(loaded: aotpack.LoadedProgram) -> None:
    seen: list[str] = []
    loaded.get_parameter("linear.bias").register_hook(lambda grad: seen.append("tensor"))
    loaded.get_parameter("linear.bias").register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    loaded.register_forward_pre_hook(lambda module, args: seen.append("before"))
    loaded.register_forward_hook(lambda module, args, out: seen.append("after"))
    args, kwargs = arguments()
    loaded(*args, **kwargs)["loss"].backward()
    assert seen == ["before", "after", "tensor", "accumulated"]


# ---------------------------------------------------------------- torch's tools


def test_a_deep_copy_is_independent(loaded: aotpack.LoadedProgram, eager: Caller) -> None:
    args, kwargs = arguments()
    copied = copy.deepcopy(loaded)
    assert copied.aotpack.digest == loaded.aotpack.digest
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.zero_()
    loaded.eval()
    assert_same(one_step(copied, args, kwargs), one_step(eager, args, kwargs))
    assert not loaded.get_buffer("norm.num_batches_tracked")


def test_a_copy_of_native_code_is_independent(digits_bundle: Path, digits_model: nn.Module) -> None:
    loaded = aotpack.load(digits_bundle, backend="cpu")
    images, labels = torch.rand(3, 1, 8, 8), torch.tensor([1, 2, 3])
    copied = copy.deepcopy(loaded)
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.zero_()
    found, expected = copied(images, labels), copy.deepcopy(digits_model)(images, labels)
    torch.testing.assert_close(dict(found), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("save", [pickle.dumps, lambda model: torch.save(model, "/dev/null")])
def test_pickling_is_refused_with_what_to_do_instead(loaded: aotpack.LoadedProgram, save: Callable[[object], object]) -> None:
    with pytest.raises(aotpack.AotpackError, match="state_dict"):
        save(loaded)


def test_moving_to_where_it_is_keeps_it(loaded: aotpack.LoadedProgram, eager: Caller) -> None:
    args, kwargs = arguments()
    assert loaded.to("cpu") is loaded
    assert_same(one_step(loaded.cpu().float(), args, kwargs), one_step(eager, args, kwargs))


def test_moving_elsewhere_is_refused_at_the_call(loaded: aotpack.LoadedProgram) -> None:
    args, kwargs = arguments()
    assert len(refused(lambda: loaded.to("meta")(*args, **kwargs))) == len(list(loaded.state_dict()))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad(loaded: aotpack.LoadedProgram, set_to_none: bool) -> None:
    args, kwargs = arguments()
    loaded(*args, **kwargs)["loss"].backward()
    loaded.zero_grad(set_to_none=set_to_none)
    gradients = [p.grad for p in loaded.parameters() if p.requires_grad]
    assert all((g is None) if set_to_none else not g.any() for g in gradients)


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
        lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    ],
    ids=["SGD", "AdamW", "fused AdamW"],
)
def test_optimizers_train_it(loaded: aotpack.LoadedProgram, eager: Caller, make: Callable[[Any], torch.optim.Optimizer]) -> None:
    for model in (loaded, eager):
        optimizer = make(model.parameters())
        for seed in range(4):
            args, kwargs = arguments(6, seed)
            one_step(model, args, kwargs)
            optimizer.step()
    assert_same(loaded.state_dict(), eager.state_dict())


def test_ema_and_functional_call_and_clipping(loaded: aotpack.LoadedProgram, eager: Caller) -> None:
    args, kwargs = arguments()
    state = {name: torch.full_like(value, 0.25) for name, value in eager.named_parameters()}
    for model in (loaded.eval(), eager.eval()):
        model.requires_grad_(False)
    torch.testing.assert_close(
        dict(torch.func.functional_call(loaded, state, args, kwargs)), torch.func.functional_call(eager, state, args, kwargs)
    )
    averaged = torch.optim.swa_utils.AveragedModel(loaded)
    averaged.update_parameters(loaded)
    torch.testing.assert_close(dict(averaged.eval()(*args, **kwargs)), eager(*args, **kwargs))


def test_distributed_data_parallel(loaded: aotpack.LoadedProgram, eager: Caller, tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(loaded)
        for seed in range(2):
            args, kwargs = arguments(4, seed)
            found, expected = one_step(wrapped, args, kwargs), one_step(eager, args, kwargs)
            assert_same({name.replace("module.", ""): value for name, value in found.items()}, expected)
        # Else it destroys the group later, without releasing Python's lock, for which a thread of the group may wait.
        del wrapped
    finally:
        torch.distributed.destroy_process_group()
