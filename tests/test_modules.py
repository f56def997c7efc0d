"""The modules of the original in a loaded bundle: what they print, what they are, and what happens to edits of them."""

from __future__ import annotations

import copy
import functools
import io
import re
import sys
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from support.archive import Documents, pack
from torch import nn
from torch.ao.quantization import quantize_dynamic
from torch.nn.utils import prune
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations
from torch.optim.swa_utils import update_bn

import aotpack
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import AotpackError, CorruptBundleError, EditError, InputError, ModeError, StateError
from aotpack_loader.format import schema
from aotpack_loader.format.validate import validate_program
from aotpack_loader.module.original_class import imported


class Block(nn.Module):
    """A convolution with everything that has a mode."""

    rate = 0.5

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.ReLU()
        self.scale = 2.0
        self.sizes = [1, [2, 3], (4,)]
        self.picked = torch.sigmoid

    def forget(self) -> None:
        """What an initialiser may call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.picked(self.act(self.norm(self.conv(x)))) * self.scale * self.rate


class Other(Block):
    """Has a method of its own."""

    def forget(self) -> None:
        """Another."""


class Net(nn.Module):
    """Containers of every kind, a layer under two names, dropout of something and of nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(Block(), nn.Dropout(0.25), nn.Dropout(0.0))
        self.head = nn.Linear(4, 2, bias=False)
        self.tasks = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
        self.layers = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
        self.again = self.layers[0]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.head(self.features(x).mean((2, 3)))
        for layer in (*self.layers, self.again, *self.tasks.values()):
            y = layer(y)
        return y


IMAGES = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture(scope="module")
def net_bundle(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("net") / "net.aotpack"
    aotpack.build(net, (IMAGES,), out=out, targets=("portable",), rng="eager")
    return out


# ---------------------------------------------------------------- the document


def test_the_program_has_the_modules_of_the_original(net: Net, net_bundle: Path) -> None:
    with Bundle.open(net_bundle) as bundle:
        program = bundle.program
    names = {module.name: module for module in program.modules}
    assert list(names) == [name for name, _ in net.named_modules(remove_duplicate=False)]
    classes = {name: program.module_classes[module.kind] for name, module in names.items()}
    assert classes["features.0"].name.endswith("test_modules.Block")
    assert classes["features.0"].base == ""
    assert {"rate", "picked"} <= set(classes["features.0"].names)
    assert classes["features.0.norm"].base == "BatchNorm2d"
    assert names["features.0.norm"].text == net.features[0].norm.extra_repr()
    assert names["head"].attributes == {"in_features": 4, "out_features": 2, "bias": None}
    assert names["again"].same_as == "layers.0"


def test_methods_name_the_modes_they_depend_on(net_bundle: Path) -> None:
    with Bundle.open(net_bundle) as bundle:
        methods = bundle.program.methods
    assert methods["train"].flags == {"features.0.norm": True, "features.1": True}
    assert methods["infer"].flags == {"features.0.norm": False, "features.1": False}


def _with_modules(net_bundle: Path, modules: list[schema.Module], **fields: Any) -> schema.Program:
    with Bundle.open(net_bundle) as bundle:
        return structs.replace(bundle.program, modules=modules, module_classes=[schema.ModuleClass("model.Net")], **fields)


def _tree(*paths: tuple[str, str | None]) -> list[schema.Module]:
    return [schema.Module(name, 0, same_as=same) for name, same in (("", None), *paths)]


_TWICE = [item for n in range(1, 30) for item in ((f"m{n}", None), (f"m{n}.x", f"m{n - 1}"), (f"m{n}.y", f"m{n - 1}"))]
"""Each holds the one before twice: more paths than any torch would walk."""


@pytest.mark.parametrize(
    ("modules", "rule"),
    [
        (_tree()[1:] + _tree(("a", None))[1:], "N1"),
        (_tree(("a.b", None)), "N1"),
        (_tree(("a", None), ("a", None)), "N1"),
        (_tree(("a", None), ("b", None), ("a.c", None)), "N1"),
        (_tree(("a", None), ("b", "a"), ("b.c", None)), "N1"),
        (_tree(*((".".join("a" * n), None) for n in range(1, 65))), "N1"),
        ([schema.Module("", 7)], "N1"),
        (_tree(("a", None), ("b", "c"), ("c", None)), "N2"),
        (_tree(("a", None), ("a.b", "a")), "N2"),
        (_tree(("a", None), ("b", "a"), ("c", "b")), "N2"),
        (_tree(("m0", None), *_TWICE), "N2"),
        (_tree(("a", None)), "N3"),
        (_tree(("features", None)), "N4"),
    ],
)
def test_modules_that_make_no_tree(net_bundle: Path, modules: list[schema.Module], rule: str) -> None:
    with pytest.raises(CorruptBundleError, match=f"{rule}: "):
        validate_program(_with_modules(net_bundle, modules), "program")


def test_what_lies_in_a_shared_module_is_tied(net_bundle: Path) -> None:  # N3
    with Bundle.open(net_bundle) as bundle:
        program = bundle.program
    validate_program(program, "program")
    untied = [structs.replace(entry, tied_to=None) for entry in program.state]
    with pytest.raises(CorruptBundleError, match=r"N3: 'again.weight' has the same module and name as 'layers.0.weight'"):
        validate_program(structs.replace(program, state=untied), "program")


# ---------------------------------------------------------------- what a loaded module prints and is


@pytest.fixture
def loaded(net_bundle: Path) -> aotpack.LoadedProgram:
    return aotpack.load(net_bundle)


def test_modules_print_as_what_they_were(net: Net, loaded: aotpack.LoadedProgram) -> None:
    for name, module in net.named_modules(remove_duplicate=False):
        if name:
            assert repr(loaded.get_submodule(name)) == repr(module), name
    assert repr(loaded).splitlines()[2:] == repr(net).splitlines()[1:]


class Told(nn.Linear):
    """Shows text of its own."""

    def __init__(self, text: str) -> None:
        super().__init__(2, 2)
        self.text = text
        self.inner: nn.Module | None = None if text else Told("rate=0.5\nsecond line")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if self.inner is None else self.inner(x)

    def extra_repr(self) -> str:
        return self.text or "outer=1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("<object at 0x7f001234>", ""), ("a\x1b[31m\u202e", r"a\x1b[31m\u202e"), ("x" * 3000, "x" * 2000 + "…")],
)
def test_texts_of_classes_of_ones_own(tmp_path: Path, text: str, expected: str) -> None:
    model = Told("")
    aotpack.build(model, (torch.ones(1, 2),), out=tmp_path / "told.aotpack", targets=("portable",), methods=("infer",))
    loaded = aotpack.load(tmp_path / "told.aotpack")
    assert repr(loaded.inner) == repr(model.inner)
    assert repr(loaded).splitlines()[:2] == repr(model).splitlines()[:2] == ["Told(", "  outer=1"]
    odd = nn.Sequential(Told(text))
    aotpack.build(odd, (torch.ones(1, 2),), out=tmp_path / "odd.aotpack", targets=("portable",), methods=("infer",))
    assert repr(aotpack.load(tmp_path / "odd.aotpack")[0]) == f"Told({expected})"


def test_containers_are_walked_through_as_in_eager(net: Net, loaded: aotpack.LoadedProgram) -> None:
    features, layers, tasks = loaded.features, loaded.layers, loaded.tasks
    assert [type(m).__name__ for m in features] == ["Block", "Dropout", "Dropout"]
    assert (len(features), len(layers), list(tasks)) == (3, 2, ["a", "b"])
    assert layers[-1] is loaded.get_submodule("layers.1")
    assert loaded.again is layers[0]
    assert tasks["b"] is loaded.tasks.b
    assert type(layers[:1]) is nn.ModuleList
    assert type(features[1:]) is nn.Sequential
    for parameter in layers[:1].parameters():
        parameter.requires_grad_(False)
    assert [name for name, p in loaded.named_parameters() if not p.requires_grad] == ["layers.0.weight", "layers.0.bias"]
    assert [name for name, _ in loaded.named_modules()] == [name for name, _ in net.named_modules()]


def test_modules_of_torchs_classes_are_instances_of_them(net: Net, loaded: aotpack.LoadedProgram) -> None:
    norm = nn.modules.batchnorm._BatchNorm
    kinds = (nn.Linear, nn.Conv2d, norm, nn.Dropout, nn.Sequential, nn.ModuleList, nn.ModuleDict, Block, Net)
    for name, module in net.named_modules():
        for kind in kinds:
            assert isinstance(loaded.get_submodule(name), kind) == isinstance(module, kind), (name, kind)
    assert (loaded.head.in_features, loaded.head.bias, loaded.features[0].scale) == (4, None, 2.0)
    assert loaded.features[0].norm.momentum == 0.1


class _Lazy(types.ModuleType):
    """Imports what it is asked for."""

    Found = nn.Linear

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


def test_classes_are_looked_up_where_they_were_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = _Lazy("aotpack_lazy")
    lazy.made = Block()  # type: ignore[attr-defined]
    lazy.Holder = types.SimpleNamespace(Inner=Block)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "aotpack_lazy", lazy)
    for name in (
        "",
        "aotpack_lazy",
        "aotpack_lazy.Later",
        "aotpack_lazy.made",
        "aotpack_lazy.Holder.Inner",
        "aotpack_lazy.Found",
    ):
        assert imported(name, nn.Module) is None, name
    for name in ("subprocess.Popen", "torch.nn.functional.relu", "aotpack_nowhere.Block", "json.decoder.JSONDecoder"):
        assert imported(name, nn.Module) is None, name
    lazy.Found = Block  # type: ignore[misc]
    assert imported("aotpack_lazy.Found", nn.Module) is Block
    assert imported("aotpack_lazy.Found", nn.Linear) is None
    assert imported(f"{__name__}._Lazy.Found", nn.Module) is nn.Linear


def test_a_class_that_a_function_made_is_found(tmp_path: Path) -> None:
    def make() -> type[nn.Module]:
        class Local(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.weight = nn.Parameter(torch.ones(2))

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.weight

        return Local

    older, local = make(), make()
    aotpack.build(nn.Sequential(local()), (torch.ones(2),), out=tmp_path / "m", targets=("portable",))
    loaded: Any = aotpack.load(tmp_path / "m")
    loaded.apply(lambda module: module.weight.data.fill_(3) if isinstance(module, local) else None)
    assert loaded(torch.ones(2)).tolist() == [3, 3]
    assert isinstance(loaded[0], local)
    assert not isinstance(loaded[0], older)


def test_a_parametrized_stand_in_is_again_what_it_was(loaded: aotpack.LoadedProgram) -> None:
    block = loaded.features[0]
    stand_in = type(block)
    nn.utils.parametrize.register_parametrization(block.conv, "weight", _Symmetric())
    block.__class__ = type("Derived", (Block,), {})
    assert type(block).__mro__[1] is stand_in
    assert Block not in type(block).__mro__
    block.__class__ = stand_in
    assert type(block) is stand_in
    assert isinstance(block, Block)


def test_initialising_by_class_acts(net: Net, loaded: aotpack.LoadedProgram) -> None:
    def initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            nn.init.constant_(module.weight, 0.25)
        elif hasattr(module, "reset_parameters"):
            module.reset_parameters()

    original = copy.deepcopy(net)
    original.features[0].norm.running_mean.fill_(3)
    loaded.features[0].norm.running_mean.fill_(3)
    original.apply(initialise)
    loaded.apply(initialise)
    for name, value in original.state_dict().items():
        if "bias" not in name:
            assert torch.equal(loaded.state_dict()[name], value), name


def test_a_stand_in_is_neither_called_nor_made_nor_pickled(loaded: aotpack.LoadedProgram) -> None:
    with pytest.raises(ModeError, match=r"layers\.0: .*called as a whole"):
        loaded.layers[0](torch.ones(2))
    with pytest.raises(AotpackError, match="Block stands for a class of the original"):
        type(loaded.features[0])()
    with pytest.raises(AotpackError, match="cannot be pickled"):
        torch.save(loaded.head, io.BytesIO())
    assert type(type(loaded.head)(3, 2)) is nn.Linear


# ---------------------------------------------------------------- edits


def _hooked(register: str) -> Callable[[Any], object]:
    return lambda m: getattr(m.features[0], register)(lambda *args: None)


def _weight_norm(m: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn.utils.weight_norm(m.head)


REFUSED: dict[str, tuple[Callable[[Any], object], type[Exception], str]] = {
    "replace": (lambda m: setattr(m, "head", nn.Linear(4, 2)), EditError, "head: cannot become a Linear"),
    "replace in a container": (lambda m: m.layers.__setitem__(0, nn.Linear(2, 2)), EditError, r"layers\.0: cannot become"),
    "replace in the dictionary": (lambda m: m._modules.update(head=nn.ReLU()), EditError, "head: cannot become a ReLU"),
    "replace by None": (lambda m: setattr(m, "head", None), EditError, "head: cannot become a NoneType"),
    "delete": (lambda m: delattr(m, "head"), EditError, "head: cannot be removed"),
    "delete from a container": (lambda m: m.features.__delitem__(1), EditError, r"features\.1: cannot be removed"),
    "append": (lambda m: m.features.append(nn.ReLU()), EditError, r"features\.3: a ReLU cannot be added"),
    "insert": (lambda m: m.layers.insert(0, nn.ReLU()), EditError, r"layers\.2: a Linear cannot be added"),
    "add_module": (lambda m: m.add_module("extra", nn.ReLU()), EditError, "extra: a ReLU cannot be added"),
    "update of a ModuleDict": (lambda m: m.tasks.update({"c": nn.ReLU()}), EditError, r"tasks\.c: a ReLU cannot be added"),
    "pop of a ModuleDict": (lambda m: m.tasks.pop("a"), EditError, r"tasks\.a: cannot be removed"),
    "a new parameter": (lambda m: setattr(m.head, "bias", nn.Parameter(torch.ones(2))), EditError, r"head\.bias: a parameter"),
    "a new buffer": (lambda m: m.head.register_buffer("mask", torch.ones(2)), EditError, r"head\.mask: a buffer"),
    "torch.fx": (torch.fx.symbolic_trace, EditError, r"torch\.fx cannot trace a loaded bundle"),
    "a removed parameter": (lambda m: setattr(m.layers[1], "bias", None), InputError, r"layers\.1\.bias: was removed"),
    "dropout": (lambda m: setattr(m.features[1], "p", 0.0), EditError, r"features\.1\.p: was 0\.25 .* cannot become 0\.0"),
    "momentum": (lambda m: setattr(m.features[0].norm, "momentum", 0.5), EditError, r"norm\.momentum: was 0\.1"),
    "a number of a block": (lambda m: setattr(m.features[0], "scale", 1.0), EditError, r"features\.0\.scale: was 2\.0"),
    "a number of a class": (lambda m: setattr(m.features[0], "rate", 1.0), EditError, r"features\.0\.rate: is part of"),
    "a function of a block": (lambda m: setattr(m.features[0], "picked", torch.tanh), EditError, r"features\.0\.picked: is"),
    "a deleted attribute": (lambda m: delattr(m.features[0], "scale"), EditError, r"features\.0\.scale: cannot be removed"),
    "a list": (lambda m: m.features[0].sizes.append(5), EditError, r"features\.0\.sizes: cannot be changed in place"),
    "an item": (lambda m: m.features[0].sizes.__setitem__(0, 5), EditError, r"features\.0\.sizes: cannot be changed"),
    "an item inside": (lambda m: m.features[0].sizes[1].clear(), EditError, r"features\.0\.sizes\[1\]: cannot be changed"),
    "a longer list": (lambda m: setattr(m.features[0], "sizes", [1, [2, 3], (4,), 5]), EditError, r"sizes: was \[1, \[2, 3\]"),
    "an apply that asks for code": (
        lambda m: m.apply(lambda one: one.forget() if isinstance(one, Block) and hasattr(one, "forget") else None),
        EditError,
        r"features\.0\.forget: is part of the original's code",
    ),
    "a method": (lambda m: m.features[0].forget(), AttributeError, r"features\.0\.forget: is part of the original's code"),
    "a class with other code": (lambda m: setattr(m.features[0], "__class__", Other), EditError, "features.0: cannot become"),
    "forward": (lambda m: setattr(m.head, "forward", lambda x: x), EditError, r"head\.forward: cannot be replaced"),
    "another class": (lambda m: setattr(m.head, "__class__", nn.Identity), EditError, "head: cannot become an Identity"),
    "SyncBatchNorm": (nn.SyncBatchNorm.convert_sync_batchnorm, EditError, r"norm: cannot become a SyncBatchNorm"),
    "quantize_dynamic": (lambda m: quantize_dynamic(m, {nn.Linear}), EditError, "qconfig: cannot be set"),
    "frozen BatchNorm": (lambda m: m.features[0].norm.eval(), ModeError, r"features\.0\.norm: was in train\(\).* in eval\(\)"),
    "a branch in eval": (lambda m: m.features.eval(), ModeError, r"features\.0\.norm: .*\n.*features\.1: "),
    **{
        kind: (_hooked(f"register_{kind}"), EditError, r"features\.0: has a (forward|backward) (pre-)?hook, _hooked")
        for kind in ("forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook", "backward_hook")
    },
}


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated")
@pytest.mark.parametrize("name", REFUSED)
def test_an_edit_that_code_cannot_follow_is_refused(loaded: aotpack.LoadedProgram, name: str) -> None:
    edit, error, message = REFUSED[name]
    loaded(IMAGES)
    with pytest.raises(error, match=f"(?s){message}") as caught:  # noqa: PT012 - where it is made, or at the next call
        edit(loaded)
        loaded(IMAGES)
    assert isinstance(caught.value, AotpackError)
    assert caught.value.hint


def test_an_adapter_of_peft_is_told_how_to_be_built(loaded: aotpack.LoadedProgram) -> None:
    adapter = type("Linear", (nn.Linear,), {"__module__": "peft.tuners.lora.layer"})
    with pytest.raises(EditError, match=r"head: cannot become a Linear") as caught:
        loaded.head = adapter(4, 2)
    assert "get_peft_model(model, config)" in caught.value.hint


ACTING: dict[str, Callable[[Any], object]] = {
    "another parameter": lambda m: setattr(m.head, "weight", nn.Parameter(torch.ones(2, 4))),
    "the same again": lambda m: (setattr(m, "head", m.head), setattr(m.features[1], "p", 0.25), m.features[0].norm.train()),
    "modes that do not matter": lambda m: (m.features[2].eval(), m.layers.eval(), m.head.eval(), m.tasks.eval()),
    "modes put back": lambda m: (m.features.eval(), m.features.train()),
    "a new attribute": lambda m: setattr(m.head, "_is_initialised", True),
    "a hook that is removed": lambda m: m.head.register_forward_hook(lambda *args: None).remove(),
    "a hook of the whole": lambda m: m.register_forward_hook(lambda module, args, result: result * 3),
    "a pre-hook of the whole": lambda m: m.register_forward_pre_hook(lambda module, args: (args[0] * 3,)),
    "another forward of the whole": lambda m: setattr(m, "forward", functools.partial(_doubled, m.forward)),
    "a train of its own": lambda m: setattr(m.head, "train", types.MethodType(lambda one, mode=True: one, m.head)),
    "weight_norm of old": _weight_norm,
    "prune": lambda m: prune.l1_unstructured(m.head, "weight", 0.5),
    "weight_norm": lambda m: nn.utils.parametrizations.weight_norm(m.layers[1]),
    "weight_norm of a shared layer": lambda m: nn.utils.parametrizations.weight_norm(m.layers[0]),
    "orthogonal": lambda m: nn.utils.parametrizations.orthogonal(m.layers[1]),
    "other strides": lambda m: register_parametrization(m.head, "weight", _Turned()),
    "weight_norm and back": lambda m: remove_parametrizations(nn.utils.parametrizations.weight_norm(m.layers[1]), "weight"),
    "a parametrization of one's own": lambda m: register_parametrization(m.features[0].conv, "weight", _Symmetric()),
    "the same list": lambda m: setattr(m.features[0], "sizes", [1, [2, 3], (4,)]),
    "a copy of a list": lambda m: (copy.deepcopy(m.features[0].sizes)[1].append(5), list(m.features[0].sizes).append(5)),
    "apply by the class of a user": lambda m: m.apply(_freeze_blocks),
    "a parametrization below a user's class": lambda m: register_parametrization(m.features[0].conv, "bias", _Symmetric()),
    "update_bn": lambda m: update_bn([IMAGES, IMAGES * 3 + 1, IMAGES.cos()], m),
    "update_bn in between": lambda m: (m(IMAGES), update_bn([IMAGES * 2, IMAGES.cos()], m.eval()), m.train()),
    "averages by hand": lambda m: (m(IMAGES), setattr(m.features[0].norm, "momentum", None), m(IMAGES * 2)),
    "a tensor for a parameter": lambda m: (delattr(m.head, "weight"), setattr(m.head, "weight", torch.ones(2, 4) / 2)),
}


def _freeze_blocks(module: nn.Module) -> None:
    if isinstance(module, Block):
        assert module.sizes == [1, [2, 3], (4,)]
        module.conv.weight.data.mul_(2)
        module.norm.weight.requires_grad_(False)
    if isinstance(module, Net):
        nn.init.zeros_(module.head.weight)


class _Turned(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin().t().contiguous().t()


class _Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x.flip(-1)


def _doubled(forward: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return forward(x) * 2


@pytest.mark.parametrize("name", ACTING)
def test_an_edit_that_acts_acts_as_in_eager(net: Net, loaded: aotpack.LoadedProgram, name: str) -> None:
    original = copy.deepcopy(net)
    seen = []
    for model in (original, loaded, copy.deepcopy(loaded)):
        torch.manual_seed(0)
        ACTING[name](model)
        results = model(IMAGES)
        results.sum().backward()
        seen.append([results, *(p.grad for p in model.parameters()), *model.buffers()])
    torch.testing.assert_close(seen[1], seen[0])
    torch.testing.assert_close(seen[2], seen[0])


# ---------------------------------------------------------------- state dicts and element types


def _renamed(state: Any, prefix: str, *rest: Any) -> None:
    for name in [name for name in state if name.startswith(prefix + "old_")]:
        state[prefix + name.removeprefix(prefix + "old_")] = state.pop(name)


def _doubling(module: nn.Module, state: Any, prefix: str, *rest: Any) -> None:
    state[prefix + "weight"] = state[prefix + "weight"] * 2


def test_hooks_rename_entries_before_names_are_checked(net: Net, loaded: aotpack.LoadedProgram) -> None:
    checkpoint = {name.replace("head.", "old_head."): value for name, value in net.state_dict().items()}
    checkpoint = {name.replace("features.0.conv.", "features.0.conv.old_"): value for name, value in checkpoint.items()}
    with pytest.raises(StateError, match=r"head\.weight: missing"):
        loaded.load_state_dict(checkpoint)
    original = copy.deepcopy(net)
    for model in (original, loaded):
        model.register_load_state_dict_pre_hook(lambda module, *args: _renamed(*args))
        model.get_submodule("features.0.conv").register_load_state_dict_pre_hook(lambda module, *args: _renamed(*args))
        model.layers[1].register_load_state_dict_pre_hook(_doubling)
        assert str(model.load_state_dict(checkpoint)) == "<All keys matched successfully>"
        assert "old_head.weight" in checkpoint
    assert torch.equal(loaded.layers[1].weight, 2 * net.layers[1].weight)
    for name, value in original.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    del checkpoint["old_head.weight"]
    with pytest.raises(StateError, match=r"head\.weight: missing"):
        loaded.load_state_dict(checkpoint)
    assert torch.equal(loaded.layers[1].weight, 2 * net.layers[1].weight)
    assert loaded._load_state_dict_pre_hooks, "hooks are there for the next time"


def test_hooks_after_loading_may_clear_what_is_missing(net: Net, loaded: aotpack.LoadedProgram) -> None:
    """As for a part that is filled elsewhere."""
    checkpoint = {name: value * 2 for name, value in net.state_dict().items() if name != "head.weight"}
    for model in (copy.deepcopy(net), loaded):
        cleared = model.register_load_state_dict_post_hook(lambda module, keys: keys.missing_keys.remove("head.weight"))
        assert str(model.load_state_dict(checkpoint)) == "<All keys matched successfully>"
        assert all(torch.equal(model.state_dict()[name], value) for name, value in checkpoint.items())
        cleared.remove()
        model.register_load_state_dict_post_hook(lambda module, keys: None)
        with pytest.raises(RuntimeError, match=r"Missing key\(s\) in state_dict: \"head.weight\""):
            model.load_state_dict(checkpoint)


class _OwnCheckpoints(nn.Linear):
    def get_extra_state(self) -> int:
        return 3

    def set_extra_state(self, state: int) -> None:
        assert state == 3


def test_a_build_says_which_code_for_checkpoints_is_lost(net: Net, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2), _OwnCheckpoints(2, 2), nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))
    model[0].register_state_dict_post_hook(_doubling)
    model.register_load_state_dict_pre_hook(_doubling)
    report = aotpack.build(model, (torch.zeros(2, 2),), out=tmp_path / "m.aotpack", methods=("infer",))
    assert report.warnings == (
        "state_dict() of the bundle has its parameters and buffers as they are, and does not run 0: _doubling, "
        "1: _OwnCheckpoints.get_extra_state. Register such hooks on the loaded module.",
    )
    said = "load_state_dict() of the bundle does not run _doubling, 1: _OwnCheckpoints.set_extra_state: "
    assert any(note.startswith(said) for note in report.notes)
    report = aotpack.build(net, (torch.zeros(2, 3, 8, 8),), out=tmp_path / "n.aotpack", methods=("infer",))
    assert not [text for text in (*report.notes, *report.warnings) if "state_dict" in text]


def test_counters_that_old_checkpoints_lack(net: Net, loaded: aotpack.LoadedProgram) -> None:
    checkpoint = {name: value for name, value in net.state_dict().items() if not name.endswith("num_batches_tracked")}
    for model in (copy.deepcopy(net), loaded):
        assert str(model.load_state_dict(checkpoint)) == "<All keys matched successfully>"
    assert loaded.state_dict()._metadata == net.state_dict()._metadata  # type: ignore[attr-defined]


@pytest.mark.parametrize("cast", [nn.Module.half, nn.Module.bfloat16, nn.Module.double, lambda m: m.to(torch.float16)])
def test_another_element_type_names_the_parameters(loaded: aotpack.LoadedProgram, cast: Callable[[Any], Any]) -> None:
    wanted = cast(nn.Linear(1, 1)).weight.dtype
    cast(loaded)
    for images in (IMAGES, IMAGES.to(wanted)):
        with pytest.raises(InputError) as caught:
            loaded(images)
        messages = {problem.where: problem.message for problem in caught.value.problems}
        assert messages["head.weight"] == f"expected torch.float32, got {wanted}"
        assert ("x" in str(list(messages))) == (images is not IMAGES)
        assert "half(), bfloat16(), double() and to(dtype)" in caught.value.hint
        assert f"To compute in {wanted}, build" in caught.value.hint
    loaded.float()(IMAGES)


def test_an_error_about_many_parameters_shows_ten(tmp_path: Path) -> None:
    model = nn.Sequential(*[nn.Linear(3, 3) for _ in range(20)])
    aotpack.build(model, (torch.ones(2, 3),), out=tmp_path / "m", targets=("portable",))
    with pytest.raises(InputError) as caught:
        aotpack.load(tmp_path / "m").half()(torch.ones(2, 3).half())
    assert len(caught.value.problems) == 41
    assert re.search(r"input: .*\n  0.weight: .*\n  4.weight: [^\n]*\n  and 31 more\nThe bundle", str(caught.value), re.DOTALL)


# ---------------------------------------------------------------- modes of submodules


def _noise(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Reads the mode of a module that it is given, as attention functions of transformers do."""
    return nn.functional.dropout(x, 0.5, training=module.training)


class Noisy(nn.Module):
    """Its mode is read by a function outside."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _noise(self, self.linear(x))


class Plain(Noisy):
    """Nobody reads its mode."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


class Frozen(nn.Module):
    """A normalisation whose statistics stay."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(Plain(), nn.BatchNorm1d(3), Plain(), nn.BatchNorm1d(3), Noisy())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class KeepsFrozen(Frozen):
    """``train()`` leaves the first normalisation in eval mode."""

    def train(self, mode: bool = True) -> KeepsFrozen:
        super().train(mode)
        self.body[1].eval()
        return self


POINTS = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))


def _steps(model: nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(3)
    result = model(POINTS)
    result.sum().backward()
    return [result.detach(), *(p.grad for p in model.parameters() if p.grad is not None), *model.buffers()]


@pytest.mark.parametrize("front_end", ["dynamo", "trace"])
def test_a_branch_that_was_frozen_at_build_stays_so(tmp_path: Path, front_end: str) -> None:
    torch.manual_seed(0)
    model = Frozen()
    model.body[1].eval()
    aotpack.build(model, (POINTS,), out=tmp_path / "m", targets=("portable",), rng="eager", front_ends=(front_end,))
    assert [m.training for m in model.body] == [True, False, True, True, True]
    loaded = aotpack.load(tmp_path / "m")
    assert [m.training for m in loaded.body] == [True, False, True, True, True]
    flags = {name: method.flags for name, method in loaded.aotpack.program.methods.items()}
    assert flags["train"] == {"body.1": False, "body.3": True, "body.4": True}
    assert flags["infer"] == {"body.1": False, "body.3": False, "body.4": False}
    torch.testing.assert_close(_steps(loaded), _steps(model))
    loaded.train()  # as in eager: all of it, the frozen branch as well
    with pytest.raises(ModeError, match=r"body\.1: was in eval\(\) when the bundle was built, and is in train\(\)") as caught:
        loaded(POINTS)
    assert len(caught.value.problems) == 1
    loaded.body[1].eval()
    loaded.body[0].eval()  # does not matter
    torch.testing.assert_close(_steps(loaded)[0], _steps(model)[0])
    loaded.body[4].eval()
    with pytest.raises(ModeError, match=r"body\.4"):
        loaded(POINTS)


def test_a_model_that_keeps_a_branch_frozen_does_so_when_loaded(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = KeepsFrozen().train()
    aotpack.build(model, (POINTS,), out=tmp_path / "m", targets=("portable",), rng="eager")
    loaded = aotpack.load(tmp_path / "m")
    for mode in (False, True):
        for one in (model, loaded):
            one.train(mode)
        assert [m.training for m in loaded.modules()] == [m.training for m in model.modules()]
    torch.testing.assert_close(_steps(loaded), _steps(model))


# ---------------------------------------------------------------- documents that lie


def test_attributes_of_a_bundle_replace_nothing_of_ours(net_bundle: Path, tmp_path: Path) -> None:
    documents = Documents(net_bundle)
    names = ["forward", "_modules", "training", "__class__", "_aotpack_edits", "_aotpack_path", "state_dict", "aotpack"]
    for module in documents.program["modules"]:
        if "same_as" not in module:
            module["attributes"] = dict.fromkeys(names, 3)
    for kind in documents.program["module_classes"]:
        kind |= {"name": "a.\0b", "base": "LazyLinear" if kind.get("base") else "system"}
    (tmp_path / "m").write_bytes(pack(documents.files()))
    loaded, honest = aotpack.load(tmp_path / "m").eval(), aotpack.load(net_bundle).eval()
    with torch.no_grad():
        assert torch.equal(loaded(IMAGES), honest(IMAGES))
    assert type(loaded.head).__name__ == "Module"
    assert not isinstance(loaded.head, nn.Linear)
    assert loaded.aotpack.path == str(tmp_path / "m")
    assert loaded.state_dict().keys() == honest.state_dict().keys()


# ---------------------------------------------------------------- the root


class Stack(nn.Sequential):
    """A container of a class of the user's own."""


@pytest.mark.parametrize("kind", [nn.Sequential, Stack])
def test_a_container_as_the_root(tmp_path: Path, kind: type[nn.Sequential]) -> None:
    torch.manual_seed(0)
    model = kind(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    aotpack.build(model, (POINTS,), out=tmp_path / "m", targets=("portable",))
    loaded = aotpack.load(tmp_path / "m")
    assert isinstance(loaded, nn.Sequential)
    assert type(loaded).__name__ == kind.__name__
    assert [repr(module) for module in loaded] == [repr(module) for module in model]
    assert (len(loaded), loaded[-1].out_features) == (3, 2)
    seen = []
    for one in (model, copy.deepcopy(loaded), loaded):
        for parameter in one[:2].parameters():
            parameter.requires_grad_(False)
        seen.append(_steps(one))
        assert one[0].weight.grad is None
    torch.testing.assert_close(seen[1], seen[0])
    torch.testing.assert_close(seen[2], seen[0])
    assert type(loaded[:2]) is kind
    with pytest.raises(EditError, match="3: a ReLU cannot be added"):
        loaded.append(nn.ReLU())
    with pytest.raises(EditError, match="2: cannot become an Identity"):
        loaded[2] = nn.Identity()
    loaded[1].eval()
    with pytest.raises(ModeError, match=r"\n  1: was in train"):
        loaded(POINTS)


class OwnNorm(nn.BatchNorm1d):
    """A normalisation of a class of the user's own: what it does with its momentum is not known."""


class Twice(nn.Module):
    """One normalisation, twice in a call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.norm(x) * 2 + x)


@pytest.mark.parametrize("model", [nn.Sequential(nn.BatchNorm1d(3), OwnNorm(3)), Twice()], ids=["own class", "twice"])
def test_statistics_that_cannot_be_averaged_stay(tmp_path: Path, model: nn.Module) -> None:
    aotpack.build(model, (POINTS,), out=tmp_path / "m", targets=("portable",))
    loaded = aotpack.load(tmp_path / "m")
    loaded(POINTS)
    before = {name: value.clone() for name, value in loaded.state_dict().items()}
    with pytest.raises(EditError, match=r"1\.momentum: was 0\.1|norm: runs 2 times in a call") as caught:
        update_bn([POINTS], loaded)
    assert "state_dict" in caught.value.hint
    torch.testing.assert_close(dict(loaded.state_dict()), before)


class Counting(nn.Module):
    """A layer whose result a buffer scales."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * (1 + self.seen)


def test_writes_through_data_and_a_hook_that_assigns_a_buffer_act_as_in_eager(tmp_path: Path) -> None:
    """A write through ``.data`` after the forward is not noticed: the backward reads the new weight."""
    eager, x = Counting(), torch.randn(4, 3, requires_grad=True)
    aotpack.build(eager, (x,), out=tmp_path / "m", targets=("portable",), methods=("train",))

    def used(model: nn.Module) -> list[torch.Tensor]:
        result = model(x)
        model.get_parameter("layer.weight").data.mul_(2)
        found = [result, *torch.autograd.grad(result.sum(), (x, model.get_parameter("layer.weight")))]

        def count(module: nn.Module, args: Any, result: torch.Tensor) -> None:
            module.seen = module.get_buffer("seen") + 1

        with model.register_forward_hook(count):
            found += [model(x), model(x)]
        return [*found, model(x), model.get_buffer("seen")]

    for got, wanted in zip(used(aotpack.load(tmp_path / "m")), used(eager), strict=True):
        torch.testing.assert_close(got, wanted)
