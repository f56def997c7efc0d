"""Autograd: tangents, hooks, retained graphs, in-place changes of saved tensors, modes, accumulation, second derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from aotpack.capture import FRONT_ENDS
from devtools.harness import TRAIN, Call, Case, case, g, ints, laid_out, module_case, n, t


class Mlp(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 4)
        self.second = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh())


class Two(nn.Module):
    """Two results that share a trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(3, 3)
        self.left = nn.Linear(3, 1)
        self.right = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        h = self.trunk(x).relu()
        return {"left": self.left(h), "right": self.right(h.sin())}


class Grad(nn.Module):
    """Changes gradient mode inside."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(3, 3)
        self.trained = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            h = self.frozen(x)
        return self.trained(h)


class Packs(nn.Module):
    """A recurrent layer over packed sequences."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        rows, _ = self.layer(nn.utils.rnn.pack_padded_sequence(x, [5, 3]))
        return nn.utils.rnn.pad_packed_sequence(rows)[0]


class EnableGrad(nn.Module):
    """Turns gradients on inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            return self.layer(x)


class EnableGradPartly(EnableGrad):
    """Gradients on for a part, and for one of two results."""

    def forward(self, x: Tensor) -> Any:
        h = x.sin()
        with torch.enable_grad():
            y = self.layer(h)
        return y, y * 2, y.detach(), h


class EnableGradInTraining(EnableGrad):
    """Gradients on in training mode only, which inference does not show."""

    def forward(self, x: Tensor) -> Any:
        with torch.set_grad_enabled(self.training or torch.is_grad_enabled()):
            return self.layer(x)


class AsksForGradients(EnableGrad):
    """Another result where gradients are off."""

    def forward(self, x: Tensor) -> Any:
        return self.layer(x) if torch.is_grad_enabled() else x * 2


class NoGradPartly(EnableGrad):
    """Gradients off for a part, then as before."""

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            scale = x.exp()
        return self.layer(x) * scale


class EnableGradViews(EnableGrad):
    def forward(self, x: Tensor) -> Any:
        with torch.enable_grad():
            y = self.layer(x)
            return y, y.view(-1)


def enabled(x: Tensor) -> Tensor:
    with torch.enable_grad():
        return x.exp()


@torch.inference_mode()
def encoded(x: Tensor) -> Tensor:
    return x.detach() * 2


def inference_inside(x: Tensor) -> tuple[Tensor, ...]:
    with torch.inference_mode():
        y = x * 2
        with torch.inference_mode(False):
            z = x * 3
    return y.clone(), z, encoded(x).clone() * x


class Autocast(nn.Module):
    """bfloat16 inside the model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.layer(x).relu()
        return self.out(h.float())


class AutocastOutput(Autocast):
    """A bfloat16 result."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.out(self.layer(x).relu())


class Triple(torch.autograd.Function):
    """A function whose gradient is wrong on purpose, so that a looked-through one is seen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * 3 * x


# ---------------------------------------------------------------- acts


def twice_retained(model: Any, args: Any, kwargs: Any) -> Any:
    loss = model(*args).square().sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return loss


def thrice_retained(model: Any, args: Any, kwargs: Any) -> Any:
    loss = model(*args).square().sum()
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    loss.backward()
    return loss


def twice_freed(model: Any, args: Any, kwargs: Any) -> Any:
    loss = model(*args).square().sum()
    loss.backward()
    loss.backward()


def by_autograd_grad(model: Any, args: Any, kwargs: Any) -> Any:
    leaves = [*args, *model.parameters()]
    return torch.autograd.grad(model(*args).square().sum(), leaves)


def by_autograd_grad_some(model: Any, args: Any, kwargs: Any) -> Any:
    return torch.autograd.grad(model(*args).square().sum(), [args[0]])


def by_autograd_grad_unused(model: Any, args: Any, kwargs: Any) -> Any:
    other = torch.ones(2, requires_grad=True)
    return torch.autograd.grad(model(*args).sum(), [other, args[0]], allow_unused=True)


def by_autograd_grad_batched(model: Any, args: Any, kwargs: Any) -> Any:
    y = model(*args)
    return torch.autograd.grad(y, args, torch.eye(y.numel()).view(-1, *y.shape), is_grads_batched=True)


def backward_inputs(model: Any, args: Any, kwargs: Any) -> Any:
    model(*args).sum().backward(inputs=[next(model.parameters())])


def parameter_hooks(model: Any, args: Any, kwargs: Any) -> Any:
    seen: list[Any] = []
    handles = [p.register_hook(lambda grad: (seen.append(grad.clone()), grad * 2)[1]) for p in model.parameters()]
    model(*args).sum().backward()
    for handle in handles:
        handle.remove()
    return sorted([float(grad.sum()) for grad in seen])


def one_key_for_all(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    """As multi-query attention takes its key: the gradient is added at an index, from tiles of two layouts."""
    key = x[..., [-2], :].squeeze(2)
    return (key.transpose(1, 2) * w).sum() + (key.sin() * v).sum()


def pooled_over_the_edge(x: Tensor) -> Tensor:
    """The last window has fewer elements than the others, and is as EfficientNet's larger than all there is."""
    rows = nn.functional.avg_pool2d(x * 1.5, 2, ceil_mode=True)
    whole = nn.functional.avg_pool2d(x.sin(), 7, ceil_mode=True)
    volumes = nn.functional.avg_pool3d(x.cos(), 2, ceil_mode=True)
    padded = nn.functional.avg_pool2d(x.exp(), (2,), (1,), (1,))
    return rows.sin().sum() + whole.cos().sum() + volumes.sin().sum() + padded.cos().sum()


def gradients_of_extremes(x: Tensor, y: Tensor) -> Any:
    """Of few elements, which compiled code computes one by one where it looks for the least, and as a vector elsewhere."""
    found = nn.functional.gelu(x).amin(-1), torch.erf(x + y).amin(-1), torch.lgamma(x.abs() + 0.1).amin(-1), (x / y).max()
    again = checkpoint(lambda x: nn.functional.gelu(x * 2).amin(-1) * x.sin().amax(-1), x, use_reentrant=False)
    return *found, again, torch.atan2(x, y).t().amin(0), torch.linalg.vector_norm(torch.erf(x * y), ord=float("inf"))


def written_into_expanded(x: Tensor, i: Tensor) -> Any:
    """Each row is another tensor's, in which one row is all of them."""
    rows = (x[:1] * 2).expand(4, -1)
    windows = (x[0] * 3).unfold(0, 3, 1)
    filled = rows.index_fill(0, i, 3.0), rows.index_put((i,), x, accumulate=True), windows.index_put((i[1:],), x[1:, :3].cos())
    return (
        rows.index_add(0, i, x),
        rows.index_copy(0, i[1:], x[1:].sin()),
        torch.zeros(1, 8).expand(4, -1).index_add(0, i, x),
        *filled,
    )


def spectrum(x: Tensor) -> Tensor:
    """Its gradient where the spectrum is zero is a complex number that compiled code must make."""
    return torch.fft.rfft(x).abs()


def resized_by_a_factor(x: Tensor) -> Any:
    """The height stays, or is doubled; the width does not: 3 * 1.3 and 3 * 2.3, 4 * 1.5."""
    nearest = [nn.functional.interpolate(x * 2, scale_factor=(factor, 1.5)) for factor in (1.3, 2.3)]
    linear = nn.functional.interpolate(x.sin(), scale_factor=(1.3, 1.5), mode="bilinear")
    exact = nn.functional.interpolate(x.cos(), scale_factor=(1.3, 1.5), mode="nearest-exact")
    lines = nn.functional.interpolate(x[0].exp(), scale_factor=1.2, mode="linear")
    return *nearest, linear, exact, lines


def accumulate_hooks(model: Any, args: Any, kwargs: Any) -> Any:
    seen: list[str] = []
    handles = [
        p.register_post_accumulate_grad_hook(lambda p, name=name: seen.append(name)) for name, p in model.named_parameters()
    ]
    model(*args).sum().backward()
    for handle in handles:
        handle.remove()
    return sorted(seen)


def output_hooks(model: Any, args: Any, kwargs: Any) -> Any:
    seen: list[Tensor] = []
    y = model(*args)
    y.register_hook(lambda grad: (seen.append(grad.clone()), grad * 3)[1])
    y.retain_grad()
    y.square().sum().backward()
    return seen, y.grad


def input_hooks(model: Any, args: Any, kwargs: Any) -> Any:
    seen: list[Tensor] = []
    args[0].register_hook(lambda grad: seen.append(grad.clone()))
    model(*args).sum().backward()
    return seen


def module_hooks(model: Any, args: Any, kwargs: Any) -> Any:
    handles = [
        model.register_forward_pre_hook(lambda module, given: (given[0] * 2,)),
        model.register_forward_hook(lambda module, given, result: result + 1),
        model.register_full_backward_hook(lambda module, inner, outer: tuple([grad * 2 for grad in inner])),
    ]
    y = model(*args)
    y.sum().backward()
    for handle in handles:
        handle.remove()
    return y


def saved_tensor_hooks(model: Any, args: Any, kwargs: Any) -> Any:
    """What is packed differs from eager; that it comes back unpacked does not."""
    packed: list[int] = []

    def pack(x: Tensor) -> Any:
        packed.append(x.numel())
        return x.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        y = model(*args)
    y.square().sum().backward()
    return len(packed) > 0


def saved_on_disk(model: Any, args: Any, kwargs: Any) -> Any:
    """Hooks that return something that is no tensor."""
    stored: list[Tensor] = []

    def pack(x: Tensor) -> int:
        stored.append(x.detach().clone())
        return len(stored) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda i: stored[i]):
        y = model(*args)
    y.square().sum().backward()
    return y


def save_on_cpu(model: Any, args: Any, kwargs: Any) -> Any:
    with torch.autograd.graph.save_on_cpu():
        y = model(*args)
    y.sum().backward()
    return y


def input_changed(model: Any, args: Any, kwargs: Any) -> Any:
    y = model(*args)
    with torch.no_grad():
        args[0].mul_(2)
    y.sum().backward()


def parameter_changed(model: Any, args: Any, kwargs: Any) -> Any:
    y = model(*args)
    with torch.no_grad():
        model.second.weight.mul_(2)
    y.sum().backward()


def unsaved_parameter_changed(model: Any, args: Any, kwargs: Any) -> Any:
    y = model(*args)
    with torch.no_grad():
        model.second.bias.mul_(2)
    y.sum().backward()
    return y


def output_changed(model: Any, args: Any, kwargs: Any) -> Any:
    y = model(*args)
    with torch.no_grad():
        y.mul_(2)
    y.sum().backward()
    return y


def transposed_tangent(model: Any, args: Any, kwargs: Any) -> Any:
    y = model(*args)
    y.backward(torch.arange(float(y.numel())).view(y.shape[1], y.shape[0]).t())


def expanded_tangent(model: Any, args: Any, kwargs: Any) -> Any:
    y = model(*args)
    y.backward(torch.tensor(1.5).expand_as(y))


def sliced_tangent(model: Any, args: Any, kwargs: Any) -> Any:
    y = model(*args)
    y.backward(torch.randn(y.shape[0] * 2, y.shape[1] * 2, generator=torch.Generator().manual_seed(1))[::2, ::2])


def tangent_not_aliased(model: Any, args: Any, kwargs: Any) -> Any:
    """The gradient passed in is the caller's own: it must not be written to."""
    y = model(*args)
    grad = torch.ones_like(y)
    y.backward(grad)
    return grad


def anomaly(model: Any, args: Any, kwargs: Any) -> Any:
    with torch.autograd.detect_anomaly(check_nan=True):
        y = model(*args)
        y.sum().backward()
    return y


def anomaly_nan(model: Any, args: Any, kwargs: Any) -> Any:
    with torch.autograd.detect_anomaly(check_nan=True):
        (model(*args) * float("nan")).sum().backward()


def several_forwards(model: Any, args: Any, kwargs: Any) -> Any:
    losses = [model(args[0] * scale).square().sum() for scale in (1.0, 2.0, 3.0)]
    sum(losses).backward()  # type: ignore[union-attr]
    return losses


def several_forwards_reversed(model: Any, args: Any, kwargs: Any) -> Any:
    losses = [model(args[0] * scale).square().sum() for scale in (1.0, 2.0, 3.0)]
    for loss in reversed(losses):
        loss.backward()
    return losses


def fed_back(model: Any, args: Any, kwargs: Any) -> Any:
    y = model(model(args[0]))
    y.sum().backward()
    return y


def accumulation(model: Any, args: Any, kwargs: Any) -> Any:
    for scale in (1.0, 2.0):
        model(args[0] * scale).sum().backward()


def zeroed(model: Any, args: Any, kwargs: Any) -> Any:
    model(*args).sum().backward()
    for p in model.parameters():
        p.grad = None
    model(*args).sum().backward()


def trained(optimizer: Callable[..., Any]) -> Callable[..., Any]:
    """Five steps."""

    def act(model: Any, args: Any, kwargs: Any) -> Any:
        opt = optimizer(model.parameters(), lr=0.1)
        losses = []
        for _ in range(5):
            opt.zero_grad()
            loss = model(*args).square().sum()
            loss.backward()
            opt.step()
            losses.append(loss.detach())
        return losses

    return act


def double_backward(model: Any, args: Any, kwargs: Any) -> Any:
    y = model(*args)
    (grad,) = torch.autograd.grad(y.square().sum(), args[0], create_graph=True)
    grad.square().sum().backward()


def create_graph_only(model: Any, args: Any, kwargs: Any) -> Any:
    y = model(*args)
    (grad,) = torch.autograd.grad(y.square().sum(), args[0], create_graph=True)
    return grad.detach()


def gradient_penalty_unused(model: Any, args: Any, kwargs: Any) -> Any:
    """create_graph, and then only a first derivative of the loss is used."""
    loss = model(*args).square().sum()
    loss.backward(create_graph=True)
    found = args[0].grad.detach().clone()
    for tensor in (args[0], *model.parameters()):
        tensor.grad = None
    return found


def checkpointed(model: Any, args: Any, kwargs: Any) -> Any:
    """The bundle inside a checkpoint of the caller's."""
    from torch.utils.checkpoint import checkpoint

    y = checkpoint(model, args[0], use_reentrant=False)
    y.sum().backward()
    return y


def on_threads(model: Any, args: Any, kwargs: Any) -> Any:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(lambda scale: model(args[0].detach() * scale).detach(), (1.0, 2.0, 3.0)))


def backward_of(model: Any, args: Any, kwargs: Any) -> Any:
    result = model(*args)
    first = result[0] if isinstance(result, tuple) else result
    first.square().sum().backward()
    return result


def deterministic(model: Any, args: Any, kwargs: Any) -> Any:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        y = model(*args)
        y.sum().backward()
    finally:
        torch.use_deterministic_algorithms(before)
    return y


def under_autocast(model: Any, args: Any, kwargs: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(*args)
    y.float().sum().backward()
    return y


def inferred_under_autocast(model: Any, args: Any, kwargs: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return model(*args)


def functional_call(model: Any, args: Any, kwargs: Any) -> Any:
    params = {name: (p.detach() * 2).requires_grad_() for name, p in model.named_parameters()}
    y = torch.func.functional_call(model, params, args)
    y.sum().backward()
    return y, [p.grad for p in params.values()]


def inference_mode(model: Any, args: Any, kwargs: Any) -> Any:
    with torch.inference_mode():
        y = model(*args)
    return y.clone()


def partly_with(path: str) -> dict[str, Any]:
    return {"grad_outputs": [path]}


def mlp(name: str, act: Any, **options: Any) -> Case:
    calls = options.pop("calls", (Call(1, act=act),))
    return module_case(f"autograd: {name}", Mlp, g(5, 3), calls=calls, **options)


MODES = tuple(Call(i, training=training, grad=grad) for i, (training, grad) in enumerate([(True, True), (False, False)]))
REFUSED_MODE = "has no method for"


def three(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x * y, x.sin(), y.cos()


def embed(x: Tensor, i: Tensor) -> Tensor:
    return F.embedding(i, x)


class HookedLayer(nn.Module):
    """A module with a backward hook."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.layer.register_full_backward_hook(lambda module, inner, outer: (inner[0] * 3,))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def hooked(x: Tensor) -> Tensor:
    y = x * 3
    y.register_hook(lambda gradient: gradient * 5)
    return y


def hooked_node(x: Tensor) -> Tensor:
    y = x * 3
    y.grad_fn.register_hook(lambda inner, outer: (inner[0] * 2, None))
    return y


def hooked_saving(x: Tensor) -> Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved * 2, lambda saved: saved):
        return x.sin()


OWN_GRADIENTS: dict[str, tuple[Any, str]] = {
    "autograd.Function": (lambda: Triple.apply, "calls the autograd.Function Triple"),
    "hook on a module": (HookedLayer, "BackwardHookFunction|reads grad_fn"),
    "hook on a tensor": (lambda: hooked, r"calls register_hook.*cases/autograd.py:\d+"),
    "hook on a node": (lambda: hooked_node, "reads grad_fn"),
}
"""Gradients that a model gives itself, and what is said where a front end would lose them."""


class ByLayout(torch.autograd.Function):
    """Its gradient depends on the layout of the gradient that it gets."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * (2 if gradient.is_contiguous() else 3)


class SquareOnce(torch.autograd.Function):
    """Its backward writes to a part of what its forward has saved."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        x[:1].mul_(2)
        return gradient * x


class CountsBackwards(nn.Module):
    """A buffer that is counted up by each backward."""

    class Count(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, count: Tensor) -> Tensor:
            ctx.save_for_backward(count)
            return x * 1

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
            (count,) = ctx.saved_tensors
            count.add_(1)
            return gradient * 1, None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.Count.apply(x, self.count)  # type: ignore[no-untyped-call,no-any-return]


class TellsNoneFromZeros(torch.autograd.Function):
    """Two results; the backward does something else if only the first has a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, first: Tensor | None, second: Tensor | None) -> Tensor | None:
        if second is None:
            return None if first is None else first * 2
        return second * 3 + 100 if first is None else first * 2 + second * 3 + 100


def tells_none(x: Tensor) -> tuple[Tensor, Tensor]:
    return TellsNoneFromZeros.apply(x)  # type: ignore[no-untyped-call,no-any-return]


def squared_once(x: Tensor) -> Tensor:
    return SquareOnce.apply(x)  # type: ignore[no-untyped-call,no-any-return]


WRITES = {
    "autograd: a backward writes to an argument that it saved": r"autograd\.py\W.*, in backward: x\[:1\]\.mul_.*writes in place"
}

LOST = {f"own gradients, export alone: {name}": message for name, (_, message) in OWN_GRADIENTS.items()}
LOST["own gradients: hooks on saved tensors"] = r"enters saved_tensors_hooks.*cases/autograd.py:\d+"


def pooled_at_random(x: Tensor) -> Tensor:
    return F.fractional_max_pool3d(x, 2, output_size=(3, 3, 3), _random_samples=torch.full((2, 2, 3), 0.3))


def speech(x: Tensor, labels: Tensor, lengths: Tensor) -> Any:
    """Losses of transcripts that are padded; the length of the longest depends on data."""
    steps = torch.full((2,), x.shape[0])
    by_tensors = F.ctc_loss(x.log_softmax(-1), labels + 1, steps, lengths + 1, blank=0, reduction="sum")
    return by_tensors, F.ctc_loss(x[:6].log_softmax(-1), labels[:, :2] + 1, [6, 5], [2, 1], reduction="none")


def speech_in_one_row(x: Tensor, labels: Tensor) -> Tensor:
    """As transformers' speech models do: where a label is 0 there is none."""
    given = labels > 0
    steps = torch.full((2,), x.shape[0])
    return F.ctc_loss(x.log_softmax(-1), labels.masked_select(given), steps, given.sum(-1), zero_infinity=True)


def least_squares(x: Tensor, y: Tensor) -> Any:
    return torch.linalg.lstsq(x, y), torch.linalg.lstsq(x, y, driver="gels"), torch.linalg.lstsq(x, y[:, 0]).solution


def ranks(x: Tensor, y: Tensor) -> Any:
    """There are residuals only of what has full rank."""
    found = torch.linalg.lstsq(torch.cat([x, x]), torch.cat([y, y]), driver="gelsd")
    return found.solution, found.residuals.detach(), found.rank, found.singular_values


def of_full_rank(x: Tensor) -> Any:
    left, values, right = torch.linalg.svd(x, full_matrices=False)
    return (left * values) @ right, values


def phases(x: Tensor) -> Tensor:
    """Eager's backward raises."""
    return torch.linalg.svd(x, full_matrices=False).U


AUTO = torch.export.Dim.AUTO

CASES: list[Case] = [
    *(
        module_case(f"own gradients, {name}: {kind}", make, g(2, 3), front_ends=ends, methods=("train",), calls=(TRAIN,))
        for kind, (make, _) in OWN_GRADIENTS.items()
        for name, ends in (("export and trace", ("export", "trace")), ("export alone", ("export",)))
    ),
    case("own gradients: hooks on saved tensors", hooked_saving, g(2, 3), methods=("train",), calls=(TRAIN,)),
    module_case("autograd: missing tangents, left only", Two, g(2, 3), **partly_with("out['left']")),
    module_case("autograd: missing tangents, right only", Two, g(2, 3), **partly_with("out['right']")),
    case("autograd: one output only, first", three, g(3), g(3), **partly_with("out[0]")),
    case("autograd: one output only, second", three, g(3), g(3), **partly_with("out[1]")),
    case("autograd: one output only, third", three, g(3), g(3), **partly_with("out[2]")),
    case("autograd: no gradient asked for", three, g(3), g(3), grad_outputs=[]),
    mlp("backward twice with retain_graph", twice_retained),
    mlp("backward three times with retain_graph", thrice_retained),
    mlp("backward twice without retain_graph (eager raises)", twice_freed),
    mlp("torch.autograd.grad", by_autograd_grad),
    mlp("torch.autograd.grad of some", by_autograd_grad_some),
    mlp("torch.autograd.grad, allow_unused", by_autograd_grad_unused),
    mlp("torch.autograd.grad, is_grads_batched", by_autograd_grad_batched),
    mlp("backward(inputs=...)", backward_inputs),
    mlp("hooks on parameters", parameter_hooks),
    case(
        "autograd: one key for all queries, cpu", one_key_for_all, g(2, 16, 6, 16), t(2, 16, 16), t(2, 16, 16), targets=("cpu",)
    ),
    *(
        case(f"autograd: average pooling over the edge, {target}", pooled_over_the_edge, g(2, 3, 5, 5), targets=(target,))
        for target in ("portable", "cpu")
    ),
    case(
        "autograd: writes into copies of expanded tensors, cpu",
        written_into_expanded,
        g(3, 8),
        lambda generator: torch.tensor([0, 1, 0]),
        targets=("cpu",),
    ),
    *(
        case(f"autograd: gradients of extremes, {target}", gradients_of_extremes, g(2, 3), t(2, 3), targets=(target,))
        for target in ("portable", "cpu")
    ),
    *(
        case(f"autograd: absolute values of a spectrum, {target}", spectrum, g(3, 10), targets=(target,))
        for target in ("portable", "cpu")
    ),
    *(
        case(f"autograd: resized by a factor, {target}", resized_by_a_factor, g(2, 3, 3, 4), targets=(target,))
        for target in ("portable", "cpu")
    ),
    mlp("hooks on parameters, post-accumulate", accumulate_hooks),
    mlp("hooks on outputs, retain_grad", output_hooks),
    mlp("hooks on inputs", input_hooks),
    mlp("hooks on the module", module_hooks),
    mlp("saved-tensor hooks", saved_tensor_hooks),
    mlp("saved-tensor hooks, packed to something else", saved_on_disk),
    mlp("saved-tensor hooks, save_on_cpu", save_on_cpu),
    case(
        "autograd: in-place change of a saved input before backward (eager raises)",
        lambda x: x * x,
        g(3),
        calls=(Call(1, act=input_changed),),
    ),
    case("autograd: in-place change of an input that is not saved", lambda x: x + 1, g(3), calls=(Call(1, act=input_changed),)),
    case(
        "autograd: in-place change of an input saved as a view (eager raises)",
        lambda x: x.view(-1) * x.view(-1),
        g(2, 3),
        calls=(Call(1, act=input_changed),),
    ),
    mlp("in-place change of a saved parameter before backward (eager raises)", parameter_changed),
    mlp("in-place change of a parameter that is not saved", unsaved_parameter_changed),
    case(
        "autograd: in-place change of a saved output before backward (eager raises)",
        lambda x: x.exp(),
        g(3),
        calls=(Call(1, act=output_changed),),
    ),
    case("autograd: in-place change of an output that is not saved", lambda x: x + 1, g(3), calls=(Call(1, act=output_changed),)),
    mlp("tangents with other strides, transposed", transposed_tangent),
    mlp("tangents with other strides, expanded", expanded_tangent),
    mlp("tangents with other strides, sliced", sliced_tangent),
    mlp("tangents are not written to", tangent_not_aliased),
    case("autograd: tangents are not written to, identity", lambda x: x + 1, g(3), calls=(Call(1, act=tangent_not_aliased),)),
    mlp("anomaly mode", anomaly),
    mlp("anomaly mode, NaN (eager raises)", anomaly_nan),
    mlp("deterministic flag", deterministic),
    mlp("several forwards before one backward", several_forwards),
    mlp("several forwards, backwards in reverse", several_forwards_reversed),
    case("autograd: fed its own output", lambda x: x.sin() * 2, g(3), calls=(Call(1, act=fed_back),)),
    mlp("accumulation", accumulation),
    mlp("accumulation over calls", None, calls=(Call(1), Call(2), Call(3))),
    mlp("gradients set to None between", zeroed),
    mlp("five steps of SGD", trained(torch.optim.SGD)),
    mlp("five steps of AdamW", trained(torch.optim.AdamW)),
    mlp("double backward is one clear error", None, calls=(Call(1, act=double_backward, refused="first derivatives only"),)),
    mlp("create_graph without a second derivative", create_graph_only),
    mlp("backward(create_graph=True) alone", gradient_penalty_unused),
    mlp("inside the caller's checkpoint", checkpointed),
    mlp("on several threads", on_threads),
    mlp("torch.func.functional_call", functional_call),
    mlp("inference mode", None, calls=(Call(1, training=False, grad=False, act=inference_mode),)),
    mlp("train with gradients, eval without", None, calls=MODES),
    mlp("eval with gradients is refused", None, calls=(TRAIN, Call(1, training=False, refused=REFUSED_MODE))),
    mlp("train without gradients", None, calls=(Call(1, training=True, grad=False),)),
    mlp("eval with gradients where built", None, calls=(TRAIN, Call(2, training=False)), methods=("train", "infer", "eval")),
    module_case(
        "autograd: eval with gradients is refused, dropout and BatchNorm",
        lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.5)),
        g(4, 3),
        calls=(Call(1, training=False, refused=REFUSED_MODE),),
    ),
    module_case(
        "autograd: eval with gradients where built, BatchNorm",
        lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
        g(4, 3),
        calls=(Call(1), Call(2, training=False), Call(3, training=False, grad=False), Call(4, grad=False)),
        methods=("train", "infer", "eval"),
        ignore=r"running_(mean|var): version counter",
    ),
    case(
        "autograd: a function has no modes", lambda x: x * 2, g(3), calls=(Call(1), Call(2, grad=False), Call(3, training=False))
    ),
    module_case("autograd: an LSTM of whose arguments none needs a gradient", lambda: nn.LSTM(4, 3, num_layers=2), n(5, 2, 4)),
    module_case("autograd: packed sequences, LSTM", lambda: Packs(nn.LSTM(4, 3)), g(5, 2, 4)),
    module_case("autograd: packed sequences, GRU", lambda: Packs(nn.modules.rnn.GRU(4, 3)), g(5, 2, 4)),
    module_case("autograd: no_grad inside the model", Grad, g(2, 3)),
    module_case("autograd: enable_grad inside the model", EnableGrad, g(2, 3)),
    *(
        case(f"autograd: inference_mode inside the model, {end}", inference_inside, g(2, 3), front_ends=(end,))
        for end in FRONT_ENDS
    ),
    module_case(
        "autograd: enable_grad inside the model, gradients taken of it without (eager raises)",
        EnableGrad,
        g(2, 3),
        calls=(TRAIN, Call(2, training=False, grad=False, act=backward_of), Call(3, grad=False, refused=REFUSED_MODE)),
    ),
    module_case(
        "autograd: enable_grad inside the model, around a part of it (eager raises)",
        EnableGradPartly,
        g(2, 3),
        calls=(TRAIN, Call(2, training=False, grad=False, act=backward_of)),
    ),
    *(
        module_case(name, factory, g(2, 3), methods=methods, calls=(TRAIN, Call(2, grad=False, refused=REFUSED_MODE)))
        for name, factory, methods in (
            ("autograd: enable_grad inside the model, built for training alone", EnableGrad, ("train",)),
            ("autograd: enable_grad inside the model, in training mode only", EnableGradInTraining, ("train", "infer")),
            ("autograd: a branch on is_grad_enabled, built for training alone", AsksForGradients, ("train",)),
        )
    ),
    module_case(
        "autograd: no_grad for a part, built for training alone",
        NoGradPartly,
        g(2, 3),
        methods=("train",),
        calls=(TRAIN, Call(2, grad=False)),
    ),
    case(
        "autograd: enable_grad inside a function, built for training alone",
        enabled,
        g(2, 3),
        methods=("train",),
        calls=(TRAIN, Call(2, grad=False, refused=REFUSED_MODE), Call(3, training=False)),
    ),
    case(
        "autograd: enable_grad inside a function (eager raises)",
        enabled,
        g(2, 3),
        calls=(TRAIN, Call(2, grad=False, act=backward_of)),
    ),
    module_case("autograd: enable_grad inside the model, views of an intermediate", EnableGradViews, g(2, 3)),
    module_case("autograd: autocast bf16 inside the model", Autocast, g(2, 3)),
    module_case("autograd: autocast bf16 inside the model, bf16 result", AutocastOutput, g(2, 3)),
    mlp("autocast at call, none at build, is refused", None, calls=(Call(1, act=under_autocast, refused="autocast"),)),
    mlp(
        "autocast at call, none at build, is refused without gradients",
        None,
        calls=(Call(1, training=False, grad=False, act=inferred_under_autocast, refused="autocast"),),
    ),
    case("autograd: detach inside", lambda x: x * x.detach(), g(3)),
    case("autograd: autograd.Function", lambda x: Triple.apply(x), g(3)),
    case(
        "autograd: autograd.Function whose backward reads strides",
        lambda x: torch.relu(ByLayout.apply(x * 2)),
        laid_out(g(2, 3, 4, 4), (48, 1, 12, 3)),
    ),
    case("autograd: a backward writes to an argument that it saved", squared_once, n(3, 2)),
    module_case("autograd: a backward writes to a buffer that it saved", CountsBackwards, n(3)),
    case("autograd: a backward tells None from zeros, of two results", tells_none, g(3)),
    case("autograd: a backward tells None from zeros, of one loss", lambda x: tells_none(x)[0].sin(), g(3)),
    case("autograd: a backward tells None from zeros, of a sum", lambda x: sum(tells_none(x)), g(3)),
    case("autograd: a backward writes to a value that only it has", lambda x: squared_once(x * 2), n(3, 2)),
    case("autograd: embedding", embed, g(5, 2), ints(4)),
    case("autograd: non-leaf whose leaf is watched", three, n(3), n(3)),
    case("autograd: in-place on an intermediate", lambda x: (x * 2).add_(1).mul_(x), g(3)),
    case("autograd: relu_ in place saved", lambda x: (x * 2).relu_(), g(3)),
    case("autograd: float64", three, g(3, dtype=torch.float64), g(3, dtype=torch.float64)),
    case("autograd: bfloat16", three, g(3, dtype=torch.bfloat16), g(3, dtype=torch.bfloat16)),
    case("autograd: complex", lambda x: (x * x.conj()).real.sum(), g(3, dtype=torch.complex64)),
    case("autograd: a result that is lazily conjugated", lambda x: (x + 1j).conj(), g(3)),
    case("autograd: fractional_max_pool3d", pooled_at_random, g(2, 2, 7, 7, 7)),
    *(
        case(f"autograd: ctc_loss, {name}, {target}", function, g(6, 2, 5), *specs, targets=(target,), dynamic_shapes=shapes)
        for target in ("portable", "cpu")
        for name, function, shapes, *specs in (
            ("padded", speech, None, ints(2, 3, high=4), ints(2, high=3)),
            ("in one row", speech_in_one_row, None, ints(2, 3, high=4)),
            ("dynamic", speech, {"x": {0: AUTO}, "labels": {1: AUTO}, "lengths": None}, ints(2, 3, high=4), ints(2, high=3)),
        )
    ),
    case("autograd: lstsq, ranks", ranks, g(3, 2, dtype=torch.float64), g(3, 2, dtype=torch.float64)),
    *(
        made
        for target in ("portable", "cpu")
        for made in (
            case(
                f"autograd: lstsq, {target}",
                least_squares,
                g(5, 3, dtype=torch.float64),
                g(5, 2, dtype=torch.float64),
                targets=(target,),
                dynamic_shapes=({0: AUTO}, {0: AUTO}),
            ),
            case(f"autograd: complex svd, {target}", of_full_rank, g(4, 3, dtype=torch.complex64), targets=(target,)),
            case(
                f"autograd: phases of a complex svd (eager raises), {target}",
                phases,
                g(4, 3, dtype=torch.complex64),
                targets=(target,),
            ),
        )
    ),
    *(
        case(f"autograd: asks for allclose, {end}", lambda x: x * 2 if torch.allclose(x, x * 1) else x, g(3), front_ends=(end,))
        for end in ("dynamo", "export", "trace")
    ),
]
