"""Writes the conformance vectors under spec/vectors/v1: small portable bundles with their expected behaviour.

    scripts/spec-vectors            writes the missing cases
    scripts/spec-vectors --list

Vectors are only added. An existing vector is never written again, so that every bundle of every
release stays readable. A change of behaviour is a new case with a new name.

The valid cases of ``models.py`` are models in plain torch code, built with a self-test. The
original's results for the recorded inputs go to expect.safetensors. Newer valid cases are in
``cases.py``, invalid ones in ``invalid.py`` and ``invalid_rules.py``, signed ones in ``signed.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

import aotpack
from aotpack.capture import MethodModule
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.errors import AotpackError
from aotpack_loader.format import schema
from devtools.paths import ROOT

from .arguments import made, recorded
from .calls import run
from .cases import CASES, Function
from .cases import Case as CallCase
from .cases_optimizers import broken
from .compiled import INVALID_CODE
from .documents import Documents, tar
from .invalid import INVALID, Invalid
from .invalid_alone import ALONE
from .invalid_rules import MORE_INVALID
from .models import VALID, Args, Case
from .replay import BUNDLE, EXPECT, TENSORS, flatten, observe, replay
from .signed import SIGNED, replay_signed, write_signed

ALL_INVALID: dict[str, Invalid] = INVALID | MORE_INVALID | INVALID_CODE | ALONE
ALL_INVALID |= {name: Invalid("C42", text, edit, backward=True, base="optimizers") for name, text, edit in broken()}
VECTORS = ROOT / "spec/vectors/v1"
TOLERANCE = {"relative": 1e-4, "absolute": 1e-6}

Json = Any


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


def _write_expectation(
    folder: Path, about: str, covers: list[str], digest: str, calls: Json, more: Json = MappingProxyType({})
) -> None:
    expect = {
        "about": about,
        "covers": covers,
        "producer": {"aotpack": aotpack.__version__, "torch": str(torch.__version__)},
        "bundle": digest,
        "file": "sha256:" + hashlib.sha256((folder / BUNDLE).read_bytes()).hexdigest(),
        "tolerance": TOLERANCE,
        "calls": calls,
        **more,
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
            _seeded(case.model),
            *made((case.example(), case.kwargs())),
            out=bundle,
            name=name,
            **{"targets": ["portable"], **case.build},
        )
    if case.edit is not None:
        documents = Documents(bundle, *case.compiled)
        case.edit(documents)
        bundle.write_bytes(tar(list(documents.files().items())))
    with Bundle.open(bundle) as opened:
        methods, digest = opened.program.methods, opened.digest
    more = {"targets": case.compiled} if case.compiled else {}
    tensors: dict[str, torch.Tensor] = {}
    calls = []
    for number, call in enumerate(case.calls()):
        mode = (call.training, call.grad)
        own = {n: m for n, m in methods.items() if m.function == call.function}
        served = [n for n, m in own.items() if mode in [(s.training, s.grad) for s in m.serves]]
        prefix = f"call_{number}"
        leaves, given = recorded(call.leaves, prefix)
        written = {"prefix": prefix, "training": call.training, "grad": call.grad, "leaves": leaves, **call.more}
        written["method"] = served[0] if served else next(iter(own))
        tensors |= given
        if call.refused:
            written["refused"] = {"rule": call.refused, "kind": call.kind, "contains": call.contains}
        else:
            model = _seeded(case.model)
            original = model if isinstance(model, nn.Module) else Function(model)
            if call.function:
                original = MethodModule(original, case.build["methods"][call.function].function)
            seen = run(original, methods[served[0]], written, call.leaves)
            tensors |= {f"{prefix}.{key}": value.contiguous().clone() for key, value in seen.tensors.items()}
            written |= {"others": seen.others, "facts": _as_specified(seen.facts, methods[served[0]])}
        calls.append(written)
    save_file(tensors, folder / TENSORS)
    _write_expectation(folder, case.about, case.covers, digest, calls, more)


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
    expect = {"constraint": case.constraint, "kind": case.kind, "contains": case.contains, **case.more}
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
            write_invalid(name, ALL_INVALID[name], folder)
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
    for kind, names in (("valid", [*VALID, *CASES]), ("invalid", [*ALL_INVALID]), ("signed", [*SIGNED])):
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
