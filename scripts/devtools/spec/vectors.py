"""Writes the conformance vectors under spec/vectors/v1: small portable bundles with their expected behaviour.

    scripts/spec-vectors            writes the missing cases
    scripts/spec-vectors --list

Vectors are only added. An existing vector is never written again, so that every bundle of every
release stays readable. A change of behaviour is a new case with a new name.

Each valid case is a model in plain torch code below, built with a self-test. The original's results
for the recorded inputs go to expect.safetensors. Newer valid cases are in ``cases.py``, invalid
ones in ``invalid.py`` and ``invalid_rules.py``, signed ones in ``signed.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import dataclasses
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

import aotpack
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import AotpackError
from aotpack_loader.format import schema
from devtools.paths import ROOT

from .calls import made, recorded, run
from .cases import CASES, Function
from .cases import Case as CallCase
from .documents import Documents, tar
from .invalid import INVALID, Invalid
from .invalid_rules import MORE_INVALID
from .replay import BUNDLE, EXPECT, TENSORS, flatten, observe, replay
from .signed import SIGNED, replay_signed, write_signed

VECTORS = ROOT / "spec/vectors/v1"
TOLERANCE = {"relative": 1e-4, "absolute": 1e-6}

Args = tuple[tuple[Any, ...], dict[str, Any]]
Json = Any


class Case(NamedTuple):
    """A valid vector: a model, its example inputs, and the inputs of further calls."""

    about: str
    covers: list[str]
    model: Callable[[], nn.Module]
    inputs: Callable[[], Args]
    dynamic_shapes: Any = None
    more: Callable[[], Args] | None = None
    autocast: str | None = None


# ---------------------------------------------------------------- models


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.arange(4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.second(torch.tanh(self.first(x))), y)


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.norm(self.conv(x))).mean((2, 3))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.sin(self.embed(tokens)))


class Nested(nn.Module):
    """Takes arguments in containers and by keyword.

    Writes to one input, returns a view of another and an input itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, batch: dict[str, Any], *, scale: float, carry: torch.Tensor) -> dict[str, Any]:
        x = batch["x"]
        mixed = x @ self.weight * scale / batch["count"] + batch["parts"][0]
        carry.add_(mixed.detach().sum(0))
        return {"mixed": mixed, "turned": batch["parts"][1].t(), "carry": carry, "version": 1}


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: torch.Tensor) -> tuple[Any, ...]:
        hidden = torch.relu(x @ self.weight)
        low, high = hidden.chunk(2, dim=1)
        return hidden.sum(), (low, high), hidden.argmax(1), [x.sin(), None], x.shape[0]


class Pair(NamedTuple):
    loss: torch.Tensor
    logits: torch.Tensor


@dataclasses.dataclass
class Report:
    pair: Pair
    norm: torch.Tensor


torch.utils._pytree.register_dataclass(Report)


class Recorded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> Report:
        logits = self.layer(x)
        return Report(Pair(logits.square().mean(), logits), logits.detach().norm())


@dataclasses.dataclass
class Unregistered:
    """A class that torch's tree functions do not flatten."""

    loss: torch.Tensor
    logits: torch.Tensor


class RecordedAsLeaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> Unregistered:
        logits = self.layer(x)
        return Unregistered(logits.square().mean(), logits)


class Changing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))

    def forward(self, batch: dict[str, Any], seen: list[Any]) -> Any:
        seen.append(batch.pop("old"))
        seen[0] = batch["x"] * self.scale
        batch["nested"] = {"twice": seen[0] * 2, "seen": seen}
        return batch, seen[0].sum()


class Picked(nn.Module):
    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, rows).sin()


class Slope(nn.Module):
    """A loss on the slope of a network at its argument, on which it calls ``requires_grad_()``."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            height = self.layer(x.requires_grad_()).tanh()
            (slope,) = torch.autograd.grad(height.sum(), x, create_graph=True)
            return height.detach(), (slope.square().sum(1) - 1).square().mean()


class Attention(nn.Module):
    """One pre-norm block as in GPT-2, without dropout."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.register_buffer("mask", torch.ones(8, 8, dtype=torch.bool).tril(), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


class Layer(nn.Module):
    """A layer that is compiled once for all its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(4), nn.Linear(4, 6), nn.Linear(6, 4)

    @torch.compiler.nested_compile_region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Sizes(nn.Module):
    """Results, views and saved values that depend on a dynamic size, one tensor passed twice, and a constant tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x: torch.Tensor, again: torch.Tensor) -> tuple[Any, ...]:
        count = x.shape[0]
        scaled = x * self.weight * torch.tensor([1.0, -2.0, 0.5]) / count
        return scaled.sum(0).expand(count, 3) + again, x.view(count * 3), scaled.exp().reshape(3 * count)[count:], 2 * count + 1


def _sizes_inputs(count: int) -> Args:
    x = torch.randn(count, 3, requires_grad=True)
    return (x, x), {}


def _nested_inputs() -> Args:
    parts = [torch.randn(3), torch.randn(2, 4, requires_grad=True)]
    batch = {"x": torch.randn(5, 3, requires_grad=True), "parts": parts, "count": 5}
    return (batch,), {"scale": 0.5, "carry": torch.randn(3)}


BATCH = torch.export.Dim("batch", min=2, max=64)

VALID: dict[str, Case] = {
    "scale": Case("y = x * scale: the smallest", [], Scale, lambda: ((torch.randn(4, requires_grad=True),), {})),
    "mlp": Case("two layers and a loss", [], Mlp, lambda: ((torch.randn(5, 6), torch.randint(3, (5,))), {})),
    "batchnorm": Case("buffers mutated in train mode", ["R1"], Normed, lambda: ((torch.randn(3, 2, 4, 4),), {})),
    "tied_weights": Case("one parameter under two names", ["C4"], Tied, lambda: ((torch.randint(7, (2, 3)),), {})),
    "dynamic_batch": Case(
        "a batch size from 2 to 64",
        ["A2"],
        Mlp,
        lambda: ((torch.randn(5, 6), torch.randint(3, (5,))), {}),
        dynamic_shapes={"x": {0: BATCH}, "y": {0: BATCH}},
        more=lambda: ((torch.randn(9, 6), torch.randint(3, (9,))), {}),
    ),
    "nested_kwargs": Case(
        "containers, keywords, constants, an aliased result, a mutated input that is returned", ["R1"], Nested, _nested_inputs
    ),
    "several_outputs": Case(
        "views of an intermediate, an integer tensor, none and a number among the results",
        [],
        Several,
        lambda: ((torch.randn(3, 4, requires_grad=True),), {}),
    ),
    "record_output": Case("a dataclass that holds a named tuple", [], Recorded, lambda: ((torch.randn(4, 3),), {})),
    "record_leaf": Case(
        "a dataclass that is one leaf to torch's tree functions", [], RecordedAsLeaf, lambda: ((torch.randn(4, 3),), {})
    ),
    "containers": Case(
        "a dictionary and a list of the caller's that are changed, and returned",
        ["A17", "A18", "C36"],
        Changing,
        lambda: (({"x": torch.randn(3, requires_grad=True), "old": torch.randn(2)}, [torch.randn(2)]), {}),
    ),
    "autocast_variants": Case(
        "methods for calls without autocast and under autocast to bfloat16, called without",
        ["C5", "A9"],
        Mlp,
        lambda: ((torch.randn(5, 6), torch.randint(3, (5,))), {}),
        autocast="none,bf16",
    ),
    "refusing_values": Case(
        "an operator that may refuse the values of a call, and its line",
        [],
        Picked,
        lambda: ((torch.randn(4, 3, requires_grad=True), torch.tensor([2, 0])), {}),
    ),
    "requires_grad_set": Case(
        "a gradient with respect to an argument, which the model makes require one",
        ["A16"],
        Slope,
        lambda: ((torch.randn(3, 2),), {}),
    ),
    "attention": Case("a block of GPT-2", [], Attention, lambda: ((torch.randn(2, 4, 8, requires_grad=True),), {})),
    "sizes": Case(
        "sizes in results, views and saved values; one tensor given twice; a constant tensor",
        ["A2", "A8"],
        Sizes,
        lambda: _sizes_inputs(4),
        dynamic_shapes={"x": {0: torch.export.Dim("count", min=2, max=9)}, "again": {0: torch.export.Dim("count", min=2, max=9)}},
        more=lambda: _sizes_inputs(7),
    ),
    "regions": Case(
        "three layers in a nested compile region: one subgraph, called three times",
        ["G7"],
        lambda: nn.Sequential(nn.Linear(4, 4), Layer(), Layer(), Layer()),
        lambda: ((torch.randn(3, 4, requires_grad=True),), {}),
    ),
    "origins": Case(
        "modules and source lines of nodes",
        [],
        lambda: nn.Sequential(Normed(), nn.Linear(3, 2)),
        lambda: ((torch.randn(3, 2, 4, 4),), {}),
    ),
}


# ---------------------------------------------------------------- valid vectors


def write_valid(name: str, case: Case, folder: Path) -> None:
    """Build the bundle of ``case``, and record the original's results for its inputs."""
    torch.manual_seed(list(VALID).index(name))
    model = case.model()
    args, kwargs = case.inputs()
    bundle = folder / BUNDLE
    report = aotpack.build(
        copy.deepcopy(model), *_copied((args, kwargs)), out=bundle, targets=["portable"], self_test=True,
        dynamic_shapes=case.dynamic_shapes, name=name, autocast=case.autocast,
    )  # fmt: skip
    with Bundle.open(bundle) as opened:
        methods = opened.program.methods
    tensors: dict[str, torch.Tensor] = {}
    calls = []
    given = {"train": ("train", args, kwargs), "infer": ("infer", args, kwargs)}
    if case.more is not None:
        given["train_more"] = ("train", *case.more())
    for prefix, (method_name, call_args, call_kwargs) in given.items():
        method, training = methods[method_name], method_name == "train"
        copied_args, copied_kwargs = _copied((call_args, call_kwargs))
        leaves = flatten(method.inputs, (copied_args, copied_kwargs))
        tensors |= {f"{prefix}.input.{i}": t.detach().clone() for i, t in enumerate(leaves) if isinstance(t, torch.Tensor)}
        first = {id(leaf): i for i, leaf in reversed(list(enumerate(leaves))) if isinstance(leaf, torch.Tensor)}
        same = {str(i): first[id(leaf)] for i, leaf in enumerate(leaves) if first.get(id(leaf), i) != i}
        seen, others = observe(copy.deepcopy(model), method, copied_args, copied_kwargs, training=training, grad=training)
        tensors |= {f"{prefix}.{key}": value.contiguous().clone() for key, value in seen.items()}
        call = {"prefix": prefix, "method": method_name, "training": training, "grad": training, "others": others}
        calls.append(call | {"same": same} if same else call)
    save_file(tensors, folder / TENSORS)
    _write_expectation(folder, case.about, case.covers, report.digest, calls)


def _seeded(make: Callable[[], Any]) -> Any:
    torch.manual_seed(0)
    return make()


def _as_specified(facts: Json, method: schema.Method) -> Json:
    """Eager's facts, without those in which a reader is free.

    A result marked ``unviewed`` is never a view. A result of a copied argument may or may not be
    one.
    """
    for i, result in enumerate(method.results):
        fact = facts.get(f"result.{i}", {})
        if getattr(result, "unviewed", False) and "is_view" in fact:
            fact["is_view"] = False
            fact.pop("base", None)
        if getattr(result, "laid_out", False) or getattr(result, "reshaped", False):
            fact.pop("is_view", None)
            fact.pop("base", None)
    return facts


def _write_expectation(folder: Path, about: str, covers: list[str], digest: str, calls: Json) -> None:
    expect = {
        "about": about,
        "covers": covers,
        "producer": {"aotpack": aotpack.__version__, "torch": str(torch.__version__)},
        "bundle": digest,
        "file": "sha256:" + hashlib.sha256((folder / BUNDLE).read_bytes()).hexdigest(),
        "tolerance": TOLERANCE,
        "calls": calls,
    }
    _write_json(folder / EXPECT, expect)


def _copied(given: Args) -> Args:
    done: dict[int, torch.Tensor] = {}

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in done:
            done[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
        return done[id(tensor)]

    args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, copied, given)
    return args, kwargs


def _write_json(path: Path, value: Json) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


def write_case(name: str, case: CallCase, folder: Path) -> None:
    """Build the bundle of ``case``, and record the original's behaviour in its calls."""
    bundle = folder / BUNDLE
    with contextlib.ExitStack() as stack:
        if case.prepare is not None:
            stack.enter_context(case.prepare())
        aotpack.build(
            _seeded(case.model), *made((case.example(), case.kwargs())), out=bundle, targets=["portable"], name=name, **case.build
        )
    if case.edit is not None:
        documents = Documents(bundle)
        case.edit(documents)
        bundle.write_bytes(tar(list(documents.files().items())))
    with Bundle.open(bundle) as opened:
        methods, digest = opened.program.methods, opened.digest
    tensors: dict[str, torch.Tensor] = {}
    calls = []
    for number, call in enumerate(case.calls()):
        mode = (call.training, call.grad)
        served = [n for n, m in methods.items() if mode in [(s.training, s.grad) for s in m.serves]]
        prefix = f"call_{number}"
        leaves, given = recorded(call.leaves, prefix)
        written = {"prefix": prefix, "training": call.training, "grad": call.grad, "leaves": leaves, **call.more}
        written["method"] = served[0] if served else next(iter(methods))
        tensors |= given
        if call.refused:
            written["refused"] = {"rule": call.refused, "kind": call.kind, "contains": call.contains}
        else:
            model = _seeded(case.model)
            original = model if isinstance(model, nn.Module) else Function(model)
            seen = run(original, methods[served[0]], written, call.leaves)
            tensors |= {f"{prefix}.{key}": value.contiguous().clone() for key, value in seen.tensors.items()}
            written |= {"others": seen.others, "facts": _as_specified(seen.facts, methods[served[0]])}
        calls.append(written)
    save_file(tensors, folder / TENSORS)
    _write_expectation(folder, case.about, case.covers, digest, calls)


# ---------------------------------------------------------------- invalid vectors


def write_invalid(name: str, case: Invalid, folder: Path) -> None:
    """Break one rule of a valid vector."""
    documents = Documents(VECTORS / "valid" / case.base / BUNDLE)
    documents.reduce("train" if case.backward else "infer", whole=case.base != "scale")
    if case.edit is not None:
        case.edit(documents)
    data = tar(list(documents.files().items()))
    if case.damage is not None:
        data = case.damage(data, documents)
    (folder / BUNDLE).write_bytes(data)
    expect = {"constraint": case.constraint, "kind": case.kind, "contains": case.contains}
    _write_json(folder / EXPECT, expect)


# ---------------------------------------------------------------- writing


def write(kind: str, name: str) -> None:
    """Write one vector under a temporary name, replay it, and move it to its final path."""
    final = VECTORS / kind / name
    if final.exists():
        raise FileExistsError(f"{final} exists, and vectors are never changed: add a case with another name")
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=VECTORS) as scratch:
        folder = Path(scratch) / kind / name
        folder.mkdir(parents=True)
        if name in CASES and kind == "valid":
            write_case(name, CASES[name], folder)
        elif kind == "valid":
            write_valid(name, VALID[name], folder)
        elif kind == "signed":
            write_signed(SIGNED[name], folder)
        else:
            write_invalid(name, (INVALID | MORE_INVALID)[name], folder)
        if kind == "signed":
            replay_signed(folder)
            print(f"{kind}/{name}: as expected", flush=True)
        else:
            print(f"{kind}/{name}: {replay(folder)}", flush=True)
            _forget_words(folder / EXPECT)
        folder.rename(final)


def _forget_words(path: Path) -> None:
    """Remove the expected words of refused calls.

    They are compared when the vector is written, but may improve later.
    """
    expect = json.loads(path.read_text())
    for call in expect.get("calls", ()):
        call.get("refused", {}).pop("contains", None)
    _write_json(path, expect)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/spec-vectors", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="show the cases and whether they are there")
    options = parser.parse_args()
    failed = 0
    for kind, names in (("valid", [*VALID, *CASES]), ("invalid", [*INVALID, *MORE_INVALID]), ("signed", [*SIGNED])):
        for name in names:
            there = (VECTORS / kind / name).exists()
            if options.list:
                print(f"{kind}/{name}" + ("" if there else " (missing)"))
            elif not there:
                try:
                    write(kind, name)
                except (
                    AssertionError,
                    AotpackError,
                    ArithmeticError,
                    AttributeError,
                    LookupError,
                    RuntimeError,
                    TypeError,
                    ValueError,
                ) as error:
                    failed += 1
                    print(f"{kind}/{name}: NOT WRITTEN: {error}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
