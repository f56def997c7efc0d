"""Control flow on XLA: a loop is one ``while`` however long it is, a branch a ``conditional``; the reference is Python's own."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as map_rows

import aotpack
from aotpack_loader import load
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import BuildError

from .test_regions import opcodes
from .test_train import build

pytestmark = pytest.mark.filterwarnings("ignore")  # Dynamo's, which torch's control flow runs

ROWS = 5


class Recurrent(nn.Module):
    """A cell over rows, by scan or by Python's loop."""

    def __init__(self, *, by_scan: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.by_scan = nn.Linear(7, 4), by_scan

    def forward(self, carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            carry = self.cell(torch.cat([carry, row], -1)).tanh()
            return carry, carry.exp() + row.sum(-1, keepdim=True)

        if self.by_scan:
            return scan(step, carry, x)
        rows = []
        for row in x:
            carry, added = step(carry, row)
            rows.append(added)
        return carry, torch.stack(rows)


def example(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(2, 4, generator=draw).requires_grad_(), torch.randn(rows, 2, 3, generator=draw).requires_grad_()


def assert_alike(model: Callable[..., Any], reference: Callable[..., Any], args: tuple[Tensor, ...]) -> None:
    """Results, and gradients of what requires one, of a bundle on the device and of what it is to compute."""
    here = [arg.detach().requires_grad_(arg.requires_grad) for arg in args]
    there = [arg.detach().requires_grad_(arg.requires_grad) for arg in args]
    found, expected = (torch.utils._pytree.tree_leaves(f(*given)) for f, given in ((model, there), (reference, here)))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other)
    for results in (found, expected):
        differentiable = [result for result in results if result.requires_grad]
        if differentiable:
            sum(result.sin().sum() for result in differentiable).backward()
    for given, other in zip(there, here, strict=True):
        if given.requires_grad:  # of a branch that Python does not take there is no gradient; here it is zero
            expected = torch.zeros_like(other) if other.grad is None else other.grad
            torch.testing.assert_close(given.grad.cpu(), expected, rtol=1e-4, atol=1e-5)
    if isinstance(reference, nn.Module):
        assert isinstance(model, nn.Module)
        for (name, parameter), other in zip(reference.named_parameters(), model.parameters(), strict=True):
            grad = other.grad.cpu()
            torch.testing.assert_close(grad, parameter.grad, rtol=1e-4, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")


def kinds(path: Path) -> dict[str, Counter[str]]:
    """How many instructions of each kind the computations of a bundle have."""
    with Bundle.open(path) as bundle:
        found = {key: item.stablehlo for key, item in bundle.targets["xla:cpu"].xla.items() if item.stablehlo is not None}
        return {key: opcodes(bundle.module(program)) for key, program in found.items()}


def test_a_scan_is_a_while_of_any_length(tmp_path: Path) -> None:
    """Forward and backward have one ``while`` and the cell's products once; results and gradients are the loop's."""
    found = {}
    for rows in (ROWS, 40):
        path = build(Recurrent(by_scan=True), example(rows), tmp_path / str(rows))
        found[rows] = kinds(path)
        assert_alike(load(path, backend="xla:cpu"), Recurrent(by_scan=False), example(rows))
    assert found[ROWS] == found[40]
    assert {key: (many["while"], many["dot_general"]) for key, many in found[40].items()} == {
        "train.forward": (1, 1),
        "train.backward": (1, 2),  # the gradients of its input and its weight
        "infer.forward": (1, 1),
    }


def test_rows_that_vary_in_number(tmp_path: Path) -> None:
    """A scan at two sizes, of graphs that hold none."""
    rows = torch.export.Dim("rows", min=2, max=64)
    path = tmp_path / "model.aotpack"
    options: dict[str, Any] = {"dynamic_shapes": {"carry": None, "x": {0: rows}}, "specializations": [{"rows": 3}, {"rows": 6}]}
    aotpack.build(Recurrent(by_scan=True), example(), out=path, targets=("xla:cpu",), **options)
    for count in (3, 6):
        assert_alike(load(path, backend="xla:cpu"), Recurrent(by_scan=False), example(count))


def test_the_target_is_added_from_the_graphs(tmp_path: Path) -> None:
    model, args = Recurrent(by_scan=True), example()
    aotpack.build(model, args, out=tmp_path / "one", targets=("portable",))
    aotpack.compile_bundle(tmp_path / "one", targets=("xla:cpu",), out=tmp_path / "both")
    assert_alike(load(tmp_path / "both", backend="xla:cpu"), Recurrent(by_scan=False), args)


# ------------------------------------------------------------------ other forms


def types(x: Tensor, flags: Tensor) -> Any:
    """A carry of each kind of type, one that changes nothing, rows of truths, an input of rows that nobody reads."""

    def step(carry: Any, row: Any) -> Any:
        count, half, seen, same = carry
        value, flag, _ = row
        new = (count + flag, half * value.to(torch.bfloat16), seen | flag, same.clone())
        return new, (seen & flag, value.double() + count, torch.arange(2))

    initial = (torch.tensor(0), torch.ones(3, dtype=torch.bfloat16), torch.tensor(False), torch.tensor(2.5))
    return scan(step, initial, (x, flags, torch.zeros(ROWS, 2)))


def types_in_python(x: Tensor, flags: Tensor) -> Any:
    count, half, seen, same = torch.tensor(0), torch.ones(3, dtype=torch.bfloat16), torch.tensor(False), torch.tensor(2.5)
    rows = []
    for value, flag in zip(x, flags, strict=True):
        rows.append((seen & flag, value.double() + count, torch.arange(2)))
        count, half, seen = count + flag, half * value.to(torch.bfloat16), seen | flag
    return (count, half, seen, same), tuple(torch.stack(column) for column in zip(*rows, strict=True))


def scan_in_scan(x: Tensor) -> Any:
    """Sums of rows of rows."""

    def outer(carry: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
        last, rows = scan(lambda c, row: ((c * row).sin(), c + row), carry, block)
        return last, rows.sum(0)

    return scan(outer, torch.ones(3), x)


def scan_in_scan_in_python(x: Tensor) -> Any:
    carry, found = torch.ones(3), []
    for block in x:
        rows = []
        for row in block:
            rows.append(carry + row)
            carry = (carry * row).sin()
        found.append(torch.stack(rows).sum(0))
    return carry, torch.stack(found)


def branch_in_scan(x: Tensor) -> Any:
    def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        new = torch.cond(row.sum() > 0, lambda c, r: c.sin() + r, lambda c, r: c * r.cos(), (carry, row))
        return new, new * 2

    return scan(step, torch.ones(3), x)


def branch_in_scan_in_python(x: Tensor) -> Any:
    carry, rows = torch.ones(3), []
    for row in x:
        carry = carry.sin() + row if row.sum() > 0 else carry * row.cos()
        rows.append(carry * 2)
    return carry, torch.stack(rows)


def turns(x: Tensor, turns: Tensor) -> Any:
    """As many turns as a tensor says; the size of x is passed in, and a tensor that no turn changes."""
    scale = x.abs().mean()
    return while_loop(lambda i, x: i < turns, lambda i, x: (i + 1, (x * scale + i).sin()), (torch.tensor(0), x))


def turns_in_python(x: Tensor, turns: Tensor) -> Any:
    scale, i = x.abs().mean(), torch.tensor(0)
    while i < turns:
        i, x = i + 1, (x * scale + i).sin()
    return i, x


def counted(x: Tensor) -> Any:
    """Numbers that turns count with: a row's place from either end, a factor, a power; one read afterwards."""

    def body(i: int, total: Tensor, whole: Tensor) -> Any:
        row = x[i].sin() * (i - 2) + i**2
        return i + 1, total * 2 + row - x[-1 - i] * (i % 2), whole + i

    count, total, whole = while_loop(lambda i, total, whole: i < x.shape[0] - 1, body, (1, x[0] * 1, x.int()))
    return total * count, whole


def counted_in_python(x: Tensor) -> Any:
    total, whole = x[0], x.int()
    for i in range(1, x.shape[0] - 1):
        row = x[i].sin() * (i - 2) + i**2
        total, whole = total * 2 + row - x[-1 - i] * (i % 2), whole + i
    return total * (x.shape[0] - 1), whole


def counted_beside_a_branch(x: Tensor) -> Tensor:
    """A branch that reads the number; one that comes back to where it was; a number that a tensor says."""

    def body(i: int, step: int, x: Tensor) -> Any:
        x = torch.cond(x.sum() > 0, lambda x: x.sin() - i, lambda x: x.cos() + step, (x,))
        return i + step, 3 - step, x

    return while_loop(lambda i, step, x: i < 7, body, (0, 1, x))[2]


def counted_beside_a_branch_in_python(x: Tensor) -> Tensor:
    i, step = 0, 1
    while i < 7:
        x = x.sin() - i if x.sum() > 0 else x.cos() + step
        i, step = i + step, 3 - step
    return x


def factor(x: Tensor, i: Tensor) -> Any:
    """Numbers read from tensors, one of them with a dimension."""
    return x * i.item(), x + (i.view(1).item() - 3) ** 2, (x[:2] / i).exp() - x[1].item() * 0.5


def factor_in_python(x: Tensor, i: Tensor) -> Any:
    return x * int(i), x + (int(i) - 3) ** 2, (x[:2] / i).exp() - float(x[1]) * 0.5


def rows_by_map(x: Tensor, y: Tensor) -> Any:
    return map_rows(lambda row, y: {"a": row.sin() * y, "b": row.sum()}, x, y)


def rows_in_python(x: Tensor, y: Tensor) -> Any:
    return {"a": x.sin() * y, "b": x.sum(1)}


def constant_branch(x: Tensor) -> Any:
    """One branch depends on nothing."""
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: torch.full((3,), 2.0), (x,))


def constant_branch_in_python(x: Tensor) -> Any:
    return x.sin() if x.sum() > 0 else torch.full((3,), 2.0)


def number_as_predicate(x: Tensor) -> Any:
    """Not a truth, but one element, which counts as true unless it is zero."""
    return torch.cond(x[:1].sign(), lambda x: (x.exp(), x + 1), lambda x: (x.cos(), x - 1), (x,))


def number_as_predicate_in_python(x: Tensor) -> Any:
    return (x.exp(), x + 1) if x[0] != 0 else (x.cos(), x - 1)


TYPES = [(torch.rand(ROWS, 3) + 1, torch.arange(ROWS) % 2 > 0)]
BLOCKS, LINES = [(torch.rand(2, 4, 3).requires_grad_(),)], [(torch.randn(6, 3).requires_grad_(),)]
COUNTS = [(torch.ones(3), torch.tensor(count)) for count in (4, 0, 1)]
PAIR = [(torch.rand(4, 3).requires_grad_(), torch.rand(3).requires_grad_())]
UP, DOWN = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([0.0, -1.0, -2.0])
SIGNS = [(UP.clone().requires_grad_(),), (DOWN.clone().requires_grad_(),)]


@pytest.mark.parametrize(
    ("function", "reference", "args"),
    [
        pytest.param(types, types_in_python, TYPES, id="types"),
        pytest.param(scan_in_scan, scan_in_scan_in_python, BLOCKS, id="scan in scan"),
        pytest.param(branch_in_scan, branch_in_scan_in_python, LINES, id="cond in scan"),
        pytest.param(turns, turns_in_python, COUNTS, id="while_loop, as often as told"),
        pytest.param(counted, counted_in_python, [(torch.rand(5, 3) * 4,)], id="while_loop, numbers"),
        pytest.param(
            counted_beside_a_branch, counted_beside_a_branch_in_python, [(torch.rand(3),)], id="while_loop, numbers in a branch"
        ),
        pytest.param(factor, factor_in_python, [(UP, torch.tensor(i)) for i in (4, 2)], id="numbers read from tensors"),
        pytest.param(rows_by_map, rows_in_python, PAIR, id="map"),
        pytest.param(constant_branch, constant_branch_in_python, SIGNS, id="a constant branch"),
        pytest.param(number_as_predicate, number_as_predicate_in_python, [(UP,), (DOWN,)], id="a number as predicate"),
    ],
)
def test_forms(
    function: Callable[..., Any],
    reference: Callable[..., Any],
    args: list[tuple[Tensor, ...]],
    tmp_path: Path,
) -> None:
    loaded = load(build(function, args[0], tmp_path / "model.aotpack"), backend="xla:cpu")  # type: ignore[arg-type]
    for given in args:
        assert_alike(loaded, reference, given)


def test_one_branch_alone_is_run(tmp_path: Path) -> None:
    """What the other would compute is in another computation."""

    def branches(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x @ x, lambda x: x.cos(), (x,))

    (found,) = kinds(build(branches, (torch.randn(3, 3),), tmp_path / "m", methods=("infer",))).values()  # type: ignore[arg-type]
    assert found["case"] == 1
    assert found["dot_general"] == 1


# ------------------------------------------------------------------ random numbers


class Drops(nn.Module):
    """Masks of scans in a scan, of a branch, and of calls beside them."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            _, inner = scan(lambda c, r: (c + 1, F.dropout(r, 0.5)), carry, torch.stack([row, row]))
            return carry + 1, torch.cat([inner, F.dropout(row, 0.5).unsqueeze(0)])

        rows = x.expand(3, *x.shape).clone()
        _, first = scan(step, torch.zeros(()), rows)
        _, second = scan(step, torch.zeros(()), rows)
        branch = torch.cond(x.sum() > 0, lambda x: F.dropout(x, 0.5), lambda x: x.clone(), (x,))
        return first, second, branch, F.dropout(x, 0.5)


def test_every_turn_draws_its_own_numbers(tmp_path: Path) -> None:
    """None of twenty masks is another's, neither in this call nor the next; the same state gives the same again."""
    x = torch.ones(400)
    path = tmp_path / "model.aotpack"
    aotpack.build(Drops(), (x,), out=path, targets=("xla:cpu",), front_ends=("trace",), methods=("train",))
    loaded = load(path, backend="xla:cpu")
    torch.manual_seed(5)
    runs = [[part.cpu() for part in loaded(x)] for _ in range(2)]
    masks = [mask for run in runs for part in run for mask in part.reshape(-1, 400) != 0]
    assert len(masks) == 2 * (2 * 3 * 3 + 2)
    for mask in masks:
        assert abs(mask.float().mean().item() - 0.5) < 0.125  # five standard deviations of 400 draws
    for one, other in itertools.combinations(masks, 2):
        assert abs((one == other).float().mean().item() - 0.5) < 0.15
    torch.manual_seed(5)
    for again, part in zip(loaded(x), runs[0], strict=True):
        assert torch.equal(again.cpu(), part)


# ------------------------------------------------------------------ what is refused


def count_returned(x: Tensor) -> Any:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x + i), (0, x.detach()))


def doubled(x: Tensor) -> Tensor:
    return while_loop(lambda x: x.abs().sum() < 100, lambda x: (x * 2,), (x,))[0]


def inner_kernel(x: Tensor) -> Any:
    return scan(lambda c, row: (c + 1, torch.special.bessel_j0(row)), torch.zeros(()), x)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            count_returned,
            r"test_control_flow\.py.*is returned, or saved for the backward, as a number.*\n.*torch\.tensor\(0\) for 0",
        ),
        (doubled, r"while_loop_stack_output has no form for XLA: the gradient of a while_loop saves a row for each"),
        (inner_kernel, r"bessel_j0.*has no rule for XLA"),
    ],
)
def test_what_is_refused(function: Callable[..., Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=message):
        build(function, (torch.ones(3, 2).requires_grad_(),), tmp_path / "model.aotpack")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
