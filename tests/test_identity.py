"""Which tensors are one and which share memory: single functions, and the front ends that only see one run."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import aotpack
import aotpack_loader
from aotpack.capture.dry_run import python_state
from aotpack.capture.inputs import aliasing
from aotpack_loader.errors import InputError, UnsupportedError
from aotpack_loader.runtime.memory import overlap

_FLOATS = torch.zeros(64)


@st.composite
def strided(draw: st.DrawFn) -> Tensor:
    """A tensor somewhere in 64 floats, with any strides, of 2 or 4 bytes an element."""
    whole = draw(st.sampled_from([_FLOATS, _FLOATS.view(torch.int16)]))
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    stride = [draw(st.integers(0, 9)) for _ in shape]
    reach = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True) if size)
    return whole.as_strided(shape, stride, draw(st.integers(0, whole.numel() - max(reach, 1))))


def bytes_of(tensor: Tensor) -> set[int]:
    size, start = tensor.element_size(), tensor.storage_offset()
    offsets = itertools.product(*[[i * step for i in range(n)] for n, step in zip(tensor.shape, tensor.stride(), strict=True)])
    return {(start + sum(offset)) * size + byte for offset in offsets for byte in range(size)}


@settings(max_examples=500, deadline=None)
@given(strided(), strided())
def test_overlap_is_a_byte_in_common(a: Tensor, b: Tensor) -> None:
    assert overlap(a, b) == bool(bytes_of(a) & bytes_of(b))


def test_sharing_groups_what_overlaps_through_others() -> None:
    x = torch.zeros(12)
    a, b, c, apart = x[:4], x[2:6], x[5:8], x[8:]
    found = aliasing.sharing((a, {"b": b, "c": c}, a), {"apart": apart})
    assert found.identical == ((0, 3),)
    assert found.overlapping == ((0, 1, 2),)
    assert found.neighbours == {0, 1, 2, 3, 4}


def test_separated_keeps_types_and_what_is_a_leaf() -> None:
    leaf = torch.zeros(3, 4).t().requires_grad_()
    computed = (leaf * 1)[:, 1:]
    example = (leaf, leaf, computed, computed)
    (a, b, c, d), _ = aliasing.separated(example, {}, aliasing.sharing(example, {}))
    assert len({x.data_ptr() for x in (a, b, c, d)}) == 4
    assert [x.stride() for x in (a, c)] == [leaf.stride(), computed.stride()]
    assert [(x.is_leaf, x.requires_grad) for x in (a, b, c, d)] == [(True, True)] * 2 + [(False, True)] * 2


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.state.add_(1)
        return x * 2


def test_an_argument_in_the_memory_of_a_buffer_that_is_written_is_refused(tmp_path: Path) -> None:
    model, out = Writes(), tmp_path / "writes.aotpack"
    aotpack.build(model, (model.state,), out=out, targets=("portable",), methods=("infer",))
    loaded = aotpack.load(out).eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded(torch.ones(4)), torch.full((4,), 2.0))
        with pytest.raises(InputError, match=r"state: shares its memory with x"):
            loaded(loaded.state)


def compared(x: Tensor, y: Tensor) -> Tensor:
    return x * (1.0 if x is y else 2.0) + y


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls, self.last = 0, 0

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.last  # read, and not changed
        self.calls += 1
        return x * self.calls


@pytest.mark.parametrize("front_end", ["dynamo", "export", "trace"])
def test_a_model_that_compares_its_arguments_gets_only_what_it_was_built_for(front_end: str, tmp_path: Path) -> None:
    x, y = torch.randn(4), torch.randn(4)
    for args, other in (((x, y), (x, x)), ((x, x), (x, y))):
        out = tmp_path / f"{args[0] is args[1]}.aotpack"
        aotpack.build(compared, args, out=out, targets=("portable",), front_ends=(front_end,), methods=("infer",))
        model = aotpack.load(out)
        with torch.no_grad():
            torch.testing.assert_close(model(*args), compared(*args))
            with pytest.raises(InputError, match=r"y: must (not )?be the same tensor as x"):
                model(*other)


@pytest.mark.parametrize("front_end", ["dynamo", "export", "trace"])
def test_a_value_that_is_read_and_changed_is_refused(front_end: str, tmp_path: Path) -> None:
    model, out = Counter(), tmp_path / "counter.aotpack"
    with pytest.raises(UnsupportedError, match=r"\.?calls: read, and changed for the next call"):
        aotpack.build(model, (torch.randn(3),), out=out, targets=("portable",), front_ends=(front_end,))
    assert model.calls == 0


@pytest.mark.parametrize("front_end", ["dynamo", "export", "trace"])
def test_a_model_may_change_and_return_what_it_makes(front_end: str, tmp_path: Path) -> None:
    def model(x: Tensor) -> OrderedDict[str, Tensor]:
        result = OrderedDict(sine=x.sin())
        result["double"] = 2 * result["sine"]
        return result

    out, x = tmp_path / "ordered.aotpack", torch.randn(3)
    aotpack.build(model, (x,), out=out, targets=("portable",), front_ends=(front_end,))
    torch.testing.assert_close(aotpack.load(out)(x), model(x), rtol=0, atol=0)


def test_watched_models_are_left_as_they_were() -> None:
    model = Counter()
    with python_state.watched(model) as seen:
        model(torch.randn(3))
    assert (seen.changed, seen.compares, model.calls) == ({"calls"}, False, 0)
    assert "__getattribute__" not in vars(nn.Module)


def _written_beside(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    return x * y


def test_a_written_view_beside_a_saved_one_is_refused(tmp_path: Path) -> None:
    """Views of one tensor share a version counter, and the write comes after the forward."""
    example = (torch.ones(3, requires_grad=True) * 1, torch.ones(3, requires_grad=True) * 1)
    aotpack.build(_written_beside, example, out=tmp_path / "beside.aotpack", targets=("portable", "cpu"), methods=["train"])
    for backend in ("portable", "cpu"):
        model = aotpack_loader.load(tmp_path / "beside.aotpack", backend=backend)
        leaf = torch.ones(2, 3, requires_grad=True)
        rows = leaf * 1
        with pytest.raises(InputError, match=r"(?s)written to, and is a view of the same tensor as y.*clone"):
            model(rows[0], rows[1])
        model(rows[0], rows[1].clone()).sum().backward()
        assert torch.equal(leaf.grad, torch.full((2, 3), 2.0))
        rows = torch.ones(2, 3)
        assert torch.equal(model(rows[0], rows[1]), torch.full((3,), 2.0))  # nothing is recorded


def view_of_value(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    with torch.no_grad():
        return y, y.view(-1)


def view_of_argument(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()
    with torch.no_grad():
        return y, x.view(-1)


@pytest.mark.parametrize("function", [view_of_value, view_of_argument])
def test_a_view_made_without_gradients_has_no_backward(tmp_path: Path, function: Callable[..., Any]) -> None:
    """It requires a gradient because its base does. Autograd has no node of it, nor does it collect a gradient."""
    aotpack.build(
        function, (torch.randn(2, 3, requires_grad=True),), out=tmp_path / "m", targets=("portable",), methods=("train",)
    )
    for call in (function, aotpack_loader.load(tmp_path / "m")):
        x = torch.randn(2, 3, requires_grad=True)
        y, view = call(x)
        assert view.requires_grad
        with pytest.raises(RuntimeError, match="element 1 of tensors does not require grad"):
            torch.autograd.backward([y, view], [torch.ones_like(y), torch.ones_like(view)])
        (y.sum() + view.sum()).backward()
        torch.testing.assert_close(x.grad, x.cos())
        assert view.grad is None
