"""Messages: one reason once, our words first, and arguments, sizes and options by the names that their reader uses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import aotpack
from aotpack._torch.refusals.changes import refuse_changes
from aotpack.capture import reasons
from aotpack.pipeline.progress import Run
from aotpack.tools.cli import build as build_command
from aotpack.tools.cli.console import as_options
from aotpack_loader.errors import BuildError, CaptureError, InputError, UnsupportedError


class Scaled(nn.Module):
    """Two arguments with names, one of which has a default."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, img: Tensor, scale: Tensor, mask: Tensor | None = None, *, mode: str = "sum") -> Tensor:
        return self.linear(img) * scale


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> aotpack.LoadedProgram:
    out = tmp_path_factory.mktemp("messages") / "scaled.aotpack"
    batch = torch.export.Dim("batch", min=2, max=64)
    sizes = {"img": {0: batch}, "scale": {0: batch}}
    args = torch.randn(3, 4), torch.randn(3, 1)
    aotpack.build(Scaled(), args, out=out, targets=("portable",), methods=("train",), dynamic_shapes=sizes)
    return aotpack.load(out)


IMG, SCALE = torch.randn(5, 4), torch.randn(5, 1)


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        ((IMG,), {}, ["missing argument 'scale'"]),
        ((), {}, ["missing argument 'img'", "missing argument 'scale'"]),
        ((IMG,), {"scal": SCALE}, ["missing argument 'scale'", "unexpected argument 'scal'"]),
        ((IMG, SCALE), {"img": IMG}, ["argument 'img' is given twice, by position and by name"]),
        ((IMG, SCALE, None, 1, 2), {}, ["expected 2 positional arguments, got 5"]),
        ((IMG[:, :3], SCALE), {}, ["img: expected float32[batch=2..64,4], got float32[5,3]"]),
        ((IMG, SCALE[:4]), {}, ["scale: expected float32[batch=5,1], got float32[4,1]"]),
        (
            (IMG, SCALE),
            {"mode": "mean"},
            ["mode: the bundle was built with its default 'sum', got str 'mean'; build with an example that passes it"],
        ),
        (
            (IMG, SCALE, IMG),
            {},
            ["mask: the bundle was built with its default None, got float32[5,4]; build with an example that passes it"],
        ),
    ],
)
def test_arguments_and_sizes_have_the_authors_names(
    scaled: aotpack.LoadedProgram, args: tuple[Tensor, ...], kwargs: dict[str, object], expected: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        scaled(*args, **kwargs)
    assert [str(problem) for problem in caught.value.problems] == expected


def test_a_default_may_be_spelled_out(scaled: aotpack.LoadedProgram) -> None:
    torch.testing.assert_close(scaled(IMG, SCALE, None, mode="sum"), scaled(scale=SCALE, img=IMG))


class Broken(nn.Module):
    """Fails in eager too."""

    def forward(self, img: Tensor) -> Tensor:
        return img @ img


class Branching(nn.Module):
    """Asks for the value of a tensor."""

    def forward(self, img: Tensor) -> Tensor:
        return img * 2 if img.sum() > 0 else img


def refusal(model: nn.Module, out: Path) -> CaptureError:
    with pytest.raises(CaptureError) as caught:
        aotpack.build(model, (torch.randn(3, 4),), out=out, targets=("portable",), methods=("train",))
    return caught.value


def test_front_ends_with_one_reason_give_it_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    error = refusal(Branching(), tmp_path / "m")
    (problem,) = error.problems
    assert problem.where == "dynamo, export, trace"
    assert problem.message.startswith(f"{reasons.BRANCH}: ")
    assert problem.message.endswith("return img * 2 if img.sum() > 0 else img]")
    assert 'branches="example"' in error.hint
    assert "unhinted" not in str(error)
    assert capfd.readouterr().err == ""  # torch logs what fails on fake tensors


class Selecting(nn.Module):
    """Asks how many rows there are to compute, as ``nn.AdaptiveLogSoftmaxWithLoss`` does."""

    def forward(self, img: Tensor) -> Tensor:
        rows = (img.sum(1) > 0).nonzero().squeeze(1)
        return img if rows.numel() == 0 else img.index_select(0, rows)


def test_a_branch_on_how_many_elements_there_are_is_told(tmp_path: Path) -> None:
    error = refusal(Selecting(), tmp_path / "m")
    (problem,) = error.problems
    assert problem.message.startswith(f"{reasons.COUNT}: ")
    assert "product with the mask" in error.hint


def test_a_mean_over_an_empty_batch_is_told(tmp_path: Path) -> None:
    def loss(x: Tensor) -> Tensor:
        return torch.nn.functional.mse_loss(x, x.detach())

    x = torch.zeros(0, 3, requires_grad=True)
    with pytest.raises(CaptureError, match="give an example with elements, and let the size vary from 0") as caught:
        aotpack.build(loss, (x,), out=tmp_path / "m", targets=("portable",), methods=("train",))
    assert "ZeroDivisionError" not in str(caught.value)


class Strided(nn.Module):
    """Writes to ``as_strided`` of a view, beyond that view."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, img: Tensor) -> Tensor:
        y = img * self.scale
        y[:2].as_strided((2,), (8,)).mul_(2)
        return y


def test_a_write_to_an_as_strided_chain_is_refused_in_our_words_alone(tmp_path: Path) -> None:
    """All of torch's words for it are about graph breaks."""
    problems = refusal(Strided(), tmp_path / "m").problems
    (found,) = [problem for problem in problems if "as_strided" in problem.message]
    assert found.message.startswith("the model writes to as_strided of a view; take as_strided of the whole tensor")
    assert "graph break" not in found.message
    assert "mutation on a view chain" not in found.message


def test_torchs_advice_about_itself_is_left_out() -> None:
    """As Dynamo words an operator's own error, and a construct that it does not trace."""
    on_fake_tensors = RuntimeError(
        "RuntimeError when making fake tensor call\n"
        "  Explanation: Dynamo failed to run FX node with fake tensors: call_function <built-in function mm>(...): got "
        "RuntimeError('a and b must have same reduction dim')\n"
        "  Hint: You can do this by removing the `torch.compile` call."
    )
    unsupported = RuntimeError("Failed to trace\n  Explanation: Not known.\n  Hint: Avoid it.\n  Hint: see torch.compile")
    same = RuntimeError("a and b must have same reduction dim.")
    first, second = reasons.merged(
        [
            reasons.reason("dynamo", on_fake_tensors),
            reasons.reason("export", unsupported),
            reasons.reason("trace", same),
        ]
    )
    assert first.problem.where == "dynamo, trace"
    assert first.problem.message.startswith("RuntimeError: a and b must have same reduction dim")
    assert second.problem.message == "RuntimeError: Failed to trace. Not known. Hint: Avoid it"


@pytest.mark.parametrize(
    "advice",
    [
        "Please file an issue to PyTorch.",
        "If it is a Python builtin, please file an issue on GitHub so the PyTorch team can add support for it.",
        "Please report an issue to PyTorch if you encounter this often.",
        "Construct the object outside of the compiled region.",
    ],
)
def test_advice_about_torchs_own_compiler_is_left_out(advice: str) -> None:
    found = reasons.reason("dynamo", RuntimeError(f"Failed to trace\n  Hint: {advice}\n  Hint: Avoid it."))
    assert found.problem.message == "RuntimeError: Failed to trace. Hint: Avoid it"


def calls_itself(x: Tensor) -> Tensor:
    return calls_itself(x * 2)


def without_derivative(x: Tensor) -> Tensor:
    return torch.unique(x)


def test_a_line_of_a_recursion_is_there_once(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="RecursionError") as caught:
        aotpack.build(lambda x: calls_itself(x), (torch.ones(2),), out=tmp_path / "m", targets=("portable",), methods=("train",))
    assert len([problem for problem in caught.value.problems if "return calls_itself" in problem.message]) == 1


def test_a_refused_gradient_brings_no_warnings_of_torchs(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(CaptureError, match="derivative for '_unique2' is not implemented"):
        aotpack.build(without_derivative, (x,), out=tmp_path / "m", targets=("portable",), methods=("train",))
    assert [str(each.message) for each in recwarn] == []


def test_a_range_that_is_too_wide_is_named_once(tmp_path: Path) -> None:
    def model(img: Tensor) -> Tensor:
        return img * (2 if img.shape[0] > 10 else 3)

    sizes = {"img": {0: torch.export.Dim("batch", min=2, max=64)}}
    with pytest.raises(BuildError) as caught:
        aotpack.build(model, (torch.ones(4),), out=tmp_path / "m", targets=("portable",), dynamic_shapes=sizes)
    assert [str(each) for each in caught.value.problems] == ["img.shape[0]: dynamic_shapes allows more than the model, 2..10"]


def test_the_most_useful_reason_is_first() -> None:
    vague = reasons.Reason(("dynamo",), "", "RuntimeError: something", "")
    lined = reasons.Reason(("export",), "", "RuntimeError: other", "model.py:3: x")
    ours = reasons.Reason(("trace",), reasons.NUMBER, "RuntimeError: third", "model.py:4: y")
    assert reasons.by_use([vague, lined, ours]) == [ours, lined, vague]


def test_the_command_line_names_its_own_options() -> None:
    text = "build with branches=\"example\", second_derivatives=True or methods=('train', 'infer'), not x=\"y\""
    spelled = 'build with --branches example, --second-derivatives or --method train --method infer, not x="y"'
    assert as_options(text, build_command.command) == spelled
    assert as_options(text, None) == text


def test_a_changed_value_is_named_once_and_the_remedy_is_spelled_once() -> None:
    with pytest.raises(UnsupportedError) as caught:
        refuse_changes(["n", "L['self'].n", "counter", "G['COUNT']", "G['__import_my_dot_helper'].N", "N"])
    text = as_options(str(caught.value), build_command.command)
    assert [problem.where for problem in caught.value.problems] == ["COUNT", "counter", "my.helper.N", "self.n"]
    assert text.endswith("build with --warm-up.")


def test_a_warning_that_holds_for_two_methods_is_given_once() -> None:
    run = Run()
    run.warn("dynamo refused 'train': why", once="dynamo: why")
    run.warn("dynamo refused 'infer': why", once="dynamo: why")
    run.warn("dynamo refused 'infer': other", once="dynamo: other")
    assert run.warnings == ["dynamo refused 'train': why", "dynamo refused 'infer': other"]


def test_a_condition_on_a_named_size_is_said_of_each_argument_that_has_it(tmp_path: Path) -> None:

    def model(img: Tensor, labels: Tensor) -> Tensor:
        return img[1:].sum() * (2 if img.shape[0] % 3 else 3) + labels.sum() * (2 if labels.shape[0] % 3 else 3)

    batch = torch.export.Dim("batch", min=2, max=9)
    sizes, args = {"img": {0: batch}, "labels": {0: batch}}, (torch.ones(4), torch.ones(4))
    with pytest.raises(BuildError) as caught:
        aotpack.build(model, args, out=tmp_path / "m", targets=("portable",), methods=("infer",), dynamic_shapes=sizes)
    assert [str(each) for each in caught.value.problems] == [
        "img.shape[0]: dynamic_shapes allows more than the model: ((batch % 3) != 0)",
        "labels.shape[0]: dynamic_shapes allows more than the model: ((batch % 3) != 0)",
    ]
