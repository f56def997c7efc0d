"""``aotpack diff``: whether calls and checkpoints of one bundle fit another, and what else changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from support.browser import PageUnderTest, chromium
from torch import Tensor, nn
from torch.export import Dim

import aotpack
from aotpack.tools.cli import main


class Net(nn.Module):
    def __init__(self, hidden: int = 8, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first, self.second = nn.Linear(4, hidden), nn.Linear(hidden, 2)
        self.register_buffer("offset", torch.tensor([float("nan"), 1.0]))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))  # type: ignore[no-any-return]


class Scaled(Net):
    def forward(self, x: Tensor, scale: Tensor) -> Tensor:  # type: ignore[override]
        return self.second(torch.relu(self.first(x))) * scale  # type: ignore[no-any-return]


class Named(Net):
    def forward(self, x: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"logits": super().forward(x)}


def built(out: Path, model: nn.Module, *more: Tensor, low: int = 2, high: int | None = 64, **options: Any) -> Path:
    shapes = ({0: Dim("batch", min=low, max=high)}, *[None] * len(more))
    args = (torch.ones(3, 4), *more)
    aotpack.build(model, args, out=out, targets=("portable",), dynamic_shapes=shapes, methods=("train",), **options)
    return out


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("base") / "base.aotpack", Net())


def diff(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["diff", *map(str, arguments)])


def documents(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(diff(*arguments, "--json").output)
    return found


def lines(changes: list[dict[str, Any]]) -> dict[str, str]:
    return {change["where"]: ("! " if change["breaks"] else "") + change["text"] for change in changes}


def test_equal_bundles(base: Path) -> None:
    result = diff(base, base)
    assert (result.exit_code, result.output) == (0, "The bundles are equal: they have one digest.\n")


def test_other_weights_are_measured(base: Path, tmp_path: Path) -> None:
    model = Net()
    with torch.no_grad():
        model.first.weight[0, 0] += 0.5
    other = built(tmp_path / "m", model)
    found = documents(base, other)
    assert (found["calls_fit"], found["checkpoints_fit"], found["calls"], found["state"], found["graphs"]) == (
        True,
        True,
        [],
        [],
        [],
    )
    (change,) = found["weights"]
    assert change["name"] == "first.weight"
    assert change["largest"] == pytest.approx(0.5)
    assert change["relative"] == pytest.approx(0.5 / Net().first.weight.norm().item(), rel=1e-5)
    assert 0 < found["sharing"]["shared"] < found["sharing"]["first"]
    assert documents(base, other, "--no-weights")["weights"] is None
    assert diff(base, other).exit_code == 0


@pytest.mark.parametrize(
    ("low", "high", "breaks", "text"),
    [
        (2, 32, True, "is now 2 to 32, before 2 to 64"),
        (1, 64, False, "is now 1 to 64, before 2 to 64"),
        (2, None, False, "is now 2 or more, before 2 to 64"),
    ],
)
def test_ranges_of_sizes(base: Path, tmp_path: Path, low: int, high: int | None, breaks: bool, text: str) -> None:
    found = documents(base, built(tmp_path / "m", Net(), low=low, high=high))
    assert found["calls_fit"] is not breaks
    (change,) = found["calls"]
    assert (change["where"], change["breaks"]) == ("train: x", breaks)
    assert change["text"] == f"shape[0] {text}"


def test_another_network_fits_neither_calls_nor_checkpoints(base: Path, tmp_path: Path) -> None:
    other = built(tmp_path / "m", Scaled(hidden=16), torch.ones(()))
    result = diff(base, other)
    assert result.exit_code == 1
    assert "Calls of the first bundle do not fit the second." in result.output
    assert "Checkpoints of the first bundle do not fit the second." in result.output
    found = documents(base, other)
    calls, state, graphs = lines(found["calls"]), lines(found["state"]), lines(found["graphs"])
    assert calls["scale"] == "! parameter added, without a default"
    assert calls["train: scale"] == "! argument added, float32[]"
    assert state["first.weight"] == "! float32[8, 4] is now float32[16, 4]"
    assert "+1 aten.relu.default, -1 aten.tanh.default" in graphs["train.forward"]
    assert graphs["train"] == "saves 192 bytes for the backward, 96 bytes before"
    assert lines(documents(other, base)["calls"])["train: scale"] == "! argument removed"


def test_results_of_another_form(base: Path, tmp_path: Path) -> None:
    found = lines(documents(base, built(tmp_path / "m", Named()))["calls"])
    assert found["train: result"] == "! is now dict, before float32[batch, 2], differentiable"
    assert found["train: result['logits']"].startswith("! added, float32[batch, 2]")


def test_frozen_and_removed_state(base: Path, tmp_path: Path) -> None:
    model = Net()
    model.first.requires_grad_(False)
    del model.offset
    found = documents(base, built(tmp_path / "m", model))
    assert lines(found["state"]) == {"offset": "! buffer removed", "first.weight": "now frozen", "first.bias": "now frozen"}
    assert (found["calls_fit"], found["checkpoints_fit"]) == (True, False)


def test_sizes_that_must_be_equal_now(tmp_path: Path) -> None:
    args = (torch.ones(3, requires_grad=True), torch.ones(3))
    shapes = ({0: Dim.DYNAMIC}, {0: Dim.DYNAMIC})
    for name, function in (("free", lambda x, y: x.sum() + y.sum()), ("equal", lambda x, y: (x + y).sum())):
        aotpack.build(function, args, out=tmp_path / name, targets=("portable",), dynamic_shapes=shapes, methods=("train",))
    found = documents(tmp_path / "free", tmp_path / "equal")
    assert lines(found["calls"])["train: sizes"] == "! must be equal now: x.shape[0], y.shape[0]"
    assert documents(tmp_path / "equal", tmp_path / "free")["calls_fit"]


def test_a_missing_bundle_is_an_error(base: Path, tmp_path: Path) -> None:
    result = diff(base, tmp_path / "nothing")
    assert result.exit_code == 1
    assert "nothing" in result.output


# ---------------------------------------------------------------- by module, and as a page


class Moved(Net):
    """Computes the same as Net, with the tanh inside a module."""

    def __init__(self) -> None:
        super().__init__()
        self.activation = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.activation(self.first(x)))  # type: ignore[no-any-return]


def test_operators_that_moved_between_modules(base: Path, tmp_path: Path) -> None:
    found = documents(base, built(tmp_path / "moved.aotpack", Moved()))["modules"]
    changes = {(change["graph"], change["module"]): change for change in found}
    for module in ("", "activation"):
        change = changes["train.forward", module]
        assert change["moved"] == {"aten.tanh.default": 1}
        assert change["added"] == change["removed"] == {}
    assert changes["train.forward", "activation"]["saved"] == [0, 96]
    assert ("train.forward", "first") not in changes


def test_operators_added_and_removed_by_module(base: Path, tmp_path: Path) -> None:
    other = built(tmp_path / "other.aotpack", Scaled(), torch.ones(2))
    (change,) = [
        change for change in documents(base, other)["modules"] if (change["graph"], change["module"]) == ("train.forward", "")
    ]
    assert change["added"] == {"aten.relu.default": 1, "aten.mul.Tensor": 1}
    assert change["removed"] == {"aten.tanh.default": 1}
    assert "(model)  +1 aten.relu.default, +1 aten.mul.Tensor, -1 aten.tanh.default" in diff(base, other).output


def test_a_page(base: Path, tmp_path: Path) -> None:
    other = built(tmp_path / "other.aotpack", Scaled(), torch.ones(2))
    out = tmp_path / "diff.html"
    done = diff(base, other, "--html", out)
    assert done.exit_code == 1
    page = out.read_text()
    assert "do not fit" in page
    assert "aten.relu.default" in page
    assert "default-src &#39;none&#39;" in page
    with chromium() as browser:
        opened = PageUnderTest(browser, out)
        assert opened.complaints() == []
        assert "scale" in "".join(opened.texts("#calls td, #calls th"))
