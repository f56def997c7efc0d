"""Operators that refuse the values of a call: an error of ours with the operator and the user's line, on every target."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import FreshProcess
from torch import Tensor, nn

import aotpack
from aotpack_loader import load
from aotpack_loader.errors import AotpackError, CaptureError, OperatorError

F = nn.functional


class Rows(torch.autograd.Function):
    """Its backward looks at indices that the forward does not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, at: Tensor) -> Tensor:
        ctx.save_for_backward(at)
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (at,) = ctx.saved_tensors
        return g.index_select(0, at) * 2, None


class Model(nn.Module):
    """`sin` and not `square`: what comes back to `norm` must not be a multiple of its output, or only rounding is left of it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 6)
        self.norm = nn.BatchNorm1d(6)
        self.bag = nn.EmbeddingBag(70, 2)

    def forward(self, ids: Tensor, at: Tensor, by: Tensor, rows: Tensor, ok: Tensor, more: list[Tensor]) -> Tensor:
        h = self.norm(self.embedding(ids))
        picked = self.bag(more[0]).sum()
        picked = picked + h[:, 0].scatter_reduce(0, more[1], h[:, 1], "mean").sum()
        picked = picked + h[:, 2].index_put((more[2],), h[:2, 3]).sum()
        picked = picked + torch.zeros(8).scatter_add(0, more[3], h[:, 4]).sin().sum()
        picked = picked + torch.zeros(8).index_add(0, more[4], h[:, 5]).sin().sum()
        torch._assert_async(ok.all(), 'it said "no"\\')
        picked = picked + h.gather(1, at).sum()
        h = Rows.apply(h, rows)
        return F.cross_entropy(h, at[:, 0]) + picked + torch.div(ids, by, rounding_mode="trunc").sum()


def arguments() -> list[Any]:
    ids = torch.arange(64) % 8
    more = [torch.arange(64).view(32, 2), torch.arange(64), torch.arange(64) < 2, torch.arange(64) % 8, torch.arange(64) % 8]
    return [ids, ids[:, None] % 6, ids + 1, torch.arange(64), torch.ones(3, dtype=torch.bool), more]


def wrong(argument: int, value: int) -> list[Any]:
    """Arguments of which one has a wrong value; the arguments from 5 on are in a list."""
    found = arguments()
    (found[argument] if argument < 5 else found[5][argument - 5]).view(-1)[1] = value
    return found


WRONG = {
    "embedding": (0, 100, r"aten\.embedding\.default.* train\.forward.*\n  test_refusals.py:\d+: h = self\.norm"),
    "embedding, below 0": (0, -1, r"aten\.embedding\.default"),
    "gather": (1, 6, r"aten\.gather\.default.*index 6 is out of bounds.*\n  test_refusals.py:\d+: picked = picked \+ h\.gather"),
    "division": (2, 0, r"refused the values.*ZeroDivisionError.*\n  test_refusals.py:\d+: return F\.cross_entropy"),
    "assertion": (4, 0, r'_assert_async.*it said "no"\\\n  test_refusals.py:\d+: torch\._assert_async'),
    "bag": (5, 70, r"_embedding_bag.* train\.forward.*\n  test_refusals.py:\d+: picked = self\.bag"),
    "scatter_reduce": (6, 64, r"scatter_reduce.* train\.forward.*\n  test_refusals.py:\d+: picked = picked \+ h\[:, 0\]"),
    "index_put": (7, 0, r"index_put.* train\.forward.*shape mismatch.*\n  test_refusals.py:\d+: picked = picked \+ h\[:, 2\]"),
    "scatter_add": (
        8,
        8,
        r"scatter.* train\.forward.*\n  test_refusals.py:\d+: picked = picked \+ torch\.zeros\(8\)\.scatter_add",
    ),
    "index_add": (9, 8, r"index.* train\.forward.*\n  test_refusals.py:\d+: picked = picked \+ torch\.zeros\(8\)\.index_add"),
    "index in the backward": (3, 64, r"aten\.index\w*\.\w+ .* train\.backward"),
}


def step(model: nn.Module, values: list[Any]) -> list[Tensor]:
    """A step that fails or counts; the gradients are what they were before."""
    given = [value.clone() for value in values[:5]]
    loss = model(*given, values[5])
    model.zero_grad()
    loss.backward()
    assert all(map(torch.equal, given, values[:5]))
    return [loss, *(parameter.grad for parameter in model.parameters())]


def compare(path: Path) -> None:
    """Every wrong value is refused, and steps before and after it are eager's."""
    torch.manual_seed(0)
    eager, bundle = Model(), load(path)
    bundle.load_state_dict(eager.state_dict())
    for argument, value, message in WRONG.values():
        for name, buffer in eager.named_buffers():
            bundle.get_buffer(name).copy_(buffer)
        for a, b in zip(step(eager, arguments()), step(bundle, arguments()), strict=True):
            torch.testing.assert_close(b, a, rtol=1e-4, atol=1e-4)
        before = {name: buffer.clone() for name, buffer in bundle.named_buffers()}
        with pytest.raises((IndexError, RuntimeError)) as eagers:
            step(eager, wrong(argument, value))
        with pytest.raises(OperatorError) as caught:
            step(bundle, wrong(argument, value))
        assert isinstance(caught.value, (type(eagers.value), IndexError)), type(eagers.value)
        assert re.search(message, str(caught.value), re.DOTALL), caught.value
        if "train.forward" in str(caught.value):
            assert all(torch.equal(buffer, before[name]) for name, buffer in bundle.named_buffers()), message


def test_values_are_refused_on_portable(tmp_path: Path) -> None:
    path = tmp_path / "m.aotpack"
    aotpack.build(Model(), tuple(arguments()), out=path, targets=("portable",), methods=("train",))
    compare(path)


@pytest.mark.parametrize("calls", ["0", "1"])
@pytest.mark.parametrize("threads", [1, 2])
def test_values_are_refused_by_compiled_code(compiled: Path, fresh_process: FreshProcess, threads: int, calls: str) -> None:
    """The process lives, whoever makes the calls and however many threads find the value."""
    code = """
        import json, sys
        from pathlib import Path
        import torch
        torch.set_num_threads(int(sys.argv[2]))
        import test_refusals
        test_refusals.compare(Path(sys.argv[1]))
        print(json.dumps("passed"))
    """
    tests = Path(__file__).parent
    found = fresh_process(code, compiled, threads, importable=[tests], AOTPACK_NATIVE_CALL=calls)
    assert found == "passed"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, threads = tmp_path_factory.mktemp("compiled") / "m.aotpack", torch.get_num_threads()
    torch.set_num_threads(1)  # code that was compiled with one thread must be right with two
    try:
        aotpack.build(Model(), tuple(arguments()), out=path, targets=("cpu",), methods=("train",))
    finally:
        torch.set_num_threads(threads)
    return path


class Checked(nn.Module):
    """Operators whose values Inductor's decompositions do not check."""

    def forward(
        self, x: Tensor, at: Tensor, to: Tensor, by: Tensor, p: Tensor, counts: Tensor, deviation: Tensor, row: Tensor
    ) -> tuple[Tensor, ...]:
        picked = x.index_select(1, at)
        added = x.index_add(0, to, picked[:, 0].expand(5, 4).T.sin(), alpha=2)
        copied = x.index_copy(0, by, x.cos())
        of_complex = torch.view_as_real(torch.complex(x, x).index_copy(0, row, torch.complex(x.sin(), x)))
        drawn = torch.bernoulli(p.round())
        repeated = x.repeat_interleave(counts, 0, output_size=8)
        normal = torch.normal(0.0, deviation) * 0
        return picked, added, copied, of_complex, F.binary_cross_entropy(p, drawn), repeated, normal


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_values_that_only_eagers_kernels_check_are_refused(target: str, tmp_path: Path) -> None:
    """The values of pytorch#197554: negative indices of rows, probabilities, sums of repeats, and deviations."""
    x, ids, p = torch.randn(4, 5, requires_grad=True), torch.arange(4), torch.rand(4, requires_grad=True)
    given = [x, ids, ids, ids, p, torch.full((4,), 2), torch.ones(4), ids]
    aotpack.build(Checked(), tuple(given), out=tmp_path / "m", targets=(target,), methods=("train",))
    bundle, eager = load(tmp_path / "m"), Checked()
    wrong = [
        (1, -1, "index_select"),
        (2, -4, "index_add"),
        (3, -1, "index_copy"),
        (4, 1.25, "between 0 and 1|p_in <= 1"),
        (4, torch.nan, "between 0 and 1|p_in <= 1"),
        (5, 3, "repeat_interleave"),
        (6, -1.0, "std >= 0"),
        (7, -1, "index_copy"),
    ]
    for argument, value, message in wrong:
        bad = [*given]
        bad[argument] = given[argument].detach().clone().requires_grad_(given[argument].requires_grad)
        with torch.no_grad():
            bad[argument][2] = value
        with pytest.raises((IndexError, RuntimeError)) as eagers:
            eager(*bad)
        with pytest.raises(type(eagers.value), match=message) as caught:
            bundle(*bad)
        assert isinstance(caught.value, OperatorError)
        assert re.search(r"\n  test_refusals.py:\d+: \w+", str(caught.value)), caught.value
    results, expected = bundle(*given), eager(*given)
    torch.testing.assert_close(results, expected)
    found, wanted = (torch.autograd.grad(sum(y.sum() for y in made), (x, p)) for made in (results, expected))
    torch.testing.assert_close(found, wanted)


def test_one_row_is_named_by_a_number(tmp_path: Path) -> None:
    """An index without dimensions, and rows of tensors without dimensions; ``cpu`` failed to build both."""

    def rows(x: Tensor, i: Tensor, only: Tensor) -> list[Tensor]:
        number, other = x[0, 0].sin(), x[1, 1:2]
        of_numbers = [number.index_select(0, only), number.index_copy(0, only, other), number.index_add(0, only, x[2, 2])]
        of_vectors = [x[0].index_select(0, i), x[0].index_add(0, i, other, alpha=2), x[0].index_copy(0, i, other)]
        return [x.index_select(0, i), *of_vectors, *of_numbers, number.index_select(0, only.view(1))]

    x, bad, first = torch.randn(4, 5), torch.tensor(-1), torch.tensor(0)
    aotpack.build(rows, (x, bad + 1, first), out=tmp_path / "m", targets=("cpu",), methods=("infer",))
    bundle = load(tmp_path / "m")
    torch.testing.assert_close(bundle(x, bad + 3, first), rows(x, bad + 3, first))
    for wrong in ((x, bad, first), (x, first, bad)):
        with pytest.raises((IndexError, RuntimeError)):
            rows(*wrong)
        with pytest.raises(OperatorError):
            bundle(*wrong)


SQUARE, HALF = torch.randn(3, 3), torch.randn(3, 3).half()
FLOATS, IDS = torch.randn(4, 5), torch.tensor([0, 1, 2])
OPERATORS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], Tensor]] = {
    "index": (lambda x, i: x[i], (FLOATS,), IDS),
    "index_put": (lambda x, i: x.index_put((i,), x.new_ones(())), (FLOATS,), IDS),
    "index_select": (lambda x, i: x.index_select(1, i), (FLOATS,), IDS),
    "index_add": (lambda x, i: x.index_add(0, i, x[:3]), (FLOATS,), IDS),
    "take": (lambda x, i: x.take(i), (FLOATS,), IDS),
    "scatter": (lambda x, i: x.scatter(0, i[:, None], 1.0), (FLOATS,), IDS),
    "one_hot": (lambda i: F.one_hot(i, 5), (), IDS),
    "nll_loss": (lambda x, i: F.nll_loss(x[:3], i), (FLOATS,), IDS),
    "embedding_bag": (lambda x, i: F.embedding_bag(i[None], x), (FLOATS,), IDS),
    "cholesky": (lambda x: torch.linalg.cholesky(x), (), torch.eye(3)),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_that_refuses_values_is_named(name: str, tmp_path: Path) -> None:
    function, given, last = OPERATORS[name]
    path = tmp_path / "m.aotpack"
    aotpack.build(function, (*given, last), out=path, targets=("portable",), methods=("infer",))
    bundle, bad = load(path), last - 200
    with pytest.raises(Exception) as eagers:
        function(*given, bad)
    with pytest.raises(type(eagers.value)) as caught, torch.no_grad():
        bundle(*given, bad)
    assert isinstance(caught.value, OperatorError)
    assert isinstance(caught.value, AotpackError)
    assert f'"{name}": (' in str(caught.value), caught.value
    torch.testing.assert_close(bundle(*given, last), function(*given, last))


@pytest.mark.parametrize("unpool", [F.max_unpool2d, F.max_unpool3d])
def test_compiled_code_writes_no_maximum_outside_its_image(unpool: Callable[..., Tensor], tmp_path: Path) -> None:
    """Another channel, or memory of others, would be written to."""
    dim = 2 if unpool is F.max_unpool2d else 3
    x, indices = torch.randn(1, 2, *[2] * dim), torch.arange(2**dim).view(1, 1, *[2] * dim).repeat(1, 2, *[1] * dim)
    aotpack.build(lambda x, i: unpool(x, i, 2), (x, indices), out=tmp_path / "m", targets=("cpu",), methods=("infer",))
    bundle = load(tmp_path / "m")
    assert torch.equal(bundle(x, indices), unpool(x, indices, 2))
    for wrong in (-1, 4**dim, 10**12):
        indices[0, 0] = wrong
        with pytest.raises(RuntimeError, match="Found an invalid max index"):
            unpool(x, indices, 2)
        with pytest.raises(OperatorError, match="Found an invalid max index"):
            bundle(x, indices)


@pytest.mark.parametrize("target", ["portable", "cpu"])
@pytest.mark.parametrize(
    "read", [lambda x, i: x[i] * 2, lambda x, i: x[:, i.item()] * 2, lambda x, i: torch.narrow(x, 0, start=i, length=1) * 2]
)
def test_a_position_outside_is_refused(read: Callable[..., Tensor], target: str, tmp_path: Path) -> None:
    """Compiled code read memory of others there; a graph's ``narrow`` gave fewer elements."""
    x = SQUARE.clone().requires_grad_()
    aotpack.build(read, (x, torch.tensor(1)), out=tmp_path / "m", targets=(target,), methods=("train",))
    bundle = load(tmp_path / "m")
    for position in (0, 2):
        torch.testing.assert_close(bundle(x, torch.tensor(position)), read(x, torch.tensor(position)))
    for outside in (3, -4, 10**9):
        with pytest.raises((IndexError, RuntimeError)):
            read(x, torch.tensor(outside))
        with pytest.raises(OperatorError):
            bundle(x, torch.tensor(outside))


def test_an_assertion_of_a_tensor_is_checked(tmp_path: Path) -> None:
    def checked(x: Tensor) -> Tensor:
        torch._assert(x.min() >= 0, "a number is negative")
        return x * 2

    aotpack.build(checked, (IDS,), out=tmp_path / "m", targets=("portable",), methods=("infer",))
    bundle = load(tmp_path / "m")
    assert torch.equal(bundle(IDS), IDS * 2)
    with pytest.raises(OperatorError, match=r"a number is negative\n.*test_refusals.py:\d+: torch\._assert"):
        bundle(-IDS)


UNFIT: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "diagonal_scatter": (torch.diagonal_scatter, (SQUARE, torch.ones(1))),
    "index_add": (lambda x, i, y: x.index_add(0, i, y), (SQUARE, IDS, torch.ones(3))),
    "index_add_": (lambda x, i, y: (x * 1).index_add_(0, i, y), (SQUARE, IDS, torch.ones(3, 1))),
    "linear": (F.linear, (HALF, SQUARE)),
    "matmul of integers": (lambda x, i: x @ i, (SQUARE, IDS)),
    "conv1d": (F.conv1d, (HALF, torch.ones(2, 3, 1))),
    "complex": (torch.complex, (SQUARE, SQUARE.double())),
    "layer_norm": (lambda x, w: F.layer_norm(x, (3,), w), (SQUARE, torch.ones(1))),
    "masked_scatter": (lambda x, m: x.masked_scatter(m, x), (SQUARE, SQUARE.to(torch.uint8))),
    "bucketize": (torch.bucketize, (SQUARE, SQUARE)),
    "multinomial": (lambda x: torch.multinomial(x, 5), (SQUARE.abs(),)),
    "cross_entropy": (F.cross_entropy, (torch.randn(2, 4, 3, 3), torch.zeros(2, 3, 2).long())),
    "nll_loss": (F.nll_loss, (SQUARE, IDS.int())),
    "cross": (lambda x, i: torch.cross(i, x[0], 0), (SQUARE, IDS)),
    "linalg.cross": (lambda x, i: torch.linalg.cross(i, x[0]), (SQUARE, IDS)),
    "random_": (lambda x: (x * 1).random_(5, 2), (SQUARE,)),
    "bernoulli_": (lambda x: (x * 1).bernoulli_(1.5), (SQUARE,)),
    "rrelu": (lambda x: F.rrelu(x.abs(), 2.0, 1.0, training=True), (SQUARE,)),
}


@pytest.mark.parametrize("name", UNFIT)
def test_types_and_sizes_that_eager_refuses_are_refused_at_build(name: str, tmp_path: Path) -> None:
    function, given = UNFIT[name]
    with pytest.raises(RuntimeError) as eagers:
        function(*given)
    with pytest.raises(CaptureError, match="fails on its example inputs") as caught:
        aotpack.build(function, given, out=tmp_path / "m", targets=("portable",), methods=("infer",))
    assert str(eagers.value).splitlines()[0] in str(caught.value)


def test_types_that_eager_mixes_build(tmp_path: Path) -> None:
    """Also where autograd converts, and where the strides of an argument are 0."""

    def mixed(x: Tensor, y: Tensor) -> list[Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            product = F.linear(x.bfloat16(), y)
        added = y.index_add(0, IDS, torch.ones(1, 3).expand(3, 3))
        (gradient,) = torch.autograd.grad((y * x).sum(), y, create_graph=True)
        return [product, added, F.layer_norm(x.bfloat16(), (3,), y[0], y[1]), x * y, gradient, torch.where(x > 0, x, y)]

    given = HALF, SQUARE.clone().requires_grad_()
    aotpack.build(mixed, given, out=tmp_path / "m", targets=("portable",), methods=("train",))
    torch.testing.assert_close(load(tmp_path / "m")(*given), mixed(*given))


class Forces(nn.Module):
    """Energies of graphs whose number is data, and forces. ``whole`` reads that number."""

    def __init__(self, whole: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.whole = nn.Linear(3, 1), whole

    def forward(self, position: Tensor, graph: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            position.requires_grad_()
            energies = torch.zeros(self.whole(graph[-1]) + 1).index_add(0, graph, self.layer(position).tanh().squeeze(1))
            return torch.autograd.grad(energies.sum(), position, create_graph=self.training)[0], energies


def atoms(count: int, graphs: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 3, requires_grad=True), torch.arange(count) * graphs // count


ATOMS = {name: {0: torch.export.Dim("n", min=2, max=99)} for name in ("position", "graph")}


def test_a_range_of_data_is_refused_with_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"test_refusals\.py:\d+.*\n(.*\n)*.*int\(\) and tensor\.item\(\) do not"):
        aotpack.build(
            Forces(lambda last: range(last).stop), atoms(6, 2), out=tmp_path / "m", targets=("portable",), dynamic_shapes=ATOMS
        )


@pytest.mark.parametrize("whole", [Tensor.item, lambda last: int(last), lambda last: int(last.item())])
def test_a_size_read_from_data_beside_gradients_of_the_model(whole: Callable[[Tensor], Any], tmp_path: Path) -> None:
    """``int()`` is a symbol in a trace. In eval mode the model frees the graph of its energies, so only results are compared."""
    model = Forces(whole)
    methods = ("train", "eval")
    aotpack.build(model, atoms(6, 2), out=tmp_path / "m", targets=("portable",), methods=methods, dynamic_shapes=ATOMS)
    assert "int" not in globals()
    loaded = load(tmp_path / "m")
    for count, graphs in ((9, 3), (5, 1)):
        position, graph = atoms(count, graphs)
        found = []
        for each in (loaded, model):
            forces, energies = each.train()(position, graph)
            gradients = torch.autograd.grad(forces.square().sum() + energies.sum(), [*each.parameters()])
            found.append([forces, energies, *gradients, *each.eval()(position, graph)])
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
