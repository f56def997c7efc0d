"""Replays the conformance vectors of spec/vectors. Needs torch and aotpack_loader only, never the compiler.

    python -m devtools.spec.replay FOLDER...    one line a vector; exit code 1 if one behaves differently than expected

spec/vectors/README.md describes the files. ``scripts/spec-vectors`` writes them,
``tests/test_vectors.py`` replays all.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import aotpack_loader
from aotpack_loader import errors
from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.devices.backends import unfit
from aotpack_loader.devices.literals import literal
from aotpack_loader.format import schema
from aotpack_loader.runtime.tree import unflattener

from . import brought
from .arguments import described
from .calls import MismatchError, Outcome, flatten, refused, run
from .containers import Watched

BUNDLE, EXPECT, TENSORS = "bundle.aotpack", "expect.json", "expect.safetensors"


def observe(
    model: torch.nn.Module, method: schema.Method, args: tuple[Any, ...], kwargs: dict[str, Any], *, training: bool, grad: bool
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """One step of ``model``, original or loaded.

    Returns tensors by name, and results that are not tensors by number.
    """
    model.train(training)
    leaves = flatten(method.inputs, (args, kwargs))  # the call may change containers
    watched = Watched(method, (args, kwargs))
    with torch.set_grad_enabled(grad):
        result = model(*args, **kwargs)
    results = flatten(method.outputs, result)
    heads = [r for r in results if isinstance(r, torch.Tensor) and r.requires_grad and r.grad_fn is not None]
    if heads:
        torch.autograd.backward(heads, [torch.ones_like(head) for head in heads])
    seen = {f"result.{i}": r.detach().clone() for i, r in enumerate(results) if isinstance(r, torch.Tensor)}
    seen |= {f"gradient.{name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    seen |= {f"buffer.{name}": b.clone() for name, b in model.named_buffers()}
    seen |= watched.own(result)
    for k, (update, container) in enumerate(zip(method.updates, watched.containers, strict=True)):
        updated = enumerate(flatten(update.tree, container))
        seen |= {f"update.{k}.{j}": leaf.detach().clone() for j, leaf in updated if isinstance(leaf, torch.Tensor)}
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            seen[f"after.{i}"] = leaf.detach().clone()
            if leaf.is_leaf and leaf.grad is not None:
                seen[f"input_gradient.{i}"] = leaf.grad
    return seen, {str(i): r for i, r in enumerate(results) if not isinstance(r, torch.Tensor)}


def arguments(
    method: schema.Method, tensors: Mapping[str, torch.Tensor], prefix: str, same: Mapping[str, int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The recorded arguments of one call. ``same`` maps a leaf to an earlier one that is the same tensor."""
    leaves = [
        tensors[f"{prefix}.input.{i}"].clone().requires_grad_(leaf.requires_grad)
        if isinstance(leaf, schema.TensorLeaf)
        else literal(leaf.value)
        for i, leaf in enumerate(method.leaves)
    ]
    for leaf, first in same.items():
        leaves[int(leaf)] = leaves[first]
    args, kwargs = unflattener(method.inputs)(iter(leaves))
    return args, kwargs


def replay_valid(folder: Path) -> int:
    """Load the bundle, make every recorded call on a new copy and compare. Returns the number of compared tensors.

    This is done for the portable target, and for each other one of ``targets`` that fits this machine.
    """
    expect = json.loads((folder / EXPECT).read_text())
    tensors = load_file(folder / TENSORS)
    found = "sha256:" + hashlib.sha256((folder / BUNDLE).read_bytes()).hexdigest()
    if found != expect["file"]:
        raise MismatchError(f"{folder}/{BUNDLE} is {found}, expected {expect['file']}: vectors are never changed")
    targets = ["portable", *filter(lambda name: fits(folder, name), expect.get("targets", ()))]
    return sum(_replay_on(target, folder, expect, tensors) for target in targets)


def _replay_on(target: str, folder: Path, expect: Any, tensors: Mapping[str, torch.Tensor]) -> int:
    compared = 0
    for call in expect["calls"]:
        if call.get("target", target) != target:
            continue
        model = load(folder, target, trusted=target != "portable")
        if model.aotpack.digest != expect["bundle"]:
            raise MismatchError(f"the bundle digest is {model.aotpack.digest}, expected {expect['bundle']}")
        if "refused" in call:
            _replay_refused(model, call, tensors)
            compared += 1
            continue
        outcome = _outcome(model, call, tensors)
        prefix = call["prefix"] + "."
        given = (f"{prefix}input.", f"{prefix}memory.")
        expected = {n.removeprefix(prefix): x for n, x in tensors.items() if n.startswith(prefix) and not n.startswith(given)}
        if _typed(outcome.others) != _typed(call["others"]):
            raise MismatchError(f"{call['prefix']}: results that are no tensors are {outcome.others}, expected {call['others']}")
        problems = list(_differences(expected, outcome.tensors, expect["tolerance"]))
        problems += list(_fact_differences(call["facts"], outcome.facts)) if "facts" in call else []
        if problems:
            raise MismatchError(f"{folder.name}, {call['prefix']}: " + "; ".join(problems))
        compared += len(expected)
    return compared


def _typed(others: Mapping[str, Any]) -> dict[str, tuple[type, Any]]:
    """Values with their types, because in Python ``True == 1`` although a caller sees a difference."""
    return {name: (type(value), value) for name, value in others.items()}


def fits(folder: Path, target: str) -> bool:
    """Whether this machine and this torch run the code of a vector's target."""
    with Bundle.open(folder / BUNDLE) as bundle:
        found = bundle.targets[target]
        return not unfit(found, bundle.program, bundle.manifests[target].platform)


def load(folder: Path, target: str = "portable", *, trusted: bool = False) -> aotpack_loader.LoadedProgram:
    """The vector's bundle on a target, with all digests checked and everything passed that vectors need."""
    return aotpack_loader.load(
        folder / BUNDLE,
        backend=target,
        # else a pin of another bundle: this one is not trusted, even where it was built
        trust="all" if trusted else "sha256:" + "0" * 64,
        verify="full",
        operators=brought.OPERATORS,
        subclasses=brought.CLASSES,
    )


def _outcome(model: Any, call: Any, tensors: Mapping[str, torch.Tensor]) -> Outcome:
    method = model.aotpack.program.methods[call["method"]]
    if "leaves" in call:
        return run(model, method, call, _leaves(call, tensors))
    args, kwargs = arguments(method, tensors, call["prefix"], call.get("same", {}))
    return Outcome(*observe(model, method, args, kwargs, training=call["training"], grad=call["grad"]))


def _leaves(call: Any, tensors: Mapping[str, torch.Tensor]) -> list[Any]:
    classes = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in brought.CLASSES}
    return described(call["leaves"], tensors, call["prefix"], classes)


def _replay_refused(model: Any, call: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Make a call that must be refused, and compare its error with the expected one."""
    expected = call["refused"]
    method = model.aotpack.program.methods[call["method"]]
    error = refused(model, method, call, _leaves(call, tensors))
    if error is None:
        raise MismatchError(f"{call['prefix']}: was accepted, expected {expected['kind']} ({expected['rule']})")
    kinds = [kind.__name__ for kind in type(error).__mro__]  # a loader of later releases may have a class of its own
    if expected["kind"] not in kinds or expected.get("contains", "") not in str(error):
        raise MismatchError(f"{call['prefix']}: {type(error).__name__}: {error}; expected {expected}") from error


def _fact_differences(expected: Mapping[str, Any], seen: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted(expected.keys() | seen.keys()):
        want, have = expected.get(name), seen.get(name)
        if isinstance(want, dict) and isinstance(have, dict):
            have = {key: value for key, value in have.items() if key in want}
        if want != have:
            yield f"{name} is {have}, expected {want}"


def _differences(
    expected: Mapping[str, torch.Tensor], seen: Mapping[str, torch.Tensor], tolerance: Mapping[str, float]
) -> Iterator[str]:
    for name in sorted(expected.keys() | seen.keys()):
        if name not in seen or name not in expected:
            yield f"{name} is {'missing' if name in expected else 'unexpected'}"
            continue
        want, have = expected[name], seen[name]
        if want.shape != have.shape or want.dtype != have.dtype:
            yield f"{name} is {have.dtype}{list(have.shape)}, expected {want.dtype}{list(want.shape)}"
        elif not torch.allclose(want, have, equal_nan=True, rtol=tolerance["relative"], atol=tolerance["absolute"]):
            off = "" if want.dtype is torch.bool else f" by {float((want - have).abs().max()):.2e}"
            yield f"{name} is off{off}"


def replay_invalid(folder: Path) -> None:
    """Load the bundle with all digests checked, and compare its error with the expected one.

    A vector of compiled code shows nothing on a machine that its target does not fit.
    """
    expect = json.loads((folder / EXPECT).read_text())
    target = expect.get("target", "portable")
    if target != "portable" and not fits(folder, target):
        return
    try:
        load(folder, target, trusted=expect.get("trusted", False))
    except errors.AotpackError as error:
        if type(error).__name__ != expect["kind"] or expect["contains"] not in str(error):
            raise MismatchError(f"{folder.name}: {type(error).__name__}: {error}; expected {expect}") from error
        return
    raise MismatchError(f"{folder.name}: was accepted, expected {expect['kind']} ({expect['constraint']})")


def replay(folder: Path) -> str:
    """Replay the vector in ``folder``. Returns a short description of the result."""
    if folder.parent.name == "invalid":
        replay_invalid(folder)
        return "refused as expected"
    return f"{replay_valid(folder)} tensors agree"


def main(folders: list[str]) -> int:
    """The command line."""
    failed = 0
    for folder in map(Path, folders):
        try:
            print(f"{folder.name}: {replay(folder)}")
        except MismatchError as error:
            failed += 1
            print(f"{folder.name}: FAILED: {error}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
