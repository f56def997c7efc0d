"""Programs that look like those that Inductor's graph rewrites know, and compute something else."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import aotpack
from devtools.native_calls import has_library

Given = tuple[Tensor, ...]
Function = Callable[..., Any]


def draw(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def qkv(*sizes: int) -> Given:
    return tuple(draw(*sizes, seed=seed) for seed in range(3))


def attention(q: Tensor, k: Tensor, v: Tensor, change: Function = lambda s: s, dim: int = -1) -> Tensor:
    return change(q @ k.transpose(-2, -1) / 8**0.5).softmax(dim) @ v


def keys_turned_at_once(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q.permute(0, 2, 1, 3) @ k.permute(0, 2, 3, 1) * 8**-0.5).softmax(-1) @ v.permute(0, 2, 1, 3)


def filled(fill: float) -> Function:
    """Attention that hides keys, of heads that are permuted. The mask may have other values than 0 and 1."""

    def model(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        heads = (x.permute(0, 2, 1, 3) for x in (q, k, v))
        return attention(*heads, lambda s: s.masked_fill((mask == 0).view(2, 1, 1, 6).expand_as(s), fill))

    return model


def chosen(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Any:
    """GPT-2's attention, whose first row sees nothing, with keys and values for later."""
    q, k, v = (x.permute(0, 2, 1, 3) for x in (q, k, v))
    s = q @ k.permute(0, 1, 3, 2) / torch.full([], 8**0.5)
    return torch.where(mask, s, torch.full((), torch.finfo(s.dtype).min)).softmax(-1) @ v, k, v


def beside_numbers(*given: Tensor) -> list[Tensor]:
    """Halves that are combined with numbers of which they have no exact one."""
    third = torch.tensor(0.3)
    functions: list[Function] = [
        lambda x: F.softshrink(x, 0.3),
        lambda x: F.hardtanh(x, -0.3, 0.7),
        lambda x: torch.div(x, 0.3, rounding_mode="floor"),
        lambda x: torch.div(x, third, rounding_mode="floor"),
        lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
        lambda x: torch.div(x, torch.full_like(x, 0.3), rounding_mode="trunc"),
        lambda x: (x > third) * x + (x - third) + third / (x + 1),
        lambda x: x.round(decimals=1),
        lambda x: x.addcmul(x.flip(0), x, value=0.3),
        lambda x: x.addcdiv(x.flip(0), x * x + 1, value=0.3),
        lambda x: x.lerp(x.flip(0), 0.3),
        lambda x: x / (x.std() + 1),
    ]
    return [f(x) for x in given for f in functions]


HEADS, ROWS = qkv(2, 4, 6, 8), qkv(2, 6, 4, 8)
SEEN = torch.tensor([[1, 2, 1, 0, 2, 1], [0] * 6])
ATTENTION: dict[str, tuple[Function, Given]] = {
    "as many tokens as heads": (keys_turned_at_once, qkv(2, 4, 4, 8)),
    "more tokens than heads": (keys_turned_at_once, ROWS),
    "over queries": (lambda *x: attention(*x, dim=-2), HEADS),
    "over heads": (lambda *x: attention(*x, dim=1), qkv(2, 4, 4, 8)),
    "filled": (filled(-1e4), (*ROWS, SEEN)),
    "filled with a small number": (filled(-1.0), (*ROWS, SEEN)),
    "a mask of one dimension": (lambda q, k, v, m: attention(q, k, v, lambda s: s + m), (*HEADS, draw(6))),
    "a mask added thrice": (lambda q, k, v, m: attention(q, k, v, lambda s: s.add(m, alpha=3)), (*HEADS, draw(2, 4, 6, 6))),
    "a mask that hides all": (lambda q, k, v, m: attention(q, k, v, lambda s: s + m), (*HEADS, torch.full((2, 1, 1, 6), -1e38))),
    "a row sees nothing": (chosen, (*ROWS, torch.ones(6, 6, dtype=torch.bool).tril(-1).view(1, 1, 6, 6))),
}
MATRICES = (draw(4, 5), draw(5, 6, seed=1), draw(4, 6, seed=2))
BESIDE = torch.tensor([0.3, -0.3, 0.29985, 0.7, -0.7, 0.1, 2.46875, -0.0, 3.3, 10.99, 0.5, -2.46])
EXTREMES = torch.tensor([math.inf, math.nan, -1.0, -0.0, 0.0])
INDEX = torch.tensor([[1], [0], [3]])
OTHERS: dict[str, tuple[Function, Given]] = {
    "scaled sums of products": (
        lambda a, b, c: (torch.add(a @ b, c, alpha=3), torch.add(c, a @ b, alpha=3), a @ b + c),
        MATRICES,
    ),
    "sums of other shapes": (lambda a, b, c: (a @ b + c[0], c[:, :1] + a @ b, a @ b + torch.stack((c, c))), MATRICES),
    "sums of two products": (
        lambda a, b, c: (a @ b + (c @ c.t()) @ c, torch.add(a @ b, c.abs() @ (c.t() @ c), alpha=-2)),
        MATRICES,
    ),
    "sums of integers": (
        lambda a, b: torch.add(a @ b, b[0], alpha=4),
        (torch.arange(20).view(4, 5), torch.arange(30).view(5, 6)),
    ),
    "times zero": (lambda x: (x * 0, x * 0.0, x * False, 0 * x, x * torch.zeros(5)), (EXTREMES,)),
    "plus zero": (lambda x: (x + torch.zeros(5), x - torch.full((5,), -0.0), 1 / (x + torch.zeros(5))), (EXTREMES,)),
    "through half": (lambda x: (x.half().bfloat16(), x.half().bfloat16().half(), x.double().half()), (draw(9) * 70000,)),
    "constants in their types": (lambda x: (torch.full((5,), 1.0001).half() * x, torch.full((5,), 0.1).double() * x), (draw(5),)),
    "running sums of constants": (
        lambda x: [torch.full((3, 4), 1.7).cumsum(1, dtype=kind) * x for kind in (torch.int64, torch.float16, torch.float64)],
        (draw(3, 4),),
    ),
    "numbers scattered into constants": (
        lambda x, i: (
            torch.full((3, 4), 2).scatter(1, i, 7.9) + x,
            torch.zeros(3, 4, dtype=torch.float64).scatter(-1, i, 0.1) + x,
            torch.zeros(3, 4).scatter(1, i[:2], 5.0) + x,
            torch.full((3, 4), 1).scatter(1, i, 2**53 + 1),
        ),
        (draw(3, 4), INDEX),
    ),
    "labels": (lambda x, i: F.cross_entropy(x, i[:, 0], reduction="none"), (draw(3, 4), INDEX)),
    "parts of concatenations": (
        lambda x, y: [
            torch.cat([c, c[:, slice(*part)]], 1) for part in ((3,), (8,), (-3,), (1, 3)) for c in [torch.cat([x, y], 1)]
        ],
        (draw(4, 6), draw(4, 5)),
    ),
    "concatenations of parts": (
        lambda x: (torch.cat(x.split([1, 2, 3], 1), 1), torch.cat(x.split(2, 1), 0), torch.cat(x.split(2, 1)[::-1], 1)),
        (draw(4, 6),),
    ),
    "numbers beside halves": (beside_numbers, (BESIDE.half(), BESIDE.bfloat16())),
    "numbers out of range": (lambda x: (x + 1e5, x - 1e5, 1e5 - x, x + torch.tensor(1e5)), (torch.full((20,), -6e4).half(),)),
    "losses out of range": (
        lambda x: [
            loss(x, -x / size, reduction=how)
            for loss, size in ((F.mse_loss, -1.01), (F.smooth_l1_loss, 1), (F.huber_loss, 1))
            for how in ("mean", "sum", "none")
        ],
        (torch.tensor([4e4] + [0.1] * 20).half(),),
    ),
    "roots of halves": (lambda *given: [f for x in given for f in (x**0.5, x**-0.5)], (EXTREMES.half(), EXTREMES.bfloat16())),
    "moments of infinity": (lambda x: (*torch.std_mean(x, 1), *torch.var_mean(x, 0)), (draw(6, 9).log().neg(),)),
    "extremes of NaN": (lambda x: (x.amax(0), x.amax(), x.amin(1), x.amin()), (draw(64, 80).log(),)),
}


def as_tuple(found: Any) -> tuple[Tensor, ...]:
    return (found,) if isinstance(found, Tensor) else tuple(found)


def under_no_grad(f: Function) -> Function:
    return lambda *x: torch.no_grad()(f)(*x)


def checkpointed(f: Function) -> Function:
    return lambda *x: checkpoint(f, *x, use_reentrant=False)


def inputs(table: dict[str, tuple[Function, Given]], *, grad: bool) -> dict[str, list[Tensor]]:
    return {name: [x.clone().requires_grad_(grad and x.is_floating_point()) for x in given] for name, (_, given) in table.items()}


def backward(found: dict[str, tuple[Tensor, ...]]) -> None:
    roots = [x for results in found.values() for x in results if x.grad_fn is not None]
    torch.autograd.backward(roots, [torch.linspace(-1, 1, x.numel()).reshape(x.shape).to(x.dtype) for x in roots])


def compare(
    table: dict[str, tuple[Function, Given]], around: list[Function], folder: Path, *, train: bool, **options: Any
) -> None:
    """Build all functions of a table as one model, and compare results and gradients with eager."""
    table = {f"{name} {i}": (wrap(f), given) for name, (f, given) in table.items() for i, wrap in enumerate(around)}

    def model(given: dict[str, list[Tensor]]) -> dict[str, tuple[Tensor, ...]]:
        return {name: as_tuple(f(*given[name])) for name, (f, _) in table.items()}

    given, expected_given = (inputs(table, grad=train) for _ in range(2))
    method = "train" if train else "infer"
    out = folder / "m.aotpack"
    aotpack.build(model, (inputs(table, grad=train),), out=out, targets=("cpu",), methods=(method,), cache=False, **options)
    loaded = aotpack.load(out, backend="cpu").train(train)
    with torch.set_grad_enabled(train):
        found, expected = loaded(given), model(expected_given)
    if train:
        backward(found)
        backward(expected)
    for name in table:
        for one, other in zip(found[name], expected[name], strict=True):
            torch.testing.assert_close(one, other, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}")
            zeros = (one == 0) & (other == 0)
            assert torch.equal(one.signbit()[zeros], other.signbit()[zeros]), f"{name}: signs of zeros"
        for x, y in zip(given[name], expected_given[name], strict=True):
            torch.testing.assert_close(x.grad, y.grad, equal_nan=True, msg=lambda text, name=name: f"gradient, {name}: {text}")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not has_library(), reason="needs a C++ compiler")
@pytest.mark.parametrize("train", [False, True], ids=["infer", "train"])
def test_near_matches_compute_what_eager_computes(train: bool, tmp_path: Path) -> None:
    compare(ATTENTION | OTHERS, [lambda f: f], tmp_path, train=train)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.skipif(not has_library(), reason="needs a C++ compiler")
def test_near_matches_of_attention_that_saves_nothing(tmp_path: Path) -> None:
    """What the backward computes again, or needs no gradient, looks like inference to Inductor."""
    compare(ATTENTION, [lambda f: f, under_no_grad, checkpointed], tmp_path, train=True, memory_budget=0.0)


@pytest.mark.skipif(not has_library(), reason="needs a C++ compiler")
def test_indices_that_are_compared_are_checked(tmp_path: Path) -> None:
    def model(i: Tensor) -> Tensor:
        return torch.zeros(3, 4).scatter(1, i, 5.0)

    aotpack.build(model, (INDEX,), out=tmp_path / "m", targets=("cpu",), methods=("infer",), cache=False)
    loaded = aotpack.load(tmp_path / "m", backend="cpu").eval()
    with pytest.raises(RuntimeError, match="index out of bounds for dimension 1"):
        loaded(INDEX + 1)
