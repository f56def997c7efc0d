"""A build changes nothing of what it was given, nor of torch: whether it succeeds or is refused."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import random
import sys
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
import torch._inductor
import torch.utils._pytree as pytree
from torch import Tensor, fx, nn
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config

import aotpack
from aotpack_loader.errors import BuildError
from devtools.files import import_file

Given = tuple[Any, tuple[Any, ...]]


class Network(nn.Module):
    """With a buffer that is written to, an attribute of each kind, names that Dynamo's own modules have, and hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)
        self.norm.eval()
        self.layer.bias.requires_grad_(False)
        self.layer.weight.grad = torch.ones(4, 4)
        self.meta: dict[str, Any] = {"note": 1}
        self.shape_env = None
        self.log: list[int] = []
        self.layer.register_forward_hook(lambda module, args, result: None)

    def forward(self, x: Tensor, more: dict[str, Tensor] | None = None) -> Tensor:
        self.log.append(len(x))
        y: Tensor = self.drop(self.norm(self.layer(x)))
        return y if more is None else y + more["a"]


class Refused(Network):
    """No front end takes its branch, and each has run its first lines by then."""

    def forward(self, x: Tensor, more: dict[str, Tensor] | None = None) -> Tensor:
        y = super().forward(x, more)
        return y if y.sum() > 0 else -y


class Counts(Network):
    """Is refused for a Python value that it changes."""

    calls = 0

    def forward(self, x: Tensor, more: dict[str, Tensor] | None = None) -> Tensor:
        self.calls += 1
        return super().forward(x, more) * self.calls


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.layer(x)).relu()
        return y


def writes(x: Tensor, more: dict[str, Tensor]) -> Tensor:
    more["a"].mul_(2)
    return x.t_() * 2


def module(kind: type[Network]) -> Given:
    return kind(), (torch.randn(3, 4, requires_grad=True), {"a": torch.randn(4) * torch.ones(4, requires_grad=True)})


MODELS: dict[str, Callable[[], Given]] = {
    "a module": lambda: module(Network),
    "a module in eval mode": lambda: (module(Network)[0].eval(), module(Network)[1]),
    "a module that is refused while it is traced": lambda: module(Refused),
    "a module that is refused for what it counts": lambda: module(Counts),
    "a graph module": lambda: (fx.symbolic_trace(Plain()), (torch.randn(3, 4),)),
    "a module of torch.export": lambda: (torch.export.export(Plain(), (torch.randn(3, 4),)).module(), (torch.randn(3, 4),)),
    "a function that writes to its arguments": lambda: (writes, (torch.randn(2, 3), {"a": torch.randn(4)})),
}


def seen_of(tensor: Tensor) -> tuple[Any, ...]:
    grad = tensor.grad if tensor.is_leaf else None
    values = tuple(tensor.detach().flatten().tolist())
    about = (id(tensor), tensor._version, tensor.requires_grad, tensor.is_leaf, tensor.grad_fn)
    layout = (tuple(tensor.shape), tensor.stride(), tensor.untyped_storage().data_ptr(), tensor._backward_hooks)
    return *about, *layout, values, None if grad is None else (id(grad), grad._version, tuple(grad.flatten().tolist()))


def seen_of_model(model: Any) -> Any:
    """Attributes of all modules, dictionaries among them by item, tensors by all that can be told of them."""
    if not isinstance(model, nn.Module):
        return model
    found = {}
    for name, part in model.named_modules(remove_duplicate=False):
        for attribute, value in vars(part).items():
            items = dict(value) if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {"": value}
            for key, item in items.items():
                found[name, attribute, str(key)] = seen_of(item) if isinstance(item, Tensor) else id(item)
            found[name, attribute] = (id(value), list(map(str, items)))
        if isinstance(part, fx.GraphModule):
            found[name, "code"] = part.code, [(id(node), repr(node.args)) for node in part.graph.nodes]
    return found


def seen_of_torch() -> dict[str, Any]:
    return {
        "modes": (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")),
        "settings": (torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()),
        "stacks": (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        "random": (torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()),  # type: ignore[index]
        "functions": (nn.Module.__setattr__, nn.Module.__call__, nn.Module.__getattr__, torch.Tensor.__bool__),
        "watching": (sys.getprofile(), sys.gettrace()),
        "filters": list(warnings.filters),
        "configuration": [c.get_config_copy() for c in (torch._dynamo.config, functorch_config, inductor_config)],
    }


@pytest.mark.parametrize("given", MODELS)
def test_what_was_given_is_as_it_was(given: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, args = MODELS[given]()
    tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
    dictionaries = [(one, dict(one)) for one in args if isinstance(one, dict)]
    before = seen_of_model(model), [seen_of(tensor) for tensor in tensors], seen_of_torch()
    try:
        aotpack.build(model, args, out=tmp_path / "m.aotpack", targets=("portable",))
    except BuildError:
        assert "refused" in given
    else:
        assert "refused" not in given
    after = seen_of_model(model), [seen_of(tensor) for tensor in tensors], seen_of_torch()
    if isinstance(model, nn.Module):
        assert {key for key in before[0] | after[0] if before[0].get(key) != after[0].get(key)} == set()
    assert before[1] == after[1]
    assert {name for name in before[2] if before[2][name] != after[2][name]} == set()
    assert all(list(one.items()) == list(items.items()) for one, items in dictionaries)


@functools.lru_cache
def positions(count: int) -> Tensor:
    return torch.arange(count).float()[:, None]


@functools.cache
def signs(count: int) -> list[Tensor]:
    return [torch.ones(count, 1), -torch.ones(count, 1)]


TABLE: dict[int, Tensor] = {}


def looked_up(count: int) -> Tensor:
    if count not in TABLE:
        TABLE[count] = torch.ones(count, 1)
    return TABLE[count]


@pytest.mark.parametrize("refused", [False, True])
@pytest.mark.parametrize("front_end", ["dynamo", "export", "trace"])
def test_caches_of_functions_hold_no_tensors_of_a_trace(front_end: str, refused: bool, tmp_path: Path) -> None:
    def cached(x: Tensor) -> Tensor:
        y = x * positions(len(x)) + signs(len(x))[1] * looked_up(len(x))
        return -y if refused and y.sum() > 0 else y

    x = torch.randn(3, 4, requires_grad=True)
    with contextlib.suppress(BuildError):
        aotpack.build(cached, (x,), out=tmp_path / "m.aotpack", targets=("portable",), front_ends=(front_end,))
    for value in (positions(3), *signs(3), looked_up(3)):
        assert type(value) is Tensor
    assert type(cached(x)) is Tensor
    positions.cache_clear()
    signs.cache_clear()
    TABLE.clear()


@pytest.mark.parametrize("front_end", ["dynamo", "export", "trace"])
def test_a_graph_module_is_built_and_can_be_used_afterwards(front_end: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = fx.symbolic_trace(Plain()), torch.randn(3, 4)
    eager = copy.deepcopy(model)
    aotpack.build(model, (x,), out=tmp_path / "m.aotpack", targets=("portable",), front_ends=(front_end,))
    loaded = aotpack.load(tmp_path / "m.aotpack", backend="portable")
    for one in (eager, loaded, copy.deepcopy(model)):
        one(x).sum().backward()
    for (name, a), (_, b) in zip(eager.named_parameters(), loaded.named_parameters(), strict=True):
        assert torch.equal(a.grad, b.grad), name
    assert torch.equal(eager.norm.running_mean, loaded.get_buffer("norm.running_mean"))
    with torch.no_grad():
        assert torch.equal(eager.eval()(x), loaded.eval()(x))


@pytest.mark.parametrize("training", [True, False])
def test_what_torch_export_made_trains_in_the_mode_it_was_exported_in(training: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    eager, x, sizes = Plain().train(training), torch.randn(3, 4), ({0: torch.export.Dim("batch", min=2, max=9)},)
    model = torch.export.export(copy.deepcopy(eager), (x,), dynamic_shapes=sizes).module()
    aotpack.build(model, (x,), out=tmp_path / "m.aotpack", targets=("portable",), dynamic_shapes=sizes)
    loaded = aotpack.load(tmp_path / "m.aotpack", backend="portable")
    for mode in (True, False):  # neither has a mode of its own
        loaded.train(mode)
        y = torch.randn(5, 4)
        results = [one(y) for one in (eager, loaded)]
        assert torch.equal(*results)
        for result in results:
            result.sum().backward()
        with torch.no_grad():
            assert torch.equal(eager(y), loaded(y))
    for (name, a), (_, b) in zip(eager.named_parameters(), loaded.named_parameters(), strict=True):
        assert torch.equal(a.grad, b.grad), name
    assert torch.equal(eager.norm.running_mean, loaded.get_buffer("norm.running_mean"))


HELPER = """
calls = 0
seen = []
def times(x):
    global calls
    calls += 1
    seen.append(calls)
    return x * calls
"""


@pytest.mark.parametrize("front_end", ["dynamo", "export", "trace"])
def test_globals_of_an_imported_module_are_as_they_were(front_end: Any, tmp_path: Path) -> None:
    (tmp_path / "helper_of_a_model.py").write_text(HELPER)
    helper = import_file(tmp_path / "helper_of_a_model.py", "helper_of_a_model")

    def model(x: Tensor) -> Tensor:
        result: Tensor = helper.times(x)
        return result

    with pytest.raises(BuildError, match=r"helper_of_a_model\.\w+: read, and changed|called again"):
        aotpack.build(model, (torch.ones(2),), out=tmp_path / "m", targets=("portable",), front_ends=(front_end,))
    assert (helper.calls, helper.seen) == (0, [])


@pytest.mark.parametrize("front_end", ["dynamo", "export", "trace"])
def test_a_model_is_freed_once_it_is_built_and_dropped(front_end: Any, tmp_path: Path) -> None:
    """Its weights would fill the memory of a process that builds many."""

    def built() -> weakref.ref[Tensor]:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        aotpack.build(model, (torch.randn(2, 4),), out=tmp_path / "m", targets=("portable",), front_ends=(front_end,))
        return weakref.ref(model[0].weight)

    weight = built()
    gc.collect()
    assert weight() is None


def endless(x: Tensor) -> Tensor:
    return endless(x * 2)


def by_size(x: Tensor) -> Tensor:
    return x * (2 if x.shape[0] > 10 else 3)


def test_a_recursion_without_end_does_not_spoil_the_next_build(tmp_path: Path) -> None:
    """torch leaves its guards switched off."""
    options: dict[str, Any] = {"out": tmp_path / "m", "targets": ("portable",), "methods": ("infer",)}
    with pytest.raises(BuildError, match="RecursionError"):
        aotpack.build(endless, (torch.ones(2),), **options)
    sizes = ({0: torch.export.Dim("batch", min=2, max=64)},)
    with pytest.raises(BuildError, match=r"allows more than the model, 2\.\.10"):
        aotpack.build(by_size, (torch.ones(4),), dynamic_shapes=sizes, **options)
