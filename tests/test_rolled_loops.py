"""Loops of the user's Python become scans (aotpack/capture/loops): values, gradients, and lengths that vary."""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan
from torch.export import Dim

import aotpack
import aotpack_loader
from aotpack.capture.loops.carries import copy_captured_carries
from aotpack.capture.loops.rolled import roll
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import BuildError

LONG = 16
TIME = Dim("time", min=2, max=64)


class Cells(nn.Module):
    """An LSTM cell by hand. ``walk`` is the loop."""

    def __init__(self, walk: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.cell, self.gru, self.head = nn.LSTMCell(4, 4), nn.GRUCell(4, 4), nn.Linear(4, 4)
        self.walk = walk

    def forward(self, x: Tensor) -> Any:
        return self.walk(self, x)


def stacked(m: Any, x: Tensor) -> Any:
    h = c = x.new_zeros(x.shape[0], 4)
    out = []
    for t in range(x.shape[1]):
        h, c = m.cell(x[:, t], (h, c))
        out.append(h)
    return torch.stack(out, 1), h, c


def only_the_last(m: Any, x: Tensor) -> Any:
    h = x.new_zeros(x.shape[0], 4)
    for row in x.unbind(1):
        h = m.gru(row, h)
    return m.head(h)


def backwards(m: Any, x: Tensor) -> Any:
    h, out = x.new_zeros(x.shape[0], 4), []
    for t in reversed(range(x.shape[1])):
        h = m.gru(x[:, t], h)
        out.insert(0, m.head(h))
    return torch.stack(out)


def both_ways(m: Any, x: Tensor) -> Any:
    there, back = [], []
    h = k = x.new_zeros(x.shape[0], 4)
    for t in range(x.shape[1]):
        h = torch.tanh(m.head(h) + x[:, t])
        there.append(h)
    for t in range(x.shape[1] - 1, -1, -1):
        k = torch.sigmoid(m.head(k) * x[:, t])
        back.append(k)
    back.reverse()
    return torch.cat([torch.stack(there, 1), torch.stack(back, 1)], -1)


def kept_dimension(m: Any, x: Tensor) -> Any:
    h, out = x.new_zeros(x.shape[0], 1, 4), []
    for t in range(x.shape[1]):
        h = torch.tanh(m.head(h) + x[:, t : t + 1])
        out.append(h)
    return torch.cat(out, 1)


def without_the_first(m: Any, x: Tensor) -> Any:
    """Teacher forcing: each step reads the element before."""
    h, out = x[:, 0], [x[:, 0]]
    for t in range(1, x.shape[1]):
        h = m.gru(x[:, t - 1], h)
        out.append(h)
    return torch.stack(out, 1)


def written_rows(m: Any, x: Tensor) -> Any:
    h, out = x.new_zeros(x.shape[0], 4), torch.zeros_like(x)
    for t in range(x.shape[1]):
        h = m.gru(x[:, t], h)
        out[:, t] = h * 2
    return out


def losses(m: Any, x: Tensor) -> Any:
    h, loss = x.new_zeros(x.shape[0], 4), x.new_zeros(())
    for t in range(x.shape[1] - 1):
        h = m.gru(x[:, t], h)
        loss = loss + (m.head(h) - x[:, t + 1]).square().mean()
    return loss


def two_layers(m: Any, x: Tensor) -> Any:
    h = k = c = x.new_zeros(x.shape[0], 4)
    for t in range(x.shape[1]):
        h = m.gru(x[:, t], h)
        k, c = m.cell(h, (k, c))
    return k, h


def first_without_state(m: Any, x: Tensor) -> Any:
    h, out = None, []
    for t in range(x.shape[1]):
        h = m.head(x[:, t]) if h is None else torch.tanh(m.head(x[:, t]) + h)
        out.append(h)
    return torch.stack(out, 1)


def no_state(m: Any, x: Tensor) -> Any:
    return torch.stack([m.head(x[:, t]).tanh() for t in range(x.shape[1])], 1)


def in_place_inside(m: Any, x: Tensor) -> Any:
    h, out = x.new_zeros(x.shape[0], 4), []
    for t in range(x.shape[1]):
        y = m.head(h) + x[:, t]
        y.mul_(2).clamp_(-1, 1)
        h = y.tanh()
        out.append(y)
    return torch.stack(out, 1)


def detached(m: Any, x: Tensor) -> Any:
    """Truncated backpropagation, and statistics without gradients."""
    h, mean = x.new_zeros(x.shape[0], 4), x.new_zeros(4)
    for t in range(x.shape[1]):
        h = m.gru(x[:, t], h.detach())
        mean = 0.9 * mean + 0.1 * h.detach().mean(0)
    return h, mean


def split_rows(m: Any, x: Tensor) -> Any:
    """As pytorch/examples' time_sequence_prediction: several states, each of zeros."""
    h, c, k, d = (torch.zeros(x.shape[0], 4) for _ in range(4))
    out = []
    for row in x.split(1, dim=1):
        h, c = m.cell(row.squeeze(1), (h, c))
        k, d = m.cell(h, (k, d))
        out.append(k)
    return torch.stack(out, 1)


def iterated(m: Any, x: Tensor) -> Any:
    h, out = x.new_zeros(x.shape[0], 4), []
    for _, row in enumerate(x.transpose(0, 1)):
        h = m.gru(row, h)
        out.append(h)
    return torch.stack(out, 1)


VARY = (
    stacked,
    split_rows,
    iterated,
    only_the_last,
    backwards,
    both_ways,
    kept_dimension,
    without_the_first,
    written_rows,
    losses,
    two_layers,
    first_without_state,
    no_state,
    in_place_inside,
    detached,
)
"""Loops over a length that may vary."""


def above_a_length(m: Any, x: Tensor) -> Any:
    y = no_state(m, x)
    return y * 2 if x.shape[1] > 50 else y


def fewer_of_many(m: Any, x: Tensor) -> Any:
    return no_state(m, x).topk(max(1, x.shape[1] // 10), dim=1)[0]


def below_a_length(m: Any, x: Tensor) -> Any:
    y = no_state(m, x)
    return y[:, 2:] if x.shape[1] > 3 else y


def detached_at_times(m: Any, x: Tensor) -> Any:
    h = x.new_zeros(x.shape[0], 4)
    for t in range(x.shape[1]):
        h = m.gru(x[:, t], h.detach() if t % 20 == 0 else h)
    return h


OTHERWISE = (above_a_length, fewer_of_many, below_a_length, detached_at_times)
"""Loops of models that use the length in another way, too. The graphs of two near lengths are equal."""


def euler(m: Any, x: Tensor) -> Any:
    h = x[:, 0]
    for _ in range(LONG):
        h = h + 0.1 * torch.tanh(m.head(h))
    return h


def every_state_is_a_result(m: Any, x: Tensor) -> Any:
    h, out = x[:, 0], []
    for t in range(x.shape[1]):
        h = m.gru(x[:, t], h)
        out.append(h)
    return out, h


FIXED = (euler, every_state_is_a_result)
"""Loops of a fixed number of iterations."""


def writes_to_its_state(m: Any, x: Tensor) -> Any:
    h = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        h += m.head(x[:, t])
    return h


def shifts_its_state(m: Any, x: Tensor) -> Any:
    h, flags = x[:, 0], torch.ones(4, dtype=torch.int64)
    for t in range(x.shape[1]):
        flags <<= 1
        h = m.gru(x[:, t], h) + flags.clone() * 1e-6
    return h


def writes_to_the_argument(m: Any, x: Tensor) -> Any:
    y = x * 1
    h = y[:, 0].clone()
    for t in range(x.shape[1]):
        y[:, t] = m.head(h)
        h = y.sum(1).tanh()
    return y


def views_of_the_argument(m: Any, x: Tensor) -> Any:
    h, out = x[:, 0], []
    for t in range(x.shape[1]):
        row = x[:, t]
        h = m.gru(row, h)
        out.append(row)
    return out, h


def two_results_of_one_memory(m: Any, x: Tensor) -> Any:
    h, out = x[:, 0], []
    for t in range(x.shape[1]):
        h = m.gru(x[:, t], h)
        out += [h, h.view(-1)]
    return out


def reads_two_steps_back(m: Any, x: Tensor) -> Any:
    h = [x[:, 0], x[:, 1]]
    for t in range(2, x.shape[1]):
        h.append(torch.tanh(m.head(h[-1]) + h[-2] * x[:, t]))
    return torch.stack(h, 1)


def other_constants(m: Any, x: Tensor) -> Any:
    h = x[:, 0]
    for t in range(x.shape[1]):
        h = torch.tanh(m.head(h) * (t + 1) + x[:, t])
    return h


def with_dropout(m: Any, x: Tensor) -> Any:
    h = x[:, 0]
    for t in range(x.shape[1]):
        h = torch.tanh(nn.functional.dropout(m.head(h), 0.5) + x[:, t])
    return h


UNROLLED = (
    writes_to_its_state,
    shifts_its_state,
    writes_to_the_argument,
    views_of_the_argument,
    two_results_of_one_memory,
    reads_two_steps_back,
    other_constants,
    with_dropout,
)
"""Loops that are no scan stay as they are."""


def outcome(model: Any, x: Tensor) -> list[Tensor]:
    """Results and gradients, with strides of the results."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    torch.manual_seed(0)
    results = torch.utils._pytree.tree_leaves(model(x * 1))
    sum((result * (i + 1)).sin().sum() for i, result in enumerate(results)).backward()
    gradients = [p.grad for _, p in sorted(model.named_parameters()) if p.grad is not None]
    return [*results, x.grad, *gradients]  # type: ignore[list-item]


def bodies(path: Path) -> list[list[str]]:
    """The operators of the subgraphs of both passes."""
    with Bundle.open(path) as bundle:
        method = bundle.program.methods["train"]
        graphs = [bundle.graph(method.forward), bundle.graph(method.backward.graph)]  # type: ignore[union-attr]
    return [[node.op for node in body.nodes] for graph in graphs for body in graph.subgraphs.values()]


def built(walk: Any, x: Tensor, path: Path, **options: Any) -> tuple[nn.Module, Any, int]:
    """The model, its bundle, and how many scans its forward has."""
    torch.manual_seed(1)
    model = Cells(walk)
    aotpack.build(
        copy.deepcopy(model), (x.clone().requires_grad_(),), out=path, methods=("train",), **{"targets": ("portable",), **options}
    )
    loaded = aotpack_loader.load(path, trust="all")
    with Bundle.open(path) as bundle:
        graph = bundle.graph(bundle.program.methods["train"].forward)
    return model, loaded, sum(node.op == "higher_order.scan" for node in graph.nodes)


@pytest.mark.parametrize("walk", VARY, ids=lambda f: f.__name__)
def test_a_length_that_varies(walk: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, loaded, scans = built(walk, torch.randn(3, 7, 4), tmp_path / "m.aotpack", dynamic_shapes={"x": {1: TIME}})
    assert scans == (2 if walk is both_ways else 1)
    for length in (7, 3, 12, 41):
        x = torch.randn(3, length, 4)
        for mine, eager in zip(outcome(loaded, x), outcome(model, x), strict=True):
            torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
            assert (mine.stride(), mine.requires_grad) == (eager.stride(), eager.requires_grad)


@pytest.mark.parametrize("walk", [written_rows, first_without_state, *FIXED, *UNROLLED], ids=lambda f: f.__name__)
def test_a_fixed_length(walk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aotpack.capture.dynamo.LEAST", LONG - 2)
    torch.manual_seed(0)
    x = torch.randn(3, LONG, 4)
    model, loaded, scans = built(walk, x, tmp_path / "m.aotpack")
    assert scans == (int(walk not in UNROLLED))
    for mine, eager in zip(outcome(loaded, x), outcome(model, x), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
        assert mine.stride() == eager.stride()


def test_batch_and_length_vary_in_native_code(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"x": {0: Dim("batch", min=1, max=64), 1: TIME}}
    model, loaded, _ = built(stacked, torch.randn(3, 7, 4), tmp_path / "m.aotpack", dynamic_shapes=sizes, targets=("cpu",))
    for batch, length in ((3, 7), (5, 30), (1, 2)):
        x = torch.randn(batch, length, 4)
        for mine, eager in zip(outcome(loaded, x), outcome(model, x), strict=True):
            torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("walk", OTHERWISE, ids=lambda f: f.__name__)
def test_a_length_that_is_used_otherwise_is_refused(walk: Any, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="the model fixes it at 7"):
        built(walk, torch.randn(3, 7, 4), tmp_path / "m.aotpack", dynamic_shapes={"x": {1: TIME}})


def scores(m: Any, x: Tensor) -> Any:
    """The backward needs the batch's size: of a batched product, and of what ``gather`` reads."""
    h, out = x[:, 0], []
    for t in range(1, x.shape[1]):
        best = h.argmax(1, keepdim=True)
        h = torch.logsumexp(h.unsqueeze(2) + m.head.weight + x[:, t].unsqueeze(1), 1)
        out.append(h.gather(1, best).squeeze(1) + (x @ h.unsqueeze(2)).sum((1, 2)))
    return torch.stack(out, 1)


def test_the_backward_of_a_loop_needs_a_size_that_varies(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"x": {0: Dim("batch", min=2, max=64), 1: TIME}}
    model, loaded, scans = built(scores, torch.randn(3, 7, 4), tmp_path / "m.aotpack", dynamic_shapes=sizes)
    assert scans == 1
    for batch, length in ((3, 7), (5, 30), (2, 2)):
        x = torch.randn(batch, length, 4)
        for mine, eager in zip(outcome(loaded, x), outcome(model, x), strict=True):
            torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)


def test_a_number_that_a_loop_carries_is_not_copied() -> None:
    """Only tensors that a ``while_loop`` carries and captures are."""
    graph = torch.fx.Graph()
    count, x = graph.placeholder("count"), graph.placeholder("x")
    count.meta["example_value"], x.meta["example_value"] = 3, torch.zeros(2)
    loop = graph.call_function(torch.ops.higher_order.while_loop, (None, None, (count, x), (count, x)))
    graph.output(loop)
    copy_captured_carries(torch.fx.GraphModule({}, graph))
    assert loop.args[2][0] is count  # type: ignore[index]
    assert loop.args[2][1].target == "clone"  # type: ignore[index,union-attr]


def encoder_and_decoder(m: Any, x: Tensor) -> Any:
    """The second loop starts with the state that the first one left."""
    h, out = x.new_zeros(x.shape[0], 4), []
    for t in range(x.shape[1]):
        h = m.gru(x[:, t], h)
    for t in range(x.shape[1]):
        h = torch.tanh(m.head(h) + x[:, t])
        out.append(h)
    return torch.stack(out, 1)


def test_a_loop_starts_with_what_another_left(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, loaded, scans = built(encoder_and_decoder, torch.randn(3, 7, 4), tmp_path / "m", dynamic_shapes={"x": {1: TIME}})
    assert scans == 2
    for length in (7, 12):
        x = torch.randn(3, length, 4)
        torch.testing.assert_close(outcome(loaded, x), outcome(model, x), rtol=1e-4, atol=1e-5)


def test_graphs_without_loops_stay_as_they_are() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.zeros(2, 4)
    parts = graph.call_function(torch.chunk, (x, 2))
    parts.meta["example_value"] = torch.zeros(2, 4).chunk(2)
    graph.output(graph.call_function(operator.getitem, (parts, 1)))
    before = str(graph)
    assert roll(torch.fx.GraphModule({}, graph), 2) == 0
    assert str(graph) == before


def test_steps_copy_only_what_they_return(tmp_path: Path) -> None:
    """Weights are not copied in each step, nor are the parts of a tensor that a cell writes."""
    built(only_the_last, torch.randn(3, 7, 4), tmp_path / "m", dynamic_shapes={"x": {1: TIME}})
    forward, backward = bodies(tmp_path / "m")
    assert {"aten.t.default", "aten.split.Tensor"} < {*forward}
    assert not {"aten.t_copy.default", "aten.split_copy.Tensor", "aten.slice_scatter.default"} & {*forward, *backward}
    assert [op for op in backward if op.endswith("_copy.default")] == []


class Turning(nn.Module):
    """Returns views of what a step computes, and of its operands."""

    def forward(self, x: Tensor) -> Any:
        def step(state: Tensor, row: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            turned = (state @ row).t()
            return turned.sin().t().clone(), (turned.t().view(4, 4).clone(), row.t().clone())

        return scan(step, x[0] * 1, x)


def test_what_steps_return_keeps_its_layout(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(5, 4, 4, requires_grad=True)
    aotpack.build(Turning(), (x,), out=tmp_path / "m", targets=("portable",), methods=("train",))
    loaded = aotpack_loader.load(tmp_path / "m")
    expected, found = (torch.utils._pytree.tree_leaves(model(x)) for model in (Turning(), loaded))
    torch.testing.assert_close(found, expected, check_stride=True)
    mine, eager = (torch.autograd.grad(sum(r.sin().sum() for r in results), x) for results in (found, expected))
    torch.testing.assert_close(mine, eager)


def test_few_iterations_stay(tmp_path: Path) -> None:
    assert built(stacked, torch.randn(3, 7, 4), tmp_path / "m.aotpack")[2] == 0
