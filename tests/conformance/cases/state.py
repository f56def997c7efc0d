"""State and random numbers: tied weights, BatchNorm, frozen parameters, dropout."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aotpack_loader.errors import ModeError
from devtools.harness import TRAIN, Call, Case, case, g, ints, module_case, t


class Tied(nn.Module):
    """Embedding and output layer share their weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, i: Tensor) -> Tensor:
        return self.head(self.embed(i))


class OwnData(nn.Module):
    """Moves its weight to where it is, as losses of pytorch-metric-learning do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.arange(12.0).reshape(3, 4))
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = self.weight.data.to(x.device, x.dtype)
        self.scale.data = self.scale
        return x @ self.weight * self.scale


class TiedModule(nn.Module):
    """The same layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())


class TiedTransposed(nn.Module):
    """Two parameters over one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 4))
        self.back = nn.Parameter(self.weight.detach().t())

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight @ self.back


class BufferOfParameter(nn.Module):
    """A buffer that shares memory with a parameter, unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.register_buffer("view", self.weight.detach()[:2])

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.view.sum()


class Frozen(nn.Module):
    """The first layer is frozen at build."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3).requires_grad_(False)
        self.second = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


class Free(Frozen):
    """Nothing is frozen at build."""

    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(True)


class Transient(nn.Module):
    """Buffers: one not in the state dict, one of integers, one None."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 1.0]), persistent=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("nothing", None)

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        return x * self.mask * self.count


class Masked(nn.Module):
    """Keeps a part of its weight as it is by a hook on the gradient, which the parameter has and the graphs have not."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))
        self.weight.register_hook(self.keep_first)

    @staticmethod
    def keep_first(grad: Tensor) -> Tensor:
        return grad * torch.tensor([0.0, 1.0, 1.0])

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


class TrainedBuffer(nn.Module):
    """A buffer that requires a gradient, and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("trained", torch.ones(3).requires_grad_())
        self.register_buffer("fixed", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.trained * self.fixed


def gradient_of_buffer(model: Any, args: Any, kwargs: Any) -> Any:
    model(*args).sum().backward()
    return model.trained.requires_grad, model.trained.grad, model.fixed.requires_grad, args[0].grad


class NoState(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2


class Unused(nn.Module):
    """A parameter the forward does not touch."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Parameter(torch.randn(3))
        self.unused = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.used


class Odd(nn.Module):
    """Parameters that are views, transposed, empty, of another type."""

    def __init__(self) -> None:
        super().__init__()
        self.transposed = nn.Parameter(torch.randn(4, 3).t())
        self.scalar = nn.Parameter(torch.tensor(2.0))
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.bf16 = nn.Parameter(torch.randn(3).bfloat16())
        self.f64 = nn.Parameter(torch.randn(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.transposed * self.scalar + self.empty.sum() + (self.bf16 * self.f64).sum().float()


class SingleElements(nn.Module):
    """A single element may lie any step apart from the next."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4)[::4])
        self.register_buffer("shift", torch.arange(4.0)[::2][:1])
        self.constant = torch.arange(9.0)[::3][1:2]

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight + self.shift * self.constant


class Named(nn.Module):
    """Parameters and a submodule with names like those that the loaded module uses itself."""

    def __init__(self) -> None:
        super().__init__()
        self.program = nn.Parameter(torch.randn(3))
        self._aotpack_calls = nn.Parameter(torch.randn(3))
        self._aotpack_slots = nn.Parameter(torch.randn(3))
        self.modes = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.modes(x) * self.program + self._aotpack_calls * self._aotpack_slots


class NamedAotpack(nn.Module):
    """A parameter with the name under which the loaded module tells how it was loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.aotpack = nn.Parameter(torch.randn(3))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.aotpack


class ParameterContainers(nn.Module):
    """ParameterList, ParameterDict, names with digits."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.ParameterList([nn.Parameter(torch.randn(3)) for _ in range(2)])
        self.named = nn.ParameterDict({"a b": nn.Parameter(torch.randn(3))})
        self.layers = nn.ModuleDict({"1": nn.Linear(3, 3)})

    def forward(self, x: Tensor) -> Tensor:
        return self.layers["1"](x) * self.items[0] + self.items[1] * self.named["a b"]


class ReadsAnothersMode(nn.Module):
    """Reads the mode of a module that does not read it itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (2 if self.layer.training else 3)


def other_mode_of_layer(model: Any, args: Any, kwargs: Any) -> Any:
    """The bundle was built for the layer's mode, and says so."""
    model.layer.eval()
    try:
        result = model(*args)
    except ModeError as error:
        return "layer: was in train() when the bundle was built" in str(error)
    finally:
        model.layer.train()
    return torch.allclose(result, model(*args) * 1.5)


def compiled_part() -> nn.Module:
    return nn.Sequential(torch.compile(nn.Linear(3, 3), backend="eager"), nn.ReLU())  # type: ignore[arg-type]


class ModeDependent(nn.Module):
    """Code that looks at ``self.training``."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.training else x * 3


def batch_norm_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))


def freeze_first(model: Any) -> None:
    model.first.requires_grad_(False)


def unfreeze_first(model: Any) -> None:
    model.first.requires_grad_(True)


def freeze_all(model: Any) -> None:
    model.requires_grad_(False)


def double_weights(model: Any) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(2)


def new_state(model: Any) -> None:
    model.load_state_dict({name: torch.full_like(value, 0.5) for name, value in model.state_dict().items()})


def assigned_state(model: Any) -> None:
    model.load_state_dict({n: torch.full_like(v, 0.25) for n, v in model.state_dict().items()}, assign=True)


def replace_parameter(model: Any) -> None:
    model.second.weight = nn.Parameter(torch.full((2, 3), 0.1))


def replace_data(model: Any) -> None:
    model.second.weight.data = torch.full((2, 3), 0.3)


def to_double(model: Any) -> None:
    model.double()


def drop(p: float) -> Any:
    return lambda x: F.dropout(x, p, True)


def keep_rate_and_scale(model: Any, args: Any, kwargs: Any) -> Any:
    """Share kept within five standard deviations, survivors scaled, gradient equal to the mask."""
    x = torch.ones(20000, requires_grad=True)
    y = model(x)
    y.sum().backward()
    kept = (y != 0).float().mean().item()
    assert x.grad is not None
    return abs(kept - 0.75) < 0.016, y.max(), torch.equal(x.grad, y.detach())


def same_seed(model: Any, args: Any, kwargs: Any) -> Any:
    """Equal seeds give equal draws; another seed, and no seed, others."""
    draws = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        draws.append(model(*args).detach())
    draws.append(model(*args).detach())
    return torch.equal(draws[0], draws[1]), torch.equal(draws[1], draws[2]), torch.equal(draws[2], draws[3])


def generator_moves(model: Any, args: Any, kwargs: Any) -> Any:
    before = torch.get_rng_state()
    model(*args)
    return torch.equal(before, torch.get_rng_state())


def state_after(model: Any, args: Any, kwargs: Any) -> Any:
    model(*args).sum().backward()
    return torch.rand(3)


class Dropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.layer(F.dropout(x, 0.5, self.training)), 0.3, self.training)


def dropout_then_transposed(x: Tensor, weight: Tensor) -> Tensor:
    return F.dropout(F.linear(x, weight), 0.5).transpose(1, 2)


def random_in_model(x: Tensor) -> Any:
    return x + torch.rand(3), torch.randn_like(x), torch.randint(0, 9, (2,)), torch.bernoulli(x.sigmoid())


class Counter(nn.Module):
    """A Python number that changes from call to call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


class TwiceAndByHand(nn.Module):
    """One batch norm called twice, and one whose statistics the model also writes itself."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.clamped = nn.BatchNorm1d(3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        self.clamped.running_var.clamp_(0.5, 2.0)
        return self.clamped(self.twice(self.twice(x) * 2))


class TiedNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm1d(3)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) + 1)


class SharedBuffers(nn.Module):
    """A buffer and a part of it; the whole is written to, the part is read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("whole", torch.zeros(6))
        self.register_buffer("part", self.whole[2:5])

    def forward(self, x: Tensor) -> Tensor:
        self.whole.add_(1)
        return x * self.part


COUNT = [0]


def count_calls(x: Tensor) -> Tensor:
    COUNT[0] += 1
    return x * COUNT[0]


class Dictionary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}

    def forward(self, x: Tensor) -> Tensor:
        self.seen["calls"] = self.seen.get("calls", 0) + 1
        return x * self.seen["calls"]


class PlainMemory(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory = torch.ones(3)

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.memory
        self.memory = y.detach()
        return y


class SetsUp(nn.Module):
    """Notes at its first call which kind of loss it is asked for, on an object that is no module, as transformers' heads do."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(kind=None)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        if self.config.kind is None:
            self.config.kind = "classes" if labels.dtype == torch.int64 else "numbers"
        return F.cross_entropy(x, labels) if self.config.kind == "classes" else F.mse_loss(x, labels)


class FirstCallOnly(nn.Module):
    """Its first call alone scales; its second would not."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled = False

    def forward(self, x: Tensor) -> Tensor:
        y = x.sin() if self.scaled else x.sin() / 2
        self.scaled = True
        return y


class NotesOnly(nn.Module):
    """Changes what it does not read, and sets what it reads to what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.ready = 0, True

    def forward(self, x: Tensor) -> Tensor:
        self.last = x.shape[0]
        if self.ready:
            self.ready = True
        return x * 2


"""Eager's kernel writes the statistics without moving their version counters; one case is about that."""

THRICE = (Call(1), Call(2), Call(3, training=False, grad=False))


class MovedExperts(nn.Module):
    """A mixture of experts whose parts are moved, at every call, to where they are."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])

    def forward(self, x: Tensor) -> Tensor:
        self.experts.to(device=x.device, dtype=x.dtype)
        return sum(expert.to(x.device).float().cpu()(x) for expert in self.experts)  # type: ignore[return-value]


CASES: list[Case] = [
    *[
        module_case(f"state: modules are moved to where they are, {end}", MovedExperts, g(2, 3), front_ends=(end,))
        for end in ("dynamo", "trace")
    ],
    module_case("state: a parameter is assigned its own data", OwnData, g(2, 3), calls=THRICE),
    module_case("tied weights", Tied, ints(5, high=7), calls=THRICE),
    module_case("tied weights: the same layer twice", TiedModule, g(2, 3), calls=THRICE),
    module_case("tied weights: views of one storage", TiedTransposed, g(2, 3), calls=THRICE),
    module_case("tied weights: a buffer over a parameter", BufferOfParameter, g(2, 3), calls=THRICE),
    module_case("state: single elements with steps", SingleElements, lambda gen: torch.randn(4, generator=gen)[::4]),
    module_case("BatchNorm counters", lambda: nn.BatchNorm1d(3), g(4, 3), calls=(Call(1), Call(2), *THRICE)),
    module_case("BatchNorm: version counters of the statistics", lambda: nn.BatchNorm1d(3), g(4, 3)),
    module_case("BatchNorm: the same twice, and written by hand", TwiceAndByHand, g(4, 3), calls=THRICE),
    module_case(
        "InstanceNorm with running statistics", lambda: nn.InstanceNorm1d(3, track_running_stats=True), g(2, 3, 5), calls=THRICE
    ),
    module_case("tied weights: one batch norm under two names", TiedNorm, g(4, 3), calls=THRICE),
    module_case("tied weights: buffers over one storage, one written", SharedBuffers, g(3), calls=THRICE),
    module_case("BatchNorm counters, momentum None", lambda: nn.BatchNorm1d(3, momentum=None), g(4, 3), calls=THRICE),
    module_case("SyncBatchNorm in one process, momentum None", lambda: nn.SyncBatchNorm(3, momentum=None), g(4, 3), calls=THRICE),
    module_case(
        "BatchNorm counters, momentum None, by export",
        lambda: nn.Sequential(nn.BatchNorm2d(2, affine=False, momentum=None), nn.ReLU()),
        g(2, 2, 3, 3),
        calls=THRICE,
        front_ends=("export",),
    ),
    module_case(
        "BatchNorm without running statistics", lambda: nn.BatchNorm1d(3, track_running_stats=False), g(4, 3), calls=THRICE
    ),
    module_case("BatchNorm in a network", batch_norm_net, t(2, 2, 4, 4), calls=(Call(1), Call(2), *THRICE)),
    module_case(
        "BatchNorm: train without gradients",
        lambda: nn.BatchNorm1d(3),
        g(4, 3),
        calls=(Call(1, grad=False), TRAIN),
    ),
    module_case("frozen parameters", Frozen, g(2, 3), calls=THRICE),
    module_case("frozen parameters: after the build", Free, g(2, 3), calls=(TRAIN, Call(2, prepare=freeze_first), TRAIN)),
    module_case(
        "frozen parameters: all, after the build, and no input needs a gradient",
        Free,
        t(2, 3),
        calls=(TRAIN, Call(2, prepare=freeze_all)),
    ),
    module_case(
        "frozen parameters: unfrozen after the build",
        Frozen,
        g(2, 3),
        calls=(TRAIN, Call(2, prepare=unfreeze_first, refused="frozen")),
    ),
    module_case(
        "frozen parameters: unfrozen, but called without gradients",
        Frozen,
        g(2, 3),
        calls=(Call(2, training=False, grad=False, prepare=unfreeze_first),),
    ),
    module_case("state: not persistent, integers, None", Transient, g(3), calls=THRICE),
    module_case("state: a hook on a parameter", Masked, g(3)),
    module_case("state: a buffer that requires a gradient", TrainedBuffer, g(3), calls=(Call(1, act=gradient_of_buffer), TRAIN)),
    module_case("state: compiled by torch.compile", lambda: torch.compile(nn.Linear(3, 3), backend="eager"), g(2, 3)),
    module_case("state: a part is compiled by torch.compile", compiled_part, g(2, 3), calls=THRICE),
    module_case(
        "state: a part is compiled by torch.jit",
        lambda: nn.Sequential(torch.jit.trace(nn.Linear(3, 3), torch.ones(2, 3))),
        g(2, 3),
    ),
    module_case("state: none", NoState, g(3)),
    module_case("state: unused parameter", Unused, g(3)),
    module_case("state: odd parameters", Odd, t(2, 3)),
    module_case("state: names like the loaded module's own", Named, t(2, 3), calls=(TRAIN, TRAIN)),
    module_case("state: a name that the loaded module uses itself", NamedAotpack, t(2, 3)),
    module_case("state: ParameterList, ParameterDict, ModuleDict", ParameterContainers, g(2, 3)),
    module_case("state: changed in place before the call", Free, g(2, 3), calls=(Call(1, prepare=double_weights),)),
    module_case("state: load_state_dict", Free, g(2, 3), calls=(TRAIN, Call(2, prepare=new_state))),
    module_case("state: load_state_dict(assign=True)", Free, g(2, 3), calls=(TRAIN, Call(2, prepare=assigned_state))),
    module_case("state: a parameter replaced", Free, g(2, 3), calls=(Call(2, prepare=replace_parameter),)),
    module_case("state: a parameter's data replaced", Free, g(2, 3), calls=(Call(2, prepare=replace_data),)),
    module_case(
        "state: another element type is refused", Free, g(2, 3), calls=(Call(2, prepare=to_double, refused="no longer fit"),)
    ),
    module_case("state: a Python number that changes from call to call", Counter, g(3), calls=(Call(1), Call(2))),
    case("state: a global that changes from call to call", count_calls, g(3)),
    module_case("state: a dictionary that changes from call to call", Dictionary, g(3)),
    module_case("state: what a first call sets up", SetsUp, g(4, 3), ints(4, high=3)),
    module_case("state: a first call that does something else", FirstCallOnly, g(3)),
    module_case("state: a plain tensor that changes from call to call", PlainMemory, g(3)),
    module_case("state: Python values that no later call reads", NotesOnly, g(3)),
    module_case(
        "modes: code that looks at a layer's", ReadsAnothersMode, g(2, 3), calls=(Call(1, act=other_mode_of_layer), TRAIN)
    ),
    module_case("modes: code that looks at self.training", ModeDependent, g(3), calls=(*THRICE, Call(4, grad=False))),
    module_case(
        "RNG dropout: keep rate and scale", lambda: nn.Dropout(0.25), g(20000), calls=(Call(1, act=keep_rate_and_scale),)
    ),
    module_case("RNG dropout: same seed same numbers", lambda: nn.Dropout(0.5), g(64), calls=(Call(1, act=same_seed),)),
    module_case(
        "RNG dropout: eval draws nothing",
        lambda: nn.Dropout(0.5),
        t(8),
        calls=(Call(1, training=False, grad=False, act=generator_moves),),
    ),
    module_case("RNG dropout: eager's numbers under one seed", lambda: nn.Dropout(0.5), g(64), calls=(TRAIN,)),
    module_case(
        "RNG dropout: generator state after a step equals eager's",
        lambda: nn.Dropout(0.5),
        g(64),
        calls=(Call(1, act=state_after),),
    ),
    module_case("RNG dropout: two of them, eager's numbers under one seed", Dropout, g(3, 4), calls=THRICE),
    case("RNG dropout: functional, eager's numbers under one seed", drop(0.5), g(64), calls=(TRAIN,)),
    case("RNG dropout: its gradient has other strides than traced", dropout_then_transposed, g(2, 3, 4), g(4, 4), calls=(TRAIN,)),
    case("RNG dropout: p=0", drop(0.0), g(8), calls=(TRAIN,)),
    case("RNG dropout: p=1", drop(1.0), g(8), calls=(TRAIN,)),
    case("RNG: rand, randn_like, randint, bernoulli, eager's numbers under one seed", random_in_model, g(3)),
    case("RNG: alpha_dropout, eager's numbers under one seed", lambda x: F.alpha_dropout(x, 0.5, True), g(16), calls=(TRAIN,)),
    case("RNG: rrelu, eager's numbers under one seed", lambda x: F.rrelu(x, training=True), g(16), calls=(TRAIN,)),
    case(
        "RNG: attention dropout, eager's numbers under one seed",
        lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.5),
        g(1, 2, 4, 4),
        calls=(TRAIN,),
    ),
    case("RNG: gumbel_softmax, eager's numbers under one seed", lambda x: F.gumbel_softmax(x), g(4, 4), calls=(TRAIN,)),
]
