"""Sparse gradients of embeddings: in torch's optimizers, and from bundles that are not trusted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from support.archive import Documents, pack
from torch import Tensor, nn

import aotpack
from aotpack_loader import load
from aotpack_loader.errors import OperatorError
from devtools.paths import ROOT

VECTOR = ROOT / "spec/vectors/v1/valid/sparse_gradients/bundle.aotpack"


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20, 4, sparse=True), nn.Embedding(30, 4, sparse=True, padding_idx=0)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        return (self.users(user) * self.items(item)).sum(-1).square().mean()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    out = tmp_path_factory.mktemp("sparse") / "recommender.aotpack"
    aotpack.build(Recommender(), batch(0), out=out, targets=("portable",), dynamic_shapes=[{0: torch.export.Dim.DYNAMIC}] * 2)
    return out


def batch(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    size = 5 + seed
    return torch.randint(20, (size,), generator=generator), torch.randint(30, (size,), generator=generator)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")  # of torch's Adagrad
@pytest.mark.parametrize(
    "optimizer",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        lambda parameters: torch.optim.SparseAdam(list(parameters), lr=0.1),
        lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    ],
    ids=["SGD", "SparseAdam", "Adagrad"],
)
def test_optimizers_take_sparse_gradients(
    bundle: Path, optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
) -> None:
    loaded, eager = load(bundle), Recommender()
    eager.load_state_dict(loaded.state_dict())
    optimizers = [optimizer(model.parameters()) for model in (loaded, eager)]
    for seed in range(4):
        for model, update in zip((loaded, eager), optimizers, strict=True):
            update.zero_grad()
            model(*batch(seed)).backward()
            update.step()
    for (name, mine), theirs in zip(loaded.named_parameters(), eager.parameters(), strict=True):
        assert mine.grad is not None
        assert mine.grad.layout is torch.sparse_coo, name
        torch.testing.assert_close(mine, theirs)


def test_gradients_accumulate_over_steps(bundle: Path) -> None:
    loaded, eager = load(bundle), Recommender()
    eager.load_state_dict(loaded.state_dict())
    for seed in range(3):
        for model in (loaded, eager):
            model(*batch(seed)).backward()
    for mine, theirs in zip(loaded.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.coalesce(), theirs.grad.coalesce())  # type: ignore[union-attr]


def test_unused_embeddings_get_no_gradient(tmp_path: Path) -> None:
    model = nn.ModuleDict({"used": nn.Embedding(3, 2, sparse=True), "unused": nn.Embedding(3, 2, sparse=True)})

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = model

        def forward(self, i: Tensor) -> tuple[Tensor, Tensor]:
            return self.tables["used"](i), self.tables["unused"](i)

    aotpack.build(Half(), (torch.tensor([0, 2]),), out=tmp_path / "half.aotpack", targets=("portable",))
    loaded = load(tmp_path / "half.aotpack")
    loaded(torch.tensor([0, 2]))[0].sum().backward()
    assert loaded.get_parameter("tables.used.weight").grad.layout is torch.sparse_coo  # type: ignore[union-attr]
    assert loaded.get_parameter("tables.unused.weight").grad is None


def test_indices_of_another_gradient_are_refused(tmp_path: Path) -> None:
    documents = Documents(VECTOR)
    first, second = documents.program["methods"]["train"]["backward"]["sparse"]
    first["indices"], second["indices"] = second["indices"], first["indices"]
    path = tmp_path / "swapped.aotpack"
    path.write_bytes(pack(documents.files()))
    results = load(path)(torch.tensor([1, 1, 2]), torch.randn(3, 2, requires_grad=True))
    with pytest.raises(OperatorError):
        results.sum().backward()


def test_checked_indices_are_no_memory_of_the_bundle() -> None:
    """They were a buffer's, which the next forward overwrote: the optimizer then wrote far outside of the parameter."""
    model = load(ROOT / "tests/hostile/sparse_indices_in_a_buffer.aotpack")
    rows, parameter = model.get_buffer("idx"), model.get_parameter("table.weight")
    gradients = []
    for _ in range(2):
        parameter.grad = None
        model(torch.tensor([0, 1, 2]), torch.ones(3, 2)).sum().backward()
        assert parameter.grad is not None
        gradients.append(parameter.grad)
    assert rows.abs().max() > 1 << 30  # what the second forward wrote
    for gradient in gradients:
        assert gradient._indices().untyped_storage().data_ptr() != rows.untyped_storage().data_ptr()
        assert gradient._indices().abs().max() == 0


class _Gather(torch.nn.Module):
    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        return torch.gather(x, 0, index, sparse_grad=True).sin()


def test_an_argument_with_other_strides_gets_a_sparse_gradient(tmp_path: Path) -> None:
    """It is copied to the strides of the build. ``scripts/fuzz`` found that torch's own copy has no sparse gradient."""
    index = torch.tensor([[0, 1], [2, 1]])
    aotpack.build(_Gather(), (torch.randn(3, 2, requires_grad=True), index), out=tmp_path / "m", targets=["portable"])
    model = aotpack.load(tmp_path / "m")
    x = torch.randn(2, 3).t().requires_grad_()
    _Gather()(x, index).sum().backward()
    assert x.grad is not None
    expected, x.grad = x.grad, None
    with pytest.warns(aotpack.LayoutWarning):
        result = model(x, index)
    result.sum().backward()
    assert x.grad is not None
    assert x.grad.layout == expected.layout == torch.sparse_coo
    assert torch.equal(x.grad.to_dense(), expected.to_dense())
