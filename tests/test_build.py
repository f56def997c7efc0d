"""Building: the same bytes every time, compiled code reused, front ends in order, options checked, nothing left behind."""

from __future__ import annotations

import copy
import functools
import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from conftest import FreshProcess, compiles_native_code
from torch import nn
from torch._functorch import config as functorch_config
from torch.nn import functional as F

import aotpack
from aotpack import capture
from aotpack._torch.api.process_copy import ProcessCopyError, in_place
from aotpack._torch.inductor import lowering
from aotpack._torch.inductor.layouts import OutputLayout
from aotpack._torch.inductor.toolchain import commands
from aotpack.capture import front_ends
from aotpack.graph import from_fx
from aotpack.graph.restore import to_fx
from aotpack.guards import zero_one
from aotpack.targets.cpu import CpuTarget, target
from aotpack.targets.portable import PortableTarget
from aotpack.tools.cli import main
from aotpack_loader import load, replay
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.devices.portable import PortableExecutable
from aotpack_loader.errors import BuildError, CaptureError, InputError, ModeError, UnsupportedError
from aotpack_loader.format import schema
from aotpack_loader.selftest import run_self_test


class Network(nn.Module):
    """Enough for the partitioner to have a choice: activations that are cheap to compute again."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.gelu(layer(x)).sin() * 0.5
        return self.norm(x).square().mean()


EXAMPLE = (torch.zeros(32, 64),)


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    return Network()


def portable(
    model: Any, args: tuple[Any, ...], out: Path, kwargs: dict[str, Any] | None = None, **options: Any
) -> aotpack.BuildReport:
    return aotpack.build(model, args, kwargs, out=out, targets=("portable",), **options)


# ---------------------------------------------------------------- the same bytes

BUILD = """
import json, os, sys, warnings
os.chdir(sys.argv[1])
import torch, aotpack
warnings.simplefilter('default')
assert sys.flags.hash_randomization

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(1, 3, 3)
        self.norm = torch.nn.BatchNorm2d(3)
        self.head = torch.nn.Linear(3, 2)
        self.same = self.head

    def forward(self, images, options, *, labels):
        x = torch.nn.functional.dropout(self.norm(self.convolution(images)), 0.25, self.training).relu()
        logits = self.head(x.mean(dim=(2, 3))) * options["scale"] + options["shift"]
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "features": x, "more": [logits, {"a": x.sum()}]}

torch.manual_seed(0)
batch = torch.export.Dim("batch", min=2, max=64)
images, labels = torch.zeros(4, 1, 8, 8), torch.zeros(4, dtype=torch.long)
options = {"shift": torch.zeros(2), "scale": torch.ones(1)}
report = aotpack.build(
    Model(), (images, options), {"labels": labels}, out=sys.argv[2], targets=sys.argv[3].split(), cache=False,
    dynamic_shapes={"images": {0: batch}, "options": {"shift": None, "scale": None}, "labels": {0: batch}},
)
print(json.dumps(report.to_json()))
"""


def build_twice(fresh_process: FreshProcess, tmp_path: Path, targets: str) -> tuple[bytes, bytes]:
    outs = []
    for name in ("first", "second/deeper"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        # An isolated interpreter draws its hash seed anew each time. Precompiled headers lie below TMPDIR.
        elsewhere = {} if name == "first" else {"TMPDIR": str(folder)}
        report = fresh_process(BUILD, folder, folder / "m.aotpack", targets, **elsewhere)
        data = (folder / "m.aotpack").read_bytes()
        assert report["size"] == len(data)
        assert report["cache_hits"] == 0
        assert str(folder).encode() not in data
        assert [path.name for path in folder.iterdir() if path.name.startswith(("aotpack", "m."))] == ["m.aotpack"]
        outs.append(data)
    return outs[0], outs[1]


def test_other_process_directory_and_hash_seed_give_the_same_bytes(fresh_process: FreshProcess, tmp_path: Path) -> None:
    first, second = build_twice(fresh_process, tmp_path, "portable")
    assert first == second


@pytest.mark.skipif(not compiles_native_code(), reason="this torch makes no native code")
def test_native_code_is_the_same_bytes_too(fresh_process: FreshProcess, tmp_path: Path) -> None:
    first, second = build_twice(fresh_process, tmp_path, "cpu portable")
    assert first == second


class Attention(nn.Module):
    """A block without convolutions, whose backward is therefore lowered beside its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.queries(x).split(8, -1)
        rows = F.scaled_dot_product_attention(query, key, value)
        return (x + self.out(F.gelu(rows))).square().mean()


@pytest.mark.copies
def test_a_backward_lowered_beside_its_forward_is_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, taken = Attention(), []
    really = target._Ahead.library_for

    def watched(ahead: target._Ahead, call: Any, *, needed: bool) -> Any:
        library = really(ahead, call, needed=needed)
        taken.append(library is not None)
        return library

    monkeypatch.setattr(target._Ahead, "library_for", watched)
    build = functools.partial(aotpack.build, model, (torch.randn(2, 5, 8),), targets=("cpu",), methods=("train",), cache=False)
    beside = build(out=tmp_path / "beside")
    with in_place():
        after = build(out=tmp_path / "after")
    assert (beside.digest, taken) == (after.digest, [True])


def watch_abandoned(monkeypatch: pytest.MonkeyPatch) -> list[commands.Library]:
    """The libraries whose sources a copy of the process writes, and that a build finds it does not need."""
    abandoned: list[commands.Library] = []
    monkeypatch.setattr(commands.Library, "abandon", lambda library: (abandoned.append(library), library.copy.end()))
    return abandoned


def check_ended(abandoned: list[commands.Library]) -> None:
    """One library was abandoned, and its copy of the process was ended."""
    (library,) = abandoned
    assert library.copy is not None
    with pytest.raises(ProcessCopyError, match="was ended by SIGKILL"):
        library.copy.result()


@pytest.mark.copies
def test_a_backward_lowered_for_other_layouts_is_lowered_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is saved has other layouts than expected: the copy of the process is ended, and its result is not used."""
    abandoned = watch_abandoned(monkeypatch)
    monkeypatch.setattr(target, "likely_layouts", lambda graph: [OutputLayout([], own=False)] * len(graph.output_node().args[0]))
    model, x = Attention(), torch.randn(2, 5, 8)
    aotpack.build(model, (x,), out=tmp_path / "m", targets=("cpu",), methods=("train",), cache=False)
    check_ended(abandoned)
    loss = aotpack.load(tmp_path / "m", backend="cpu")(x)
    torch.testing.assert_close(loss, model(x))


@pytest.mark.copies
@pytest.mark.skipif(not compiles_native_code(), reason="this torch makes no native code")
def test_a_forward_that_fails_ends_the_copy_that_lowers_its_backward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    abandoned = watch_abandoned(monkeypatch)

    def lower(graph: lowering.GraphToLower, codes: Sequence[lowering.Code]) -> list[commands.Library]:
        if graph.key == "train.backward":
            time.sleep(60)
        raise BuildError(f"{graph.key} fails here.")

    monkeypatch.setattr(lowering, "lower_with_aoti", lower)
    with pytest.raises(BuildError, match=r"train\.forward fails here"):
        aotpack.build(Attention(), (torch.randn(2, 5, 8),), out=tmp_path / "m", targets=("cpu",), methods=("train",), cache=False)
    check_ended(abandoned)


# ---------------------------------------------------------------- the compile cache


def test_unchanged_graphs_are_not_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOTPACK_CACHE", str(tmp_path / "cache"))
    compiled: list[str] = []
    really = target._lower

    def counted(targets: Sequence[CpuTarget], graph: lowering.GraphToLower, folder: Path) -> list[commands.Library]:
        compiled.append(graph.key)
        return really(targets, graph, folder)

    monkeypatch.setattr(target, "_lower", counted)

    def build(constant: float, name: str) -> aotpack.BuildReport:
        args = (torch.zeros(8),)
        return aotpack.build(lambda x: x.sin() * constant, args, out=tmp_path / name, targets=("cpu",), methods=("infer",))

    first = build(2.0, "first")
    assert (first.cache_hits, compiled) == (0, ["infer.forward"])
    again = build(2.0, "again")
    assert (again.cache_hits, compiled) == (1, ["infer.forward"])
    assert (tmp_path / "first").read_bytes() == (tmp_path / "again").read_bytes()
    assert "1 of 1 compiled graphs came from the cache" in again.notes
    changed = build(3.0, "changed")
    assert (changed.cache_hits, compiled) == (0, ["infer.forward"] * 2)
    x = torch.randn(8)
    for name, constant in (("again", 2.0), ("changed", 3.0)):
        with torch.no_grad():
            torch.testing.assert_close(aotpack.load(tmp_path / name, backend="cpu")(x), x.sin() * constant)


# ---------------------------------------------------------------- failures


class Branching(nn.Module):
    """Nobody can trace this: Python decides on a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum().item() > 0:  # the line a user should see
            return x * 2
        return x - 1


def test_all_front_ends_reasons_are_given_when_all_refuse(tmp_path: Path) -> None:
    model = Branching()
    with pytest.raises(CaptureError) as caught:
        portable(model, (torch.zeros(3),), tmp_path / "m")
    named = [name for problem in caught.value.problems for name in problem.where.split(", ")]
    assert sorted(named) == ["dynamo", "export", "trace"]
    for problem in caught.value.problems:
        assert "test_build.py" in problem.message, problem.message
    assert "the line a user should see" in str(caught.value)
    assert caught.value.__cause__ is not None
    assert list(tmp_path.iterdir()) == []


_LOCK = threading.Lock()


class Frozen(dict[str, int]):
    """As the configurations of diffusers."""

    def clear(self) -> None:
        raise TypeError("frozen")


class SetUpAtFirstCall(nn.Module):
    """Installs hooks when it is called for the first time, as transformers' models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.settings = Frozen(width=3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not getattr(self, "ready", False):
            with _LOCK:
                self.layer.register_forward_hook(lambda module, args, output: output * 2)
                self.ready = True
        return self.layer(x)


@pytest.mark.parametrize("front_end", capture.FRONT_ENDS)
def test_what_a_first_call_sets_up_is_traced_and_put_back(tmp_path: Path, front_end: str) -> None:
    model, x = SetUpAtFirstCall(), torch.randn(2, 3)
    portable(model, (x,), tmp_path / "m", front_ends=(front_end,))
    assert not model.layer._forward_hooks
    assert "ready" not in vars(model)
    assert torch.equal(load(tmp_path / "m")(x), model(x))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, BuildError, ZeroDivisionError])
@pytest.mark.parametrize("layout", ["file", "directory"])
def test_a_build_that_ends_in_a_target_leaves_nothing(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException], layout: str
) -> None:
    def fail(*args: object) -> None:
        raise kind("enough")

    monkeypatch.setattr(PortableTarget, "compile", fail)
    with pytest.raises(kind):
        portable(network, EXAMPLE, tmp_path / "m", layout=layout)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_build_keeps_the_bundle_that_was_there(network: Network, tmp_path: Path) -> None:
    portable(network, EXAMPLE, tmp_path / "m", methods=("infer",))
    before = (tmp_path / "m").read_bytes()
    with pytest.raises(BuildError):
        portable(Branching(), (torch.zeros(3),), tmp_path / "m")
    assert (tmp_path / "m").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


@pytest.mark.parametrize("where", ["a file/m.aotpack", "missing/folder/m.aotpack", "/proc/m.aotpack"])
def test_a_place_that_cannot_be_written_to(network: Network, tmp_path: Path, where: str) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(BuildError, match=r"m\.aotpack|missing|a file|/proc"):
        portable(network, EXAMPLE, tmp_path / where)
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]


def test_the_model_is_left_as_it_was(network: Network, tmp_path: Path) -> None:
    network.train()
    network.layers[0].eval()
    state = copy.deepcopy(network.state_dict())
    x = torch.zeros(32, 64)
    portable(network, (x,), tmp_path / "m", self_test=True)
    assert [module.training for module in network.modules()] == [True, True, False, True, True, True]
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert x.__dict__ == {}


# ---------------------------------------------------------------- front ends


def test_dynamo_comes_first(network: Network, tmp_path: Path) -> None:
    report = portable(network, EXAMPLE, tmp_path / "m", check=False)
    assert report.notes == tuple(f"captured {name!r} with the dynamo front end" for name in ("train", "infer"))
    assert report.warnings == ()
    methods = Bundle.open(tmp_path / "m").program.methods
    assert {method.captured_with for method in methods.values()} == {"dynamo"}


class Undiscoverable(nn.Module):
    """Dynamo may not look into a function that is hidden from it; the others run it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    @torch._dynamo.disable
    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).sin()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.hidden(x).sum()


@pytest.mark.parametrize("front_end", capture.FRONT_ENDS)
def test_front_ends_can_be_chosen(tmp_path: Path, front_end: str) -> None:
    out = tmp_path / "m.aotpack"
    portable(torch.sin, (torch.zeros(3),), out, front_ends=(front_end,))
    methods = aotpack.load(out).aotpack.program.methods
    assert {method.captured_with for method in methods.values()} == {front_end}


class SparseGradient(torch.nn.Module):
    """A scaled embedding: its gradient computes with a sparse tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(5, 3, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(x, self.table.weight * 2, sparse=True)


@pytest.mark.parametrize("front_end", ["dynamo", "trace"])
def test_what_only_the_gradient_makes_is_refused_with_the_line_it_belongs_to(tmp_path: Path, front_end: str) -> None:
    expected = r'test_build.py", line \d+, in forward: return torch.nn.functional.embedding.*tensor of layout torch.sparse_coo'
    with pytest.raises(UnsupportedError, match=expected):
        portable(SparseGradient(), (torch.tensor([1, 2]),), tmp_path / "m.aotpack", front_ends=(front_end,))


def test_what_is_sparse_inside_is_refused_with_its_line(tmp_path: Path) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).to_sparse() * 2

    with pytest.raises(UnsupportedError, match=r"return \(x \* 2\)\.to_sparse\(\) \* 2: aten\._to_sparse\.default makes"):
        portable(function, (torch.eye(3),), tmp_path / "m.aotpack", front_ends=("trace",))


def test_sparse_and_quantized_examples_are_refused_by_path(tmp_path: Path) -> None:
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(UnsupportedError, match=r"x\['a'\]: a tensor of layout torch.sparse_coo"):
        portable(lambda x, *, y: x["a"] + y, ({"a": sparse},), tmp_path / "m.aotpack", {"y": torch.eye(3)})


def test_front_ends_are_checked(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="'jit' is not one of dynamo, export, trace"):
        portable(torch.sin, (torch.zeros(3),), tmp_path / "m.aotpack", front_ends=("jit",))
    with pytest.raises(BuildError, match="front_ends: at least one is needed"):
        portable(torch.sin, (torch.zeros(3),), tmp_path / "m.aotpack", front_ends=())


@pytest.mark.parametrize("front_end", capture.FRONT_ENDS)
def test_automatic_sizes_vary_where_the_model_lets_them(tmp_path: Path, front_end: str) -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, 2, 2) * 2 if x.shape[1] == 4 else x

    out = tmp_path / "m.aotpack"
    sizes = ({0: torch.export.Dim.AUTO, 1: torch.export.Dim.AUTO},)
    portable(model, (torch.zeros(3, 4),), out, front_ends=(front_end,), dynamic_shapes=sizes)
    loaded = aotpack.load(out)
    assert loaded(torch.zeros(7, 4)).shape == (7, 2, 2)
    with pytest.raises(InputError, match=r"expected float32\[s\d+=\d+\.\.,4\], got float32\[7,8\]"):
        loaded(torch.zeros(7, 8))


class TakesAny(nn.Module):
    def forward(self, x: torch.Tensor, **rest: torch.Tensor) -> torch.Tensor:
        return sum(rest.values(), x) * x


@pytest.mark.parametrize("front_end", capture.FRONT_ENDS)
@pytest.mark.parametrize("model", [TakesAny(), lambda *args, **rest: TakesAny()(*args, **rest)], ids=["module", "function"])
def test_sizes_of_any_keywords_vary(tmp_path: Path, front_end: str, model: Any) -> None:
    n, out = torch.export.Dim("n", max=9), tmp_path / "m.aotpack"
    x = torch.ones(3)
    shapes = {"x": {0: n}, "y": {0: n}, "z": {0: n}} if isinstance(model, nn.Module) else [{0: n}] * 3
    portable(model, (x,), out, {"y": x.clone(), "z": x.clone()}, front_ends=(front_end,), dynamic_shapes=shapes)
    assert aotpack.load(out)(torch.ones(5), y=torch.ones(5), z=torch.ones(5)).tolist() == [3.0] * 5


def test_example_inputs_that_are_no_call_of_the_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"do not match the signature of the model.*\n.*too many positional arguments"):
        portable(TakesAny(), (torch.ones(3),) * 2, tmp_path / "m", dynamic_shapes=({0: torch.export.Dim("n")}, None))


@pytest.mark.parametrize("expected", ["export", "trace"])
def test_what_dynamo_refuses_the_next_front_end_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, expected: str) -> None:
    if expected == "trace":

        def refuse(*args: object) -> None:
            raise ValueError("export has its own reasons")

        monkeypatch.setitem(front_ends._FRONT_ENDS, "export", refuse)
    torch.manual_seed(0)
    model = Undiscoverable()
    x = torch.randn(2, 3)
    report = portable(model, (x,), tmp_path / "m")
    assert f"captured 'train' with the {expected} front end" in report.notes
    assert any(note.startswith("the dynamo front end refused 'train': ") for note in report.notes)
    assert not any("refused" in warning for warning in report.warnings)  # the build succeeds
    assert expected == "export" or any("export has its own reasons" in note for note in report.notes)
    assert not any("checkpoint" in warning for warning in report.warnings)
    loaded = aotpack.load(tmp_path / "m")
    for each in (model, loaded):
        each(x).backward()
    torch.testing.assert_close(loaded.get_parameter("linear.weight").grad, model.linear.weight.grad)


# ---------------------------------------------------------------- partitioning


def test_the_partitioner_decides_what_is_saved(network: Network, tmp_path: Path) -> None:
    def saved(name: str, **options: Any) -> int:
        return portable(network, EXAMPLE, tmp_path / name, **options).saved_bytes["train"]

    min_cut = saved("min-cut")
    assert saved("explicit", partitioner="min-cut") == min_cut
    assert saved("all", memory_budget=1.0) == min_cut
    default, little, nothing = (
        saved("default", partitioner="default"),
        saved("half", memory_budget=0.5),
        saved("none", memory_budget=0.0),
    )
    assert default > min_cut > little >= nothing
    x = torch.randn(32, 64)
    network(x).backward()
    for name in ("min-cut", "default", "half", "none"):
        loaded = aotpack.load(tmp_path / name)
        loaded(x).backward()
        for key, parameter in network.named_parameters():
            torch.testing.assert_close(loaded.get_parameter(key).grad, parameter.grad, msg=f"{name} {key}")


def test_a_budget_saves_the_smallest_and_latest_of_equal_choices(tmp_path: Path) -> None:
    """Every product of these layers takes as many operations; torch's own solvers take the large results, and the first."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32), nn.Tanh()) for _ in range(4)]
    model, x = nn.Sequential(*layers), torch.randn(256, 32)
    small = 256 * 32 * 4  # bytes
    report = portable(model, (x,), tmp_path / "small", memory_budget=0.4)
    assert report.saved_bytes["train"] == 4 * small
    with functorch_config.patch(activation_memory_budget_solver="dp_knapsack_sliding_hirschberg"):  # what a user sets stays
        assert portable(model, (x,), tmp_path / "theirs", memory_budget=0.4).saved_bytes["train"] == 7 * small
    assert portable(model, (x,), tmp_path / "late", memory_budget=0.2).saved_bytes["train"] == 3 * small
    bundle = Bundle.open(tmp_path / "late")
    _, *saved = bundle.graph(bundle.program.methods["train"].forward).outputs
    assert [value.name for value in saved if isinstance(value, schema.ValueRef)] == ["tanh_3", "tanh_5", "detach_8"]


# ---------------------------------------------------------------- options


def test_all_wrong_options_are_listed(network: Network, tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        portable(network, [torch.zeros(1)], tmp_path / "m", partitioner="best", memory_budget=2, methods=("train", "test", "x"))  # type: ignore[arg-type]
    assert [str(problem) for problem in caught.value.problems] == [
        "args: expected a tuple of positional arguments, got list",
        "partitioner: 'best' is not one of min-cut, default",
        "memory_budget: 2 is not between 0 and 1",
        "methods: 'test' is not one of train, infer, eval",
        "methods: 'x' is not one of train, infer, eval",
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"methods": ()}, "at least one is needed"),
        ({"partitioner": "default", "memory_budget": 0.5}, "only the min-cut partitioner has one"),
        ({"memory_budget": float("nan")}, "nan is not between 0 and 1"),
        ({"layout": "zip"}, "zip"),
        ({"methods": ("train", "train")}, "train"),
    ],
)
def test_a_wrong_option(network: Network, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(BuildError, match=message):
        portable(network, EXAMPLE, tmp_path / "m", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (("gpu",), "There is no target 'gpu'"),
        (("cpu:x86-64-v9",), "There is no target 'cpu:x86-64-v9'"),
        (("portable:fast",), "has no variants"),
        ((), "No target was asked for"),
        ("portable", "targets"),
    ],
)
def test_a_wrong_target(network: Network, tmp_path: Path, targets: Any, message: str) -> None:
    if "cpu" in message and not compiles_native_code():
        pytest.skip("this torch makes no native code")
    with pytest.raises(BuildError, match=message):
        aotpack.build(network, EXAMPLE, out=tmp_path / "m", targets=targets)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="int"):
        portable(3, EXAMPLE, tmp_path / "m")


def test_example_inputs_that_do_not_fit_the_model(network: Network, tmp_path: Path) -> None:
    with pytest.raises(BuildError):
        portable(network, (torch.zeros(32, 63),), tmp_path / "m")
    with pytest.raises(BuildError):
        portable(network, (), tmp_path / "m")
    with pytest.raises(BuildError):
        portable(network, EXAMPLE, tmp_path / "m", {"nothing": 1})
    assert list(tmp_path.iterdir()) == []


def test_sizes_of_0_and_1_are_tried_quietly_and_the_example_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch logs what fails on fake tensors, with a traceback: in a trial that is no news, anywhere else it still is."""

    def not_for_one(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.mm(x.squeeze(0), torch.ones(4, 4)).sum() + y.sum()

    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(handler)
    tried: list[dict[str, int]] = []
    original = zero_one.SizeRun._difference

    def noted(trial: Any, *example: Any) -> dict[str, str]:
        tried.append(dict(trial.sizes))
        original(trial, *example)
        return {"fails": "differs"} if {0, 1} & {*trial.sizes.values()} else {}

    monkeypatch.setattr(zero_one.SizeRun, "_difference", noted)
    try:
        sizes = ({0: torch.export.Dim("n", min=0)}, {0: torch.export.Dim("m", min=0)})
        portable(not_for_one, (torch.zeros(3, 4), torch.zeros(5)), tmp_path / "m", methods=("infer",), dynamic_shapes=sizes)
        at_edges = [sizes for sizes in tried if {0, 1} & {*sizes.values()}]
        assert len(at_edges) == 4
        assert len(tried) == 5
        assert not records
        with capture.front_ends.fake_tensors.fake_mode_with_shapes(), pytest.raises(RuntimeError):
            torch.ones(2, 3) @ torch.ones(2, 3)
        assert records
    finally:
        logger.removeHandler(handler)


def test_all_wrong_dynamic_shapes_are_listed(tmp_path: Path) -> None:
    def model(x: torch.Tensor, *, pair: dict[str, torch.Tensor]) -> torch.Tensor:
        return x.sum() + pair["a"].sum()

    batch = torch.export.Dim("batch")
    shapes = {"x": {3: batch, 0: 7}, "pair": {"a": {-5: batch}}, "z": {0: batch}}
    with pytest.raises(BuildError, match="dynamic_shapes does not fit") as caught:
        portable(model, (torch.zeros(4, 2),), tmp_path / "m", {"pair": {"a": torch.zeros(4)}}, dynamic_shapes=shapes)
    assert {str(problem) for problem in caught.value.problems} == {
        "dynamic_shapes['z']: no example input has that name; there are: x, pair",
        "x.shape[3]: the tensor has 2 dimensions",
        "x.shape[0]: dynamic_shapes says 7, the example has 4",
        "pair['a'].shape[-5]: the tensor has 1 dimensions",
    }


def test_a_size_the_model_fixes_cannot_be_dynamic(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    with pytest.raises(BuildError, match=r"4|batch|s\d+"):
        portable(lambda x: x + torch.ones(4), (torch.zeros(4),), tmp_path / "m", dynamic_shapes={"x": {0: batch}})
    assert list(tmp_path.iterdir()) == []


def test_an_example_outside_its_own_range(tmp_path: Path) -> None:
    batch = torch.export.Dim("batch", min=8, max=64)
    with pytest.raises(BuildError):
        portable(lambda x: x.sum(), (torch.zeros(4),), tmp_path / "m", dynamic_shapes={"x": {0: batch}})


# ---------------------------------------------------------------- methods


def test_gradients_through_the_eval_mode_graph(network: Network, tmp_path: Path) -> None:
    network.norm.running_mean.add_(0.5)
    portable(network, EXAMPLE, tmp_path / "m", methods=("train", "infer", "eval"))
    loaded = aotpack.load(tmp_path / "m")
    x = torch.randn(32, 64)
    for training in (False, True, False):
        for model in (network, loaded):
            model.train(training).zero_grad()
            model(x).backward()
        for name, parameter in network.named_parameters():
            torch.testing.assert_close(loaded.get_parameter(name).grad, parameter.grad, msg=f"{training} {name}")
        torch.testing.assert_close(dict(loaded.named_buffers()), dict(network.named_buffers()))


def test_only_the_methods_asked_for(network: Network, tmp_path: Path) -> None:
    report = portable(network, EXAMPLE, tmp_path / "m", methods=("infer",))
    assert report.saved_bytes == {}
    loaded = aotpack.load(tmp_path / "m").train()
    for grad in (True, False):
        with pytest.raises(ModeError, match=r"train\(\)"), torch.set_grad_enabled(grad):
            loaded(*EXAMPLE)


class TrainsOnly(nn.Module):
    """Its way in eval mode depends on data, and closes over a tensor of its own."""

    def __init__(self, *, in_training: bool = False) -> None:
        super().__init__()
        self.layer, self.fails_in = nn.Linear(4, 4), in_training

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training == self.fails_in:
            x = x * torch.tensor([1.0, 2.0, 3.0, 4.0])
            return x if x.sum() > 0 else -x
        return self.layer(x)


def test_a_default_method_that_training_does_not_need_may_fail(tmp_path: Path) -> None:
    report = portable(TrainsOnly(), (torch.zeros(3, 4),), tmp_path / "m")
    assert report.methods == ("train",)
    assert any("no method 'infer' was built" in line and "x.sum() > 0" in line for line in report.warnings)
    loaded = load(tmp_path / "m")
    assert set(loaded.aotpack.program.methods) == {"train"}
    loaded(torch.ones(3, 4)).sum().backward()
    with torch.no_grad(), pytest.raises(ModeError, match="no method for eval"):
        loaded.eval()(torch.ones(3, 4))


@pytest.mark.parametrize(("in_training", "methods"), [(False, ("train", "infer")), (True, None)])
def test_a_method_that_was_asked_for_or_trains_may_not_fail(tmp_path: Path, in_training: bool, methods: Any) -> None:
    with pytest.raises(CaptureError, match=f"in {'train' if in_training else 'eval'} mode"):
        aotpack.build(
            TrainsOnly(in_training=in_training),
            (torch.zeros(3, 4),),
            out=tmp_path / "m",
            targets=("portable",),
            methods=methods,
        )


def test_a_function_has_no_modes(tmp_path: Path) -> None:
    portable(lambda x: x.sin(), (torch.zeros(3, requires_grad=True),), tmp_path / "m")
    loaded = aotpack.load(tmp_path / "m")
    for training in (True, False):
        x = torch.randn(3, requires_grad=True)
        loaded.train(training)(x).sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos())


# ---------------------------------------------------------------- self-test


def verify(path: Path, *options: str) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["verify", str(path), "--json", *options])
    document: dict[str, Any] = json.loads(result.stdout)
    assert document["ok"] is (result.exit_code == 0)
    return document


def test_the_self_test_passes_and_notices_other_weights(
    network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = (torch.randn(32, 64),)
    portable(network, x, tmp_path / "m", self_test=True)
    checks = {check["name"]: check["status"] for check in verify(tmp_path / "m")["checks"]}
    assert checks == {"documents": "ok", "digests": "ok", "signature": "skipped", "self-test portable": "ok"}
    really = PortableExecutable.__call__

    def wrong(self: PortableExecutable, inputs: list[Any]) -> list[Any]:
        return [out * 1.01 if isinstance(out, torch.Tensor) and out.is_floating_point() else out for out in really(self, inputs)]

    monkeypatch.setattr(PortableExecutable, "__call__", wrong)
    assert verify(tmp_path / "m")["ok"] is False


def test_a_self_test_allows_for_the_rounding_of_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bias before BatchNorm has a gradient of zero: what is left of it is other rounding on every target."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 5))
    portable(network, (torch.randn(8, 3, 8, 8),), tmp_path / "m", self_test=True)
    observe = replay.observe

    def off(by: float) -> bool:
        def observed(*args: Any, **options: Any) -> Any:
            for name, value in observe(*args, **options):
                yield name, value + by * (-1) ** torch.arange(4) if name == "gradient.0.bias" else value

        monkeypatch.setattr(replay, "observe", observed)
        return run_self_test(tmp_path / "m").ok

    assert off(3e-6)
    assert not off(1e-2)


def test_a_self_test_holds_sparse_results(tmp_path: Path) -> None:
    portable(lambda x: (x * 2).to_sparse(), (torch.eye(3),), tmp_path / "m", self_test=True, front_ends=("trace",))
    report = run_self_test(tmp_path / "m")
    assert report.ok
    assert [row[0] for row in report.rows] == ["result.0"]


def test_a_model_that_draws_cannot_be_self_tested(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    with pytest.raises(BuildError, match="draws random numbers"):
        portable(model, (torch.zeros(2, 4),), tmp_path / "m", self_test=True)
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- graphs


def mixed(x: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> Any:
    """Arguments of many kinds: lists of tensors, None, dtypes, memory formats, infinities, several results."""
    a, b = torch.cat([x, y.t()], 1).split([3, 5], dim=1)
    padded = F.pad(a, (1, 2), value=float("-inf")).clamp(max=2.5).nan_to_num(neginf=-1.0)
    values, order = padded.sort(dim=1, descending=True)
    picked = values[:, index, None].to(torch.float64).contiguous(memory_format=torch.contiguous_format)
    return {"r": picked.sum() + b.std(), "s": torch.full_like(x, float("inf")), "t": order, "u": x.new_zeros(2, dtype=torch.bool)}


def typed(node: torch.fx.Node) -> Any:
    """A value of the type that the format recorded for a node."""
    value = node.meta["aotpack"]
    if isinstance(value, schema.TensorValue):
        storage = torch.empty(10_000, dtype=getattr(torch, value.dtype), device="meta")
        return storage.as_strided(value.shape, value.stride, value.offset)
    return () if getattr(value, "kind", None) == "tuple" else None


@pytest.mark.parametrize(
    "make",
    [
        lambda: (mixed, (torch.randn(4, 4), torch.randn(4, 4).requires_grad_(), torch.tensor([0, 2]))),
        lambda: (Network(8), (torch.randn(6, 8),)),
    ],
)
def test_graphs_go_to_fx_and_back_without_loss(tmp_path: Path, make: Callable[[], tuple[Any, tuple[torch.Tensor, ...]]]) -> None:
    model, args = make()
    portable(model, args, tmp_path / "m")
    with Bundle.open(tmp_path / "m") as bundle:
        for method in bundle.program.methods.values():
            for descriptor in [method.forward, *([method.backward.graph] if method.backward else [])]:
                graph = bundle.graph(descriptor)
                module = to_fx(graph)
                for node in module.graph.nodes:
                    if node.op != "output":
                        node.meta["val"] = typed(node)
                assert from_fx(module, None) == graph
                module.graph.lint()
                inputs = [torch.zeros(value.shape, dtype=getattr(torch, value.dtype)) for value in graph.input_values]
                expected = PortableExecutable(graph, torch.device("cpu"))(list(inputs))
                torch.testing.assert_close(list(module(*inputs)), expected, equal_nan=True)
