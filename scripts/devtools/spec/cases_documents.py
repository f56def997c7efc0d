"""Valid vectors of modules, of targets, and of documents that no build writes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from .arguments import Own, Seen
from .case import INFER, Call, Case, Json, of, t
from .cases_autograd import Quantity
from .cases_values import batches
from .targets import add_importing_target, add_target_with_own_graphs, add_targets, add_targets_that_are_not_here

# ---------------------------------------------------------------- offset and strides of arguments


def _from_start(x: Tensor) -> Tensor:
    return x.as_strided((2,), (1,), 1) * 2


def _fixed(x: Tensor) -> Tensor:
    y = x.contiguous()
    y.mul_(2)
    return y.sum()


class Inner(nn.Module):
    """Enables gradients itself, even if its caller has disabled them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            return x * self.weight


@dataclass
class Answer:
    value: Any
    nothing: Any = None


class Answers(transformers.utils.ModelOutput):  # type: ignore[misc]
    """A mapping with attributes."""


@dataclass
class Logits(Answers):
    loss: Any = None
    logits: Any = None
    hidden: Any = None


torch.utils._pytree.register_dataclass(Answer)


def _recorded(x: Tensor) -> Any:
    return Answer(x * 2), Logits(loss=x.sum(), logits=x + 1)


def _created(x: Tensor) -> Tensor:
    """Uses operators with literals of every kind."""
    made = torch.full((2,), 1 + 2j, device="cpu", layout=torch.strided, dtype=torch.complex64)
    return x * made.real + torch.full((2,), float("-inf")).clamp(min=0)


class Frozen(nn.Module):
    """Is built and loaded in eval mode, and warns while it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(2)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


def _odd_sizes(documents: Any) -> None:
    """Add constraints at the limits, and one that is undefined for ``s`` = 5."""
    for method in documents.program["methods"].values():
        name = method["symbols"][0]["name"]
        method.setdefault("constraints", []).extend(
            [
                "(" * 100 + name + ")" * 100 + " > 0",
                "1" + " + 1" * 4_998 + " > 0",
                f"10 // ({name} - 5) < 100",
                f"min({name}, 3) == 3 and not {name} == 7 or trunc(sqrt({name} / 2)) >= 1",
            ]
        )


def _later(documents: Any) -> None:
    """Add unknown properties, which a reader ignores."""
    documents.program["later"] = {"type": "unheard of"}
    documents.program["format"]["minor"] = 99
    documents.program["state"][0]["later"] = [1]
    for method in documents.program["methods"].values():
        method["later"] = "word"
        method["results"][0]["later"] = None
    documents.target["later"] = True


def rare(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return x.contiguous()[1], y.clone() * 2


def _rare(documents: Any) -> None:
    """Add rare contents of documents: named arguments of views, dynamic strides of tangents, notes."""
    for method in documents.program["methods"].values():
        method["notes"] = ["traced by hand"]
        (step,) = method["results"][0]["view"]
        step["args"], step["kwargs"] = step["args"][:1], {"index": step["args"][1]}
        for tangent in method.get("backward", {}).get("tangents", ()):
            tangent["stride"] = [f"{method['symbols'][0]['name']} * 0 + 3", 1]
        documents.open_method(method)
        copied = next(node for node in documents.forward["nodes"] if node["op"] == "aten.clone.default")
        copied["kwargs"] = {"memory_format": {"type": "memory_format", "value": "preserve_format"}}
        documents.set_forward()


def _one_storage(documents: Any) -> None:
    """Put both parts of the parameter into one stored tensor, with the padding that was between them."""

    def joined(header: Json) -> None:
        end = header.pop("weight.b")["data_offsets"][1]
        for name in [name for name in header if name.startswith("__aotpack_padding")]:
            del header[name]
        header["weight.a"] = {"dtype": "F32", "shape": [end // 4], "data_offsets": [0, end]}

    documents.set_weights(joined)
    documents.program["state"][0]["subclass"]["parts"][1].update(storage="weight.a", offset=16)


def _no_geometry(documents: Any) -> None:
    """Remove the geometry, so that the first argument takes sizes, strides and offset from its output."""
    for method in documents.program["methods"].values():
        for mutation in method["mutations"]:
            if mutation.get("kind") == "metadata":
                del mutation["geometry"]


class Signed(nn.Module):
    """Has a forward with parameters of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: Tensor, /, y: Tensor, *rest: Any, act: Any = torch.sin, shift: float = 1.0, **others: Any) -> Tensor:
        return act(self.head(self.embed(x))) + y + shift


def _pretrained(documents: Any) -> None:
    """Add the data that a writer records for a model of transformers."""
    config = {"type": "mapping", "keys": ["model_type", "vocab_size"], "items": ["tiny", 5]}
    documents.program["pretrained"] = {
        "config": config,
        "generation_config": {"type": "mapping", "keys": ["max_length"], "items": [20]},
        "input_embeddings": "embed",
        "output_embeddings": "head",
        "attributes": {"main_input_name": "x"},
        "unsaved": ["head.weight"],
    }


class Half(nn.Module):
    """Has a dropout that stays off while the module around it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.drop, self.norm = nn.Dropout(0.5), nn.BatchNorm1d(2)
        self.drop.eval()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.drop(x))


class Remembers(nn.Module):
    """Assigns to a buffer: its own, or the one in the dictionary that a bundle's call gets."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([0.5, -1.0]))
        self.register_buffer("mem", torch.ones(3, 2))

    def forward(self, x: Tensor, *, aotpack_state: dict[str, Tensor] | None = None) -> Tensor:
        state = {"mem": self.mem} if aotpack_state is None else aotpack_state
        state["mem"] = state["mem"] * 0.5 + x * self.weight
        if aotpack_state is None:
            self.mem = state["mem"]
        return state["mem"].sin()


def _assigned(documents: Any) -> None:
    documents.program["assigned"] = ["mem"]
    documents.program["features"] = sorted([*documents.program["features"], "assigned-state"])


class AlwaysEval(nn.BatchNorm1d):
    def train(self, mode: bool = True) -> AlwaysEval:
        return super().train(False)


class AlwaysTrain(nn.Identity):
    def train(self, mode: bool = True) -> AlwaysTrain:
        return super().train(True)


class Outer(nn.Module):
    """Has submodules that are shared, or in a mode of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.inner = nn.Sequential(AlwaysEval(2), AlwaysTrain(), self.first)
        self.scale, self.helper = 2.0, torch.sin
        self.train()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.helper(self.first(x))) * self.scale


DOCUMENTS: dict[str, Case] = {
    "modules": Case(
        "modules that are shared, or in a mode of their own",
        ["N1", "N2", "N3"],
        Outer,
        lambda: (t(3, 2),),
        lambda: [Call([t(3, 2)]), Call([t(3, 2)], **INFER)],
    ),
    "flags": Case(
        "a submodule that must be in eval mode while the module trains",
        ["N4"],
        Half,
        lambda: (t(3, 2),),
        lambda: [
            Call([t(3, 2)], more={"flags": {"drop": False}}),
            Call([t(3, 2)], refused="N4", kind="ModeError", contains="drop"),
            Call([t(3, 2)], more={"flags": {"drop": False, "norm": False}}, refused="N4", kind="ModeError", contains="norm"),
        ],
    ),
    "assigned": Case(
        "a buffer that a call assigns: the module's own, and one of the caller's",
        ["N6", "R13", "V4"],
        Remembers,
        lambda: (t(3, 2),),
        lambda: [
            Call([t(3, 2)], more={"passed": {"args": [0], "kwargs": {}}}),
            Call([t(3, 2), t(3, 2, grad=True)]),
            Call([t(3, 3)], more={"passed": {"args": [0], "kwargs": {}}}, refused="A4"),
        ],
        kwargs=lambda: {"aotpack_state": {"mem": t(3, 2, grad=True)}},
        edit=_assigned,
    ),
    "interface": Case(
        "parameters of every kind, and what tools ask of a model of transformers",
        ["N5"],
        Signed,
        lambda: (Own(torch.tensor([1, 4])), t(2, 5)),
        lambda: [Call([Own(torch.tensor([1, 4])), t(2, 5)]), Call([Own(torch.tensor([0, 4])), t(2, 5)], **INFER)],
        edit=_pretrained,
    ),
    "from_start": Case(
        "an argument that must begin at the first element of its storage",
        ["A13"],
        of(_from_start),
        lambda: (t(4),),
        lambda: [Call([t(4)]), Call([Seen(t(6), [4], [1], 2, detached=True)], refused="A13", contains="args[0]")],
    ),
    "fixed_stride": Case(
        "an argument that must have the recorded strides",
        ["A15"],
        of(_fixed),
        lambda: (t(2, 3),),
        lambda: [Call([t(2, 3)]), Call([Seen(t(3, 2), [2, 3], [1, 2], detached=True)], refused="A15", contains="args[0]")],
    ),
    "turns_gradients_on": Case(
        "gradients recorded where the caller records none",
        ["R9"],
        Inner,
        lambda: (t(2, grad=True),),
        lambda: [Call([t(2, grad=True)]), Call([t(2, grad=True)], **INFER)],
    ),
    "records": Case(
        "records of two kinds, with fields that are always None",
        ["C15"],
        of(_recorded),
        lambda: (t(3),),
        lambda: [Call([t(3)])],
    ),
    "literals": Case(
        "operators with arguments of every kind", ["G3"], of(_created), lambda: (t(2, grad=True),),
        lambda: [Call([t(2, grad=True)])],
    ),
    "built_in_eval": Case(
        "a module that was built in eval mode, and is loaded in it",
        ["R7"],
        Frozen,
        lambda: (t(3, 2, grad=True),),
        lambda: [Call([t(3, 2, grad=True)], training=False), Call([t(3, 2)], **INFER)],
        build={"methods": ("eval", "infer")},
    ),
    "expressions": Case(
        "constraints of the greatest depth and length, and one that has no value at some size",
        ["E1", "E2", "E3"],
        of(lambda x: x * 2),
        lambda: (t(4, 2, grad=True),),
        lambda: [
            Call([t(4, 2, grad=True)]),
            Call([t(7, 2, grad=True)]),
            Call([t(5, 2, grad=True)], refused="E3", contains="must"),
        ],
        build={"dynamic_shapes": batches("x", min=2, max=8)},
        edit=_odd_sizes,
    ),
    "later_properties": Case(
        "properties of a later minor version, which are ignored",
        ["V1", "V3"],
        lambda: nn.Linear(2, 2),
        lambda: (t(3, 2),),
        lambda: [Call([t(3, 2)])],
        edit=_later,
    ),
    "geometry_of_the_output": Case(
        "a change of sizes and strides without geometry: those of the forward output",
        ["R1"],
        of(lambda x, y: (x.t_(), x + y)[1]),
        lambda: (t(2, 3), t(3, 2)),
        lambda: [Call([t(2, 3), t(3, 2)])],
        edit=_no_geometry,
    ),
    "rarely_written": Case(
        "what documents may hold and builds seldom write: notes, named arguments of views, strides of tangents that vary",
        ["C13"],
        of(rare),
        lambda: (t(2, 3, grad=True), t(4, 3, grad=True)),
        lambda: [
            Call([t(2, 3, grad=True), t(4, 3, grad=True)]),
            Call([Seen(t(3, 2, grad=True, computed=True), [2, 3], [1, 2]), t(5, 3, grad=True)]),
        ],
        build={"dynamic_shapes": {"x": None, "y": {0: torch.export.Dim("rows", min=2, max=8)}}},
        edit=_rare,
    ),
    "subclass_in_one_storage": Case(
        "a parameter that is a tensor subclass whose parts share a stored tensor",
        ["K3"],
        Quantity,
        lambda: (t(2),),
        lambda: [Call([t(2)])],
        edit=_one_storage,
    ),
    "targets": Case(
        "targets of every kind beside the portable one; none of them fits any machine",
        ["C25", "C26", "C27"],
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)),
        lambda: (t(3, 2, grad=True),),
        lambda: [Call([t(3, 2, grad=True)])],
        build={"dynamic_shapes": [{0: torch.export.Dim("rows", min=2, max=8)}]},
        edit=add_targets,
    ),
    "own_graphs": Case(
        "a native target with a program of its own, which lacks a method of the portable one's",
        ["M4"],
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0), nn.Linear(2, 2)),
        lambda: (t(3, 2, grad=True),),
        lambda: [Call([t(3, 2, grad=True)])],
        edit=add_target_with_own_graphs,
    ),
    "copied_targets": Case(
        "a copy with the portable target alone: other targets are listed, and their layers are not there",
        ["M7"],
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)),
        lambda: (t(3, 2, grad=True),),
        lambda: [Call([t(3, 2, grad=True)])],
        build={"dynamic_shapes": [{0: torch.export.Dim("rows", min=2, max=8)}]},
        edit=add_targets_that_are_not_here,
    ),
    "targets_with_imports": Case(
        "a native target that says what its code takes from torch",
        ["C25"],
        lambda: nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)),
        lambda: (t(3, 2, grad=True),),
        lambda: [Call([t(3, 2, grad=True)])],
        build={"dynamic_shapes": [{0: torch.export.Dim("rows", min=2, max=8)}]},
        edit=add_importing_target,
    ),
}  # fmt: skip
