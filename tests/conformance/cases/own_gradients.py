"""Models that compute gradients themselves: physics-informed losses, gradient penalties, forces, score matching."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from devtools.harness import TRAIN, Call, Case, case, g, inputs, laid_out, module_case, t

Loss = Callable[[nn.Module, Tensor], Any]


class Field(nn.Module):
    """A small network, and what is computed of it."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        self.loss = loss

    def forward(self, x: Tensor) -> Any:
        return self.loss(self.net, x)


def _slope(u: Tensor, x: Tensor) -> Tensor:
    return torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]


def _residual(net: nn.Module, x: Tensor) -> Tensor:
    """Poisson's equation: the Laplacian by a loop over coordinates."""
    slope = _slope(net(x), x)
    return (sum(_slope(slope[:, i], x)[:, i] for i in range(2)) + 1).pow(2).mean()  # type: ignore[union-attr]


def of_a_clone(net: nn.Module, x: Tensor) -> Tensor:
    return _residual(net, x.clone().requires_grad_(True))


def by_attribute(net: nn.Module, x: Tensor) -> Tensor:
    points = x.detach().clone()
    points.requires_grad = True
    return _residual(net, points)


def of_columns(net: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Burgers' equation, with views of the argument as variables."""
    place, time = x[:, :1], x[:, 1:]
    place.requires_grad_()
    time.requires_grad_()
    u = net(torch.cat([place, time], 1))
    slope = _slope(u, place)
    return {"loss": (_slope(u, time) + u * slope - 0.1 * _slope(slope, place)).pow(2).mean(), "u": u}


def constant_gradient(net: nn.Module, x: Tensor) -> Tensor:
    """Without ``create_graph`` the gradient is a constant."""
    points = x.detach().requires_grad_()
    u = net(points)
    return (u * torch.autograd.grad(u.sum(), points, retain_graph=True)[0]).sum()


def penalty(net: nn.Module, x: Tensor) -> Tensor:
    between = (torch.rand(x.shape[0], 1) * x).requires_grad_(True)
    return (_slope(net(between), between).norm(2, dim=1) - 1).pow(2).mean()


def forces(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients are on whatever the caller's mode; in eval mode the energy's graph is freed."""
    with torch.enable_grad():
        points = x.detach().clone().requires_grad_(True)
        energy = net(points).sum()
        (slope,) = torch.autograd.grad(energy, points, create_graph=net.training)
    return energy, -slope


def walk(net: nn.Module, x: Tensor) -> Tensor:
    """Langevin steps: leaf after leaf."""
    for _ in range(2):
        x = x.detach().requires_grad_(True)
        x = x - 0.1 * torch.autograd.grad(net(x).sum(), x)[0] + 0.01 * torch.randn_like(x)
    return net(x.detach()).mean()


def jacobian(net: nn.Module, x: Tensor) -> Any:
    return torch.autograd.functional.jacobian(lambda y: net(y).sum(0), x, create_graph=True)


def beside_a_frozen_part(net: nn.Module, x: Tensor) -> Tensor:
    """What Wav2Vec2 does for its checkpoints: no gradient is asked for."""
    hidden = x[:, None]
    hidden.requires_grad = True
    return net(hidden[:, 0]).sum()


def adds_to_gradients(net: nn.Module, x: Tensor) -> Tensor | None:
    points = x.detach().requires_grad_()
    net(points).sum().backward()
    return points.grad


def of_the_argument(net: nn.Module, x: Tensor) -> Tensor:
    """The caller sees it: the argument requires a gradient from then on, and gets one."""
    x.requires_grad_(True)
    return _residual(net, x)


def of_the_argument_by_attribute(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    if not x.requires_grad:
        x.requires_grad = True
    return _residual(net, x), x


def forces_on_the_argument(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.set_grad_enabled(True):
        energy = net(x.requires_grad_()).sum()
        (slope,) = torch.autograd.grad(energy, x, create_graph=net.training)
    return energy, -slope


def of_a_used_argument(net: nn.Module, x: Tensor) -> Tensor:
    value = net(x)
    return value.mean() + _residual(net, x.requires_grad_())


def on_and_off(net: nn.Module, x: Tensor) -> Tensor:
    loss = _residual(net, x.requires_grad_())
    x.requires_grad_(False)
    return loss


def of_a_parameter(net: nn.Module, x: Tensor) -> Tensor:
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    return net(x)


class StraightThrough(torch.autograd.Function):
    """Its derivative is not that of its forward, in either mode."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return tangent * 3


class StraightBack(StraightThrough):
    """Dynamo traces it outside transforms: it has no jvp."""

    jvp = torch.autograd.Function.jvp


def rounded_in_transforms(x: Tensor) -> Any:
    def loss(y: Tensor) -> Tensor:
        return (StraightBack.apply(y) * y).sum()

    hessian_product = torch.func.grad(lambda y: (torch.func.grad(loss)(y) * x).sum())
    _, vjp = torch.func.vjp(StraightBack.apply, x)
    return torch.func.grad(loss)(x), hessian_product(x), vjp(x)[0], torch.func.jacrev(StraightBack.apply)(x)


def rounded_in_forward_mode(x: Tensor) -> Any:
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x + 1)
        tangent = torch.autograd.forward_ad.unpack_dual(StraightThrough.apply(dual)).tangent
    return torch.func.jvp(StraightThrough.apply, (x,), (x,)), torch.func.jacfwd(StraightThrough.apply)(x), tangent


def rounded_in_batches(x: Tensor) -> Tensor:
    return torch.func.vmap(lambda y: StraightBack.apply(y) * y)(x)


def _case(loss: Loss, x: Any = None, **options: Any) -> Case:
    options = {"methods": ("train",), "calls": (TRAIN,), "rng": "eager", **options}
    return module_case(f"own gradients: {loss.__name__.strip('_')}", lambda: Field(loss), x or t(5, 2), **options)


def reaches_nothing(x: Tensor) -> Tensor:
    return x.detach().clone().requires_grad_().square().sum()


CASES = [
    case("own gradients: a result that requires a gradient of nothing", reaches_nothing, t(3)),
    _case(_residual, g(5, 2)),
    *[_case(loss) for loss in (of_a_clone, by_attribute, of_columns, penalty, walk, jacobian, beside_a_frozen_part)],
    _case(constant_gradient),
    module_case("own gradients: forces", lambda: Field(forces), t(5, 2)),
    _case(adds_to_gradients),
    _case(
        of_the_argument,
        dynamic_shapes={"x": {0: torch.export.Dim("points", min=2)}},
        calls=(TRAIN, Call(2, inputs=inputs(t(3, 2))), Call(3, inputs=inputs(laid_out(t(5, 2), (1, 5))))),
    ),
    _case(of_the_argument_by_attribute),
    module_case("own gradients: forces_on_the_argument", lambda: Field(forces_on_the_argument), t(5, 2)),
    *[_case(loss) for loss in (of_a_used_argument, on_and_off, of_a_parameter)],
    case("own gradients: of rounded numbers, in transforms", rounded_in_transforms, g(3)),
    case("own gradients: of rounded numbers, in forward mode", rounded_in_forward_mode, t(3)),
    case("own gradients: of rounded numbers, in batches", rounded_in_batches, g(3, 2)),
]
