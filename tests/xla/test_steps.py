"""Steps of optimizers and several methods on XLA: beside eager, with torch.optim's state, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from test_methods import Codec, encode, score
from test_optimizers import Made, Net, largest_difference, of, steps
from torch import nn

import aotpack
from aotpack_loader import load
from aotpack_loader.errors import InputError, UnsupportedError


class Wide(Net):
    """With parameters of one element and of none."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.none = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(0, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.one + self.none.sum()


OPTIMIZERS = {
    "SGD": of("SGD", lr=0.1, momentum=0.9, nesterov=True),
    "AdamW": of("AdamW", lr=0.1),
    "Rprop": of("Rprop"),
    "RAdam": of("RAdam", lr=0.1),
    "Adafactor": of("Adafactor"),
    "Muon": lambda model: torch.optim.Muon([p for p in model.parameters() if p.dim() == 2]),
}
BACKEND = "xla:cpu"


def built(model: nn.Module, args: tuple[Any, ...], out: Path, optimizer: Made | None, **options: Any) -> nn.Module:
    options = {"methods": ("train",), **options}
    aotpack.build(copy.deepcopy(model), args, out=out, targets=(BACKEND,), optimizer=optimizer, **options)
    return load(out, backend=BACKEND)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_torch(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net() if name == "Adafactor" else Wide()  # torch divides by its number of elements
    loaded = built(model, (torch.randn(5, 4),), tmp_path / "net.aotpack", OPTIMIZERS[name])
    eager, own = OPTIMIZERS[name](model), loaded.aotpack.optimizer()
    steps([(model, eager), (loaded, own)], 20, skipped="norm.weight")
    assert largest_difference(eager, own) < 1e-4
    own.load_state_dict(copy.deepcopy(eager.state_dict()))
    eager.load_state_dict(copy.deepcopy(own.state_dict()))
    steps([(model, eager), (loaded, own)], 2)
    assert largest_difference(eager, own) < 1e-4


class Words(nn.Module):
    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 3, sparse=sparse)

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        return self.words(i).square().sum()  # type: ignore[no-any-return]


def test_sparse_gradients_are_refused(tmp_path: Path) -> None:
    """XLA's code is for fixed sizes: it updates whole parameters."""
    example, out = (torch.tensor([[1, 2], [3, 1]]),), tmp_path / "words.aotpack"
    with pytest.raises(UnsupportedError, match="as many rows as a sparse gradient has"):
        built(Words(sparse=True), example, out, of("SparseAdam"))
    assert not out.exists()
    dense = built(Words(sparse=False), example, out, of("SGD"))
    own = dense.aotpack.optimizer()
    before = copy.deepcopy(dense.state_dict())
    dense.words.weight.grad = torch.eye(9, 3).to_sparse(1)
    with pytest.raises(InputError, match=r"words.weight.grad: is a sparse torch.float32\[9, 3\]"):
        own.step()
    assert all(torch.equal(value, before[name]) for name, value in dense.state_dict().items())


def test_methods_share_their_state(tmp_path: Path) -> None:
    """Two methods beside the model's call, for two batches, and a step of the whole."""
    torch.manual_seed(0)
    model, x, batch = Codec(), torch.randn(5, 4), {0: torch.export.Dim("batch", min=2)}
    methods = {
        "encode": aotpack.Method(encode, (x,), dynamic_shapes={"x": batch}),
        "score": aotpack.Method(score, (), {"x": x}, dynamic_shapes={"x": batch}, modes=("train",)),
    }
    sizes = {"dynamic_shapes": {"x": batch}, "specializations": [{"batch": 5}, {"batch": 3}]}
    optimizer = of("SGD", lr=0.1)
    loaded = built(model, (x,), tmp_path / "codec.aotpack", optimizer, methods=methods, **sizes)
    eager, own = optimizer(model), loaded.aotpack.optimizer()
    for rows in (5, 3, 5):
        x = torch.randn(rows, 4)
        z, mine = encode(model, x), loaded.aotpack.method("encode")(x)
        torch.testing.assert_close(mine, z)
        loss, found = F.mse_loss(model(x), x) * 2 + z.sum(), loaded.aotpack.method("score")(x=x)["loss"] + mine.sum()
        for value, by in ((loss, eager), (found, own)):
            by.zero_grad()
            value.backward()
            by.step()
    torch.testing.assert_close(loaded.state_dict(), model.state_dict(), rtol=1e-4, atol=1e-5)
