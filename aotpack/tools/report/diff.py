"""Compares two bundles: whether calls and checkpoints of the first fit the second, and what else changed.

Only :mod:`.weights` imports torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aotpack_loader.format import schema

from . import calls, optimizers
from .describe import tensor_type
from .graphs import operators, saved_bytes
from .modules import ModuleChange, module_changes

if TYPE_CHECKING:
    from aotpack_loader.archive.bundle import Bundle


@dataclass(frozen=True)
class Change:
    """One difference. ``breaks``: a call or checkpoint of the first bundle does not fit the second."""

    where: str
    text: str
    breaks: bool = False


@dataclass(frozen=True)
class Sharing:
    """Bytes of the blobs of both bundles, and of those that are in both."""

    first: int
    second: int
    shared: int


@dataclass(frozen=True)
class Difference:
    """How the second bundle differs from the first, by subject.

    ``calls`` and ``state`` decide whether it takes the first one's place.
    """

    equal: bool
    calls: list[Change] = field(default_factory=list)
    state: list[Change] = field(default_factory=list)
    graphs: list[Change] = field(default_factory=list)
    targets: list[Change] = field(default_factory=list)
    producer: list[Change] = field(default_factory=list)
    modules: list[ModuleChange] = field(default_factory=list)
    sharing: Sharing = field(default_factory=lambda: Sharing(0, 0, 0))

    @property
    def calls_fit(self) -> bool:
        """Whether every call of the first bundle is one of the second, with results of the same kind."""
        return not any(change.breaks for change in self.calls)

    @property
    def checkpoints_fit(self) -> bool:
        """Whether a state dict of the first bundle loads into the second."""
        return not any(change.breaks for change in self.state)


def compare(first: Bundle, second: Bundle) -> Difference:
    """Compare all but the values of the weights."""
    return Difference(
        first.digest == second.digest,
        [Change(*found) for found in calls.changes(first, second)],
        [
            *_state(first.program, second.program),
            *(Change(*found) for found in optimizers.changes(first.program, second.program)),
        ],
        list(_graphs(first, second)),
        list(_targets(first, second)),
        list(_producers(first.program, second.program)),
        [] if first.digest == second.digest else list(module_changes(first, second)),
        _sharing(first, second),
    )


def _state(first: schema.Program, second: schema.Program) -> Iterator[Change]:
    old, new = ({entry.name: entry for entry in program.state} for program in (first, second))
    for name in old.keys() - new.keys():
        yield Change(name, f"{old[name].kind} removed", breaks=old[name].persistent)
    for name in new.keys() - old.keys():
        yield Change(name, f"{new[name].kind} added, {_type(new[name])}", breaks=new[name].persistent)
    for name, entry in old.items():
        if name in new:
            yield from (Change(name, text, breaks) for text, breaks in _entry(entry, new[name]))
    yield from (Change(*found) for found in optimizers.changes(first, second))


def _type(entry: schema.StateEntry) -> str:
    return tensor_type(entry.dtype, entry.shape)


def _entry(old: schema.StateEntry, new: schema.StateEntry) -> Iterator[tuple[str, bool]]:
    if _type(old) != _type(new):
        yield f"{_type(old)} is now {_type(new)}", old.shape != new.shape
    if old.kind != new.kind:
        yield f"a {old.kind} is now a {new.kind}", False
    if old.requires_grad != new.requires_grad:
        yield "now trained" if new.requires_grad else "now frozen", False
    if old.tied_to != new.tied_to:
        yield f"tied to {new.tied_to}" if new.tied_to else f"no longer tied to {old.tied_to}", False
    if old.persistent != new.persistent:
        yield "now in the state dict" if new.persistent else "no longer in the state dict", True
    kinds = [None if entry.subclass is None else entry.subclass.name for entry in (old, new)]
    if kinds[0] != kinds[1]:
        yield f"class {kinds[0] or 'Tensor'} is now {kinds[1] or 'Tensor'}", False


def _graphs(first: Bundle, second: Bundle) -> Iterator[Change]:
    for name, old in first.program.methods.items():
        new = second.program.methods.get(name)
        if new is None:
            continue
        halves = [("forward", old.forward, new.forward)]
        if old.backward is not None and new.backward is not None:
            halves.append(("backward", old.backward.graph, new.backward.graph))
        for half, of_old, of_new in halves:
            if of_old.digest != of_new.digest and first.has(of_old) and second.has(of_new):
                yield Change(f"{name}.{half}", _operators_changed(first, of_old, second, of_new))
        before, after = saved_bytes(first, old), saved_bytes(second, new)
        if before != after:
            yield Change(name, f"saves {_bytes(after)} for the backward, {_bytes(before)} before")


def _bytes(count: int | None) -> str:
    return "an unknown number of bytes" if count is None else f"{count:,} bytes"


def _operators_changed(first: Bundle, old: schema.Descriptor, second: Bundle, new: schema.Descriptor) -> str:
    before, after = operators(first.graph(old)), operators(second.graph(new))
    changed: Counter[str] = Counter(after)
    changed.subtract(before)
    found = [f"{count:+} {name}" for name, count in sorted(changed.items()) if count]
    if not found:
        return "the same operators with other arguments, or in another order"
    more = f" and {len(found) - 8} more" if len(found) > 8 else ""
    return f"{', '.join(found[:8])}{more} ({sum(before.values())} operations before, {sum(after.values())} now)"


def _targets(first: Bundle, second: Bundle) -> Iterator[Change]:
    old, new = first.targets, second.targets
    for name in old.keys() - new.keys():
        yield Change(name, "removed")
    for name in new.keys() - old.keys():
        yield Change(name, "added")
    for name in old.keys() & new.keys():
        yield from (Change(name, text) for text in _target(old[name], new[name]))


def _target(old: schema.Target, new: schema.Target) -> Iterator[str]:
    for label, before, after in (
        ("torch", old.torch, new.torch),
        ("instruction set", old.instruction_set, new.instruction_set),
        ("processor features", " ".join(old.cpu_features), " ".join(new.cpu_features)),
        ("topology", old.topology, new.topology),
    ):
        if before != after:
            yield f"{label}: {after or 'any'}, before {before or 'any'}"
    yield from _fixes(old.toolchain.get("fixes", ""), new.toolchain.get("fixes", ""))
    rest = ({key: value for key, value in target.toolchain.items() if key != "fixes"} for target in (old, new))
    yield from _mapping(*rest)
    yield from _mapping(old.packages, new.packages)


def _fixes(old: str, new: str) -> Iterator[str]:
    before, after = set(old.split()), set(new.split())
    if added := sorted(after - before):
        yield f"torch fixes now applied: {', '.join(added)}"
    if removed := sorted(before - after):
        yield f"torch fixes no longer applied: {', '.join(removed)}"


def _mapping(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    for key in sorted(old.keys() | new.keys()):
        if old.get(key) != new.get(key):
            yield f"{key}: {new.get(key) or 'none'}, before {old.get(key) or 'none'}"


def _producers(first: schema.Program, second: schema.Program) -> Iterator[Change]:
    for label, before, after in (
        ("name", first.name, second.name),
        ("aotpack", first.producer.aotpack, second.producer.aotpack),
        ("torch", first.producer.torch, second.producer.torch),
        ("format", _version(first.format), _version(second.format)),
        ("needs torch", first.requirements.torch, second.requirements.torch),
        ("needs operators", ", ".join(first.requirements.operators), ", ".join(second.requirements.operators)),
        ("needs classes", ", ".join(first.requirements.subclasses), ", ".join(second.requirements.subclasses)),
        ("features", ", ".join(first.features), ", ".join(second.features)),
    ):
        if before != after:
            yield Change(label, f"{after or 'none'}, before {before or 'none'}")


def _version(version: schema.Version) -> str:
    return f"{version.major}.{version.minor}"


def _sharing(first: Bundle, second: Bundle) -> Sharing:
    old, new = ({blob.digest: blob.size for blob in bundle.descriptors()} for bundle in (first, second))
    return Sharing(sum(old.values()), sum(new.values()), sum(size for digest, size in old.items() if digest in new))
