"""Python values that a model keeps from call to call, and tensors told apart by what they are, under every front end.

Also functions of torch that look at values.
"""

from __future__ import annotations

import functools
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from devtools.harness import INFER, TRAIN, Call, Case, case, const, g, inputs, ints, module_case, t, together


@dataclass
class Counts:
    """An object with a number and a queue."""

    calls: int = 0
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=4))


class Keeps(nn.Module):
    """A module with Python values of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}
        self.log: list[int] = []
        self.memory: list[Tensor] = [torch.ones(3)]
        self.counts = Counts()


class Dictionary(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        self.seen["calls"] = self.seen.get("calls", 0) + 1
        return x * self.seen["calls"]


class Threshold(Keeps):
    """Goes another way after some calls."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen["calls"] = self.seen.get("calls", 0) + 1
        return x * (2 if self.seen["calls"] > 9 else 3)


class AnObject(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        self.counts.calls += 1
        return x * self.counts.calls


class Length(Keeps):
    """Reads how long a list has grown."""

    def forward(self, x: Tensor) -> Tensor:
        self.log.append(x.shape[0])
        return x * len(self.log)


class Queue(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        self.counts.recent.append(1)
        return x * sum(self.counts.recent)


class Memory(Keeps):
    """A list holds the last result."""

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.memory[0]
        self.memory[0] = y.detach()
        return y


class OnClass(Keeps):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        type(self).calls += 1
        return x * type(self).calls


class LogsOnly(Keeps):
    """Writes down what it does not read."""

    def forward(self, x: Tensor) -> Tensor:
        self.log.append(x.shape[0])
        return x * 2


COUNTED = 0


def a_global(x: Tensor) -> Tensor:
    global COUNTED
    COUNTED += 1
    return x * COUNTED


class CallsOne(nn.Module):
    """Calls a function that counts its calls in a global."""

    def forward(self, x: Tensor) -> Tensor:
        return a_global(x)


SEEN: list[int] = []


class LengthOfGlobal(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(1)
        return x * len(SEEN)


class GlobalLogOnly(nn.Module):
    """Writes to a global that nothing reads."""

    def forward(self, x: Tensor) -> Tensor:
        SEEN.append(1)
        return x * 2


def counting() -> Any:
    calls = 0

    def call(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return x * calls

    return call


def in_a_set(x: Tensor, y: Tensor) -> Tensor:
    return x * len({x, y})


def keys_of_a_dictionary(x: Tensor, y: Tensor) -> Tensor:
    return x * {x: 2.0, y: 3.0}[x]


def by_id(x: Tensor, y: Tensor) -> Tensor:
    return x * (2.0 if id(x) == id(y) else 3.0)


def the_same(generator: torch.Generator) -> tuple[Any, ...]:
    x = torch.randn(3, generator=generator).requires_grad_()
    return x, x


KEPT = {
    "a number in a dictionary": Dictionary,
    "a number in a dictionary, read after some calls": Threshold,
    "a number in an object": AnObject,
    "the length of a list": Length,
    "a queue": Queue,
    "a tensor in a list": Memory,
    "a number of the class": OnClass,
    "a global of a function that it calls": CallsOne,
    "the length of a global list": LengthOfGlobal,
}
FUNCTIONS = {"a global": a_global, "a variable of a closure": counting()}
IDENTITY = {"in a set": in_a_set, "as keys of a dictionary": keys_of_a_dictionary, "by id": by_id}


def of(front_end: str) -> list[Case]:
    """The cases of this page under one front end."""
    options: dict[str, Any] = {"front_ends": (front_end,)}
    another_pattern = Call(2, inputs=together(the_same), refused="the same tensor")
    return [
        *(module_case(f"Python state, {front_end}: {name}", kind, g(3), **options) for name, kind in KEPT.items()),
        *(case(f"Python state, {front_end}: {name}", function, g(3), **options) for name, function in FUNCTIONS.items()),
        module_case(f"Python state, {front_end}: a list that nothing reads", LogsOnly, t(3), calls=(TRAIN, TRAIN), **options),
        module_case(
            f"Python state, {front_end}: a global that nothing reads", GlobalLogOnly, t(3), calls=(TRAIN, TRAIN), **options
        ),
        *(
            case(
                f"identity, {front_end}: tensors told apart {name}",
                function,
                g(3),
                g(3),
                calls=(TRAIN, another_pattern, Call(3, inputs=inputs(g(3), g(3)))),
                **options,
            )
            for name, function in IDENTITY.items()
        ),
    ]


def covariances(x: Tensor) -> Any:
    return torch.cov(x), torch.cov(x[0]), torch.cov(x, correction=0), torch.corrcoef(x)


def weighted_covariances(x: Tensor, times: Tensor, y: Tensor) -> Any:
    weights = y.exp()
    return x.cov(fweights=times, aweights=weights), x.cov(fweights=times), x.cov(aweights=weights, correction=2)


class Gaussian(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.loss = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.GaussianNLLLoss()

    def forward(self, x: Tensor) -> Tensor:
        return self.loss(self.norm(self.layer(x)), x, x.exp())


def gaussian(x: Tensor, y: Tensor, z: Tensor) -> Any:
    return F.gaussian_nll_loss(x, y, z.exp()), F.gaussian_nll_loss(x, y, z.exp()[:, :1], full=True, reduction="none")


def gaussian_of_small_variances(x: Tensor, y: Tensor, z: Tensor) -> Any:
    """Variances below its ``eps`` are clamped, and their gradients are not."""
    return F.gaussian_nll_loss(x, y, (z * 20).exp())


def counts(x: Tensor) -> Any:
    edges = torch.tensor([-1.0, 0.0, 1.0])
    return torch.histogram(x, 4), torch.histogram(x, edges), torch.histogramdd(x[:, :2], [3, 4]), torch.geqrf(x)


def ctc(x: Tensor, targets: Tensor, lengths: list[int]) -> Tensor:
    """Lengths as lists, as speech recognition passes them."""
    return F.ctc_loss(x.log_softmax(-1), targets, input_lengths=[5, 4], target_lengths=lengths)


class Cached(nn.Module):
    """The first call fills a cache that is not the module's own, as transformers' position embeddings do."""

    def forward(self, x: Tensor) -> Tensor:
        return x * (arange(3) if torch.compiler.is_compiling() else scales(self, 3))


def arange(count: int) -> Tensor:
    return torch.arange(1.0, count + 1)


@functools.lru_cache(maxsize=1)
def scales(module: nn.Module, count: int) -> Tensor:
    return arange(count)


def dimensions_by_a_tensor(x: Tensor) -> Tensor:
    return x.sin().sum(torch.arange(1, x.dim()).tolist()) * torch.linspace(0, 1, 3)[1].item()


def branch_on_a_constant(x: Tensor) -> Tensor:
    return x * 2 if torch.equal(torch.arange(2), torch.tensor([0, 1])) and torch.tensor([0, 1]).any() else x


def constant_written_by_a_view(x: Tensor) -> Tensor:
    dims = torch.arange(2)
    dims.narrow(0, 0, 1).fill_(1)
    return x.sum(dims[:1].tolist())


def causal_mask(size: int) -> Tensor:
    return torch.triu(torch.full((size, size), float("-inf")), diagonal=1)


def branch_on_a_mask(x: Tensor) -> Tensor:
    other = torch.zeros(3, 3).masked_fill(torch.ones(3, 3, dtype=torch.bool).tril().logical_not(), float("-inf"))
    return x * 2 if bool((causal_mask(3).contiguous() == other).all()) else x


class Decoding(nn.Module):
    """``nn.TransformerDecoder`` reads whether its mask is causal."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 16, 0.0, batch_first=True), 1)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        result: Tensor = self.decoder(x, memory, tgt_mask=causal_mask(x.shape[1]))
        return result


CASES: list[Case] = [*of("dynamo"), *of("export"), *of("trace")]
CASES += [
    module_case("values: a tensor from a cache that the first call fills", Cached, g(2, 3), front_ends=("export",)),
    *(
        case(f"values: {name}, {end}", function, g(3, 5), g(3, 5), g(3, 5), front_ends=(end,))
        for name, function in (
            ("gaussian_nll_loss", gaussian),
            ("gaussian_nll_loss of small variances", gaussian_of_small_variances),
        )
        for end in ("export", "trace")
    ),
    case("values: covariances", covariances, g(3, 5)),
    case("values: CTC of lists of lengths", ctc, g(5, 2, 6), ints(2, 3), const([3, 2])),
    case("values: covariances, complex", covariances, g(3, 5, dtype=torch.complex64)),
    case("values: covariances, dynamic", covariances, g(3, 5), dynamic_shapes={"x": {1: torch.export.Dim("size")}}),
    module_case("values: GaussianNLLLoss", Gaussian, t(3, 4), calls=(TRAIN, INFER, Call(3, grad=False))),
    case("values: histograms, and a decomposition without gradients", counts, t(3, 5)),
    case("values: covariances, of one observation", lambda x: x[:, :1].cov(), t(3, 5)),
    *(
        case(f"values: {name}, {target}", function, g(3, 5), *specs, targets=(target,))
        for target in ("portable", "cpu")
        for name, function, *specs in (
            ("weighted covariances", weighted_covariances, ints(5), g(5)),
            ("gaussian_nll_loss", gaussian, g(3, 5), g(3, 5)),
        )
    ),
]
CASES += [
    case(f"constants: {function.__name__}, {end}", function, g(2, 3), front_ends=(end,), calls=(TRAIN,), methods=("train",))
    for function in (dimensions_by_a_tensor, branch_on_a_constant, constant_written_by_a_view, branch_on_a_mask)
    for end in ("export", "trace")
]
CASES += [module_case("constants: a decoder with a causal mask", Decoding, g(2, 3, 8), g(2, 5, 8))]
