"""One ``torch.export.Dim`` is one size, checked at each call, whether or not the model needs it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import compiles_native_code
from msgspec import structs
from torch import Tensor
from torch.export import Dim

import aotpack
import aotpack_loader
from aotpack.targets.portable import PortableTarget
from aotpack.tools.report.describe import argument_type
from aotpack.tools.report.signature import ranges
from aotpack_loader.errors import BuildError, InputError
from aotpack_loader.format.labels import labels_of

BATCH = Dim("batch", min=1, max=64)
TARGETS = ["portable", pytest.param("cpu", marks=pytest.mark.skipif(not compiles_native_code(), reason="no native code"))]


def both(x: Tensor, y: Tensor) -> Tensor:
    return x.square().mean() + y.square().mean()


def rows(n: int, columns: int = 3, **options: Any) -> Tensor:
    return torch.randn(n, columns, **options)


def built(function: Callable[..., Any], args: tuple[Any, ...], folder: Path, shapes: Any, **options: Any) -> Any:
    options = {"targets": ("portable",)} | options
    report = aotpack.build(function, args, out=folder / "m.aotpack", dynamic_shapes=shapes, **options)
    return aotpack_loader.load(report.out)


@pytest.mark.parametrize("target", TARGETS)
def test_one_dim_is_one_size_on_every_path(tmp_path: Path, target: str) -> None:
    args = rows(4, requires_grad=True), rows(4, 5)
    built(both, args, tmp_path, {"x": {0: BATCH}, "y": {0: BATCH}}, targets=(target,), methods=("train",))
    for _ in range(2):  # the second load starts from a record
        model = aotpack_loader.load(tmp_path / "m.aotpack")
        for call in (model, torch.compile(lambda x, y, model=model: model(x, y), backend="eager", fullgraph=True)):
            x, y = rows(7, requires_grad=True), rows(7, 5)
            torch.testing.assert_close(call(x, y), both(x, y))
            with pytest.raises(Exception, match=r"y: expected float32\[batch=4,5\], got float32\[9,5\]"):
                call(rows(4, requires_grad=True), rows(9, 5))
    method = model.aotpack.program.methods["train"]
    assert {labels_of(method).text(leaf.shape[0]) for leaf in method.leaves} == {"batch"}


@pytest.mark.parametrize("front_end", ["dynamo", "export", "trace"])
def test_sizes_that_the_model_narrows_are_reported(tmp_path: Path, front_end: str) -> None:
    """``Dim.AUTO`` leaves a size to the model: a warning says what became of it, and where."""

    def model(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return (x + torch.ones(4, 3)).sum() + y[:4].sum() + (y[4:] if y.shape[0] > 4 else y).sum() + z.sum()

    shapes = {name: {0: Dim.AUTO} for name in "xyz"}
    options = {"targets": ("portable",), "methods": ("infer",), "front_ends": (front_end,), "dynamic_shapes": shapes}
    report = aotpack.build(model, (rows(4), rows(6), rows(5)), out=tmp_path / "m.aotpack", **options)
    fixed, narrow = report.warnings
    line = r"fixes it at 4 \[at .*test_named_sizes\.py:\d+: return \(x \+"
    assert re.search(rf"x\.shape\[0\], Dim\.AUTO, does not vary.*{line}", fixed)
    assert narrow == "'infer': y.shape[0], Dim.AUTO: dynamic_shapes allows more than the model, 5.."
    if front_end == "trace":  # the others end in an error of torch's own
        with pytest.raises(BuildError, match=rf"x\.shape\[0\]: .*{line}"):
            aotpack.build(
                model,
                (rows(4), rows(6), rows(5)),
                out=tmp_path / "m.aotpack",
                **options | {"dynamic_shapes": {"x": {0: BATCH}, "y": None, "z": None}},
            )


@pytest.mark.parametrize("front_end", ["dynamo", "trace"])  # torch.export ends in an error of its own, which names both
def test_sizes_of_two_names_that_the_model_makes_one_are_reported(tmp_path: Path, front_end: str) -> None:
    shapes = {"x": {0: Dim("rows"), 1: Dim("columns")}, "y": {0: Dim("others"), 1: Dim("columns")}}
    options = {"targets": ("portable",), "methods": ("infer",), "front_ends": (front_end,), "dynamic_shapes": shapes}
    report = aotpack.build(lambda x, y: x + y, (rows(4), rows(4)), out=tmp_path / "m.aotpack", **options)
    said = "'infer': x.shape[0] (rows) and y.shape[0] (others) are one size: the model takes only equal ones"
    assert report.warnings == (said,)
    report = aotpack.build(both, (rows(4), rows(4)), out=tmp_path / "m.aotpack", **options)
    assert report.warnings == ()


@pytest.mark.parametrize("front_end", ["dynamo", "export", "trace"])
@pytest.mark.parametrize(
    ("shapes", "example", "good", "bad"),
    [
        ({"x": {0: BATCH}, "y": {0: 2 * BATCH}}, (4, 8), [(5, 10), (1, 2), (64, 128)], [(5, 9), (5, 5)]),
        ({"x": {0: 2 * BATCH}, "y": {0: 2 * BATCH + 1}}, (4, 5), [(8, 9), (2, 3)], [(8, 8), (5, 6)]),
        ({"x": {0: 2 * BATCH}, "y": {0: 3 * BATCH}}, (4, 6), [(8, 12)], [(8, 10), (7, 12)]),
        ({"x": {0: 2 * BATCH}, "y": None}, (4, 6), [(8, 6)], [(5, 6)]),
    ],
    ids=["a multiple", "a sum", "without the root", "alone"],
)
def test_derived_dims(tmp_path: Path, front_end: str, shapes: Any, example: Any, good: Any, bad: Any) -> None:
    args = rows(example[0], requires_grad=True), rows(example[1])
    if front_end == "export" and BATCH not in [size for dims in shapes.values() for size in (dims or {}).values()]:
        front_end = "trace"  # torch.export makes a symbol of the missing size
    model = built(both, args, tmp_path, shapes, front_ends=(front_end,), methods=("train",))
    for n, m in good:
        x, y = rows(n, requires_grad=True), rows(m)
        torch.testing.assert_close(model(x, y), both(x, y))
    for n, m in bad:
        with pytest.raises(InputError):
            model(rows(n, requires_grad=True), rows(m))


def test_names_of_derived_dims(tmp_path: Path) -> None:
    """They are shown as sizes, as operands and in errors, not as ``x.shape[0]``."""
    shapes = {"x": {0: 2 * BATCH}, "y": {0: 3 * BATCH + 1}}
    args = rows(4, requires_grad=True), rows(7)
    model = built(both, args, tmp_path, shapes, methods=("train",))
    method = model.aotpack.program.methods["train"]
    labels = labels_of(method)
    assert [labels.text(argument_type(leaf)) for leaf in method.leaves] == [
        "float32[2*batch, 3], requires grad",
        "float32[3*batch + 1, 3]",
    ]
    assert ranges(method)[:2] == ["2 <= 2*batch <= 128", "4 <= 3*batch + 1 <= 193"]
    assert "((2*batch) % 2) == 0" in " ".join(ranges(method))
    with pytest.raises(InputError, match=r"\(\(2\*batch\) % 2\) == 0\); here 2\*batch = x\.shape\[0\] = 5"):
        model(rows(5, requires_grad=True), rows(7))
    with pytest.raises(InputError, match=r"expected float32\[2\*batch=2\.\.128,3\]"):
        model(rows(200, requires_grad=True), rows(301))
    with pytest.raises(BuildError, match=r"outside of '2\*batch', 2\.\.128"):
        built(both, (rows(200, requires_grad=True), rows(301)), tmp_path, shapes)


def test_a_size_and_an_integer(tmp_path: Path) -> None:
    def scaled(x: Tensor, n: int) -> Tensor:
        return x.square().sum() * n

    model = built(scaled, (rows(4, requires_grad=True), 4), tmp_path, {"x": {0: BATCH}, "n": BATCH}, methods=("train",))
    assert model(rows(7, requires_grad=True), 7).isfinite()
    with pytest.raises(InputError):
        model(rows(7, requires_grad=True), 8)


def test_second_derivatives_keep_the_relation(tmp_path: Path) -> None:
    shapes = {"x": {0: BATCH}, "y": {0: BATCH}}
    model = built(both, (rows(4, requires_grad=True), rows(4, 5)), tmp_path, shapes, second_derivatives=True)
    with pytest.raises(InputError):
        model(rows(4, requires_grad=True), rows(9, 5))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"x": {0: Dim("batch", min=5, max=64)}}, r"x\.shape\[0\]: the example has 4, outside of 'batch', 5\.\.64"),
        ({"x": {0: BATCH}, "y": {0: BATCH}}, r"batch: one size in dynamic_shapes; the example has 4 by x\.shape\[0\], 6 by y"),
        ({"x": {0: BATCH}, "y": {0: 2 * BATCH}}, r"4 by x\.shape\[0\], 3 by y\.shape\[0\]"),
        ({"x": {0: "batch"}, "y": {0: "batch"}}, r"x\.shape\[0\]: is 'batch' in dynamic_shapes, expected a torch\.export\.Dim"),
    ],
    ids=["range", "equal", "multiple", "text"],
)
def test_an_example_that_breaks_the_relation(tmp_path: Path, shapes: Any, message: str) -> None:
    with pytest.raises(BuildError, match=message):
        built(both, (rows(4, requires_grad=True), rows(6)), tmp_path, shapes)


@pytest.mark.parametrize("mode", ["nearest", "linear", "nearest-exact"])
def test_a_size_that_leaves_no_pixel_is_refused(tmp_path: Path, mode: str) -> None:
    """Eager raises, and the bundle returned an empty tensor."""

    def halved(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.interpolate(x[None, None], scale_factor=0.5, mode=mode)

    example = (torch.randn(12, requires_grad=True),)
    with pytest.raises(BuildError, match=r"allows more than the model: .*n.* > 0"):
        built(halved, example, tmp_path, {"x": {0: Dim("n", min=1, max=64)}})
    model = built(halved, example, tmp_path, {"x": {0: Dim("n", max=64)}})
    assert model(torch.ones(2)).shape == (1, 1, 1)
    with pytest.raises(RuntimeError, match="greater than 0"):
        halved(torch.ones(1))
    with pytest.raises(InputError):
        model(torch.ones(1))


@pytest.mark.parametrize("batch", [Dim("batch"), Dim("batch", min=1, max=16)], ids=["open", "range"])
def test_an_example_of_one_that_operators_decide_by(tmp_path: Path, batch: Any) -> None:
    """``InstanceNorm`` took no other batch, and the error spoke of 1..2. An open range built a bundle for 1 alone."""
    model, shapes = torch.nn.InstanceNorm2d(3, affine=True), {"input": {0: batch}}
    with pytest.raises(
        BuildError, match=r"(?s)input\.shape\[0\]: .*fixes it at 1\n.*example that has 2 or more in input\.shape\[0\]"
    ):
        built(model, (torch.randn(1, 3, 4, 4),), tmp_path, shapes)
    loaded = built(model, (torch.randn(2, 3, 4, 4),), tmp_path, shapes)
    for n in (1, 2, 5):
        x = torch.randn(n, 3, 4, 4)
        torch.testing.assert_close(loaded(x), model(x))


def test_code_that_takes_fewer_sizes_than_asked_for_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target's own constraints are compared with ``dynamic_shapes``; ``inspect`` would show sizes that never run."""
    compile_portable = PortableTarget.compile

    def narrow(self: PortableTarget, graphs: Any, *rest: Any) -> Any:
        entry = compile_portable(self, graphs, *rest)
        (symbol,) = graphs[0].method.symbols
        constraints = {"train": [f"({symbol.name} == 4)"]}
        return entry._replace(target=structs.replace(entry.target, constraints=constraints))

    monkeypatch.setattr(PortableTarget, "compile", narrow)
    with pytest.raises(BuildError, match=r"(?s)code of target portable does not .*x\.shape\[0\] in train.*batch == 4"):
        built(lambda x: x.square().mean(), (rows(4, requires_grad=True),), tmp_path, {"x": {0: BATCH}})
    assert not (tmp_path / "m.aotpack").exists()


def test_the_number_of_groups_of_a_convolution_varies(tmp_path: Path) -> None:
    def per_sample(x: Tensor, w: Tensor) -> Tensor:
        b, c, h, k = x.shape
        return torch.nn.functional.conv2d(x.reshape(1, b * c, h, k), w.reshape(b * c, 1, 3, 3), groups=b * c)

    batch = Dim("batch", min=2, max=32)
    args = torch.randn(4, 3, 6, 6, requires_grad=True), torch.randn(4, 3, 3, 3, requires_grad=True)
    shapes = {"x": {0: batch}, "w": {0: batch}}
    loaded = built(
        per_sample, args, tmp_path, shapes, targets=("cpu" if compiles_native_code() else "portable",), methods=("train",)
    )
    for count in (2, 4, 9):
        given = torch.randn(count, 3, 6, 6, requires_grad=True), torch.randn(count, 3, 3, 3, requires_grad=True)
        expected, found = per_sample(*given), loaded(*given)
        torch.testing.assert_close(found, expected)
        gradients = [torch.autograd.grad(result.square().sum(), given) for result in (expected, found)]
        torch.testing.assert_close(*gradients)
