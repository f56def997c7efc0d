"""Finds Python values that a model changes while it runs.

Dynamo guards the values it reads, and tracks those it changes.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import torch
import torch._dynamo

from aotpack_loader.errors import Problem, UnsupportedError

from ..api.counting import count_call
from ..api.identity_caches import is_identity_cache
from ..api.patching import hooked
from .size_caches import Kept, kept


class Change(NamedTuple):
    """A Python value that a call leaves changed, and whether the call had read it.

    ``owner``, ``attribute`` and ``value`` are known only for attributes set to plain values, and to what is computed
    from sizes alone (``kept``; ``value`` is that of the example's sizes). Otherwise ``owner`` is None.
    """

    name: str
    read: bool
    owner: Any = None
    attribute: str = ""
    value: Any = None
    kept: Kept | None = None

    def after(self, further: int) -> Change:
        """The change as a call leaves it whose sizes are larger by ``further``."""
        return self if self.kept is None else self._replace(value=self.kept.values[further])


@contextlib.contextmanager
def watched_changes() -> Iterator[dict[str, Change]]:
    """Record, by name, the changes of the model that Dynamo traces in this block."""
    found: dict[str, Change] = {}
    graph = torch._dynamo.output_graph.OutputGraph
    name = _end_of_trace()
    original = getattr(graph, name)

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        count_call("dynamo-changes")
        found.update((change.name, change) for change in _changes(self))
        return original(self, *args, **kwargs)

    with hooked("dynamo-changes", graph, name, watched):
        yield found


def _end_of_trace() -> str:
    """The method of ``OutputGraph`` that runs after the trace, while its changes are still known.

    Torch before 2.13 collects changes in a larger method. ``cleanup`` forgets them there.
    """
    collects = "get_replayed_side_effect_source_refs"
    return collects if hasattr(torch._dynamo.output_graph.OutputGraph, collects) else "cleanup"


@contextlib.contextmanager
def state_after_a_call(changes: Iterable[Change]) -> Iterator[None]:
    """During this block, set the attributes of ``changes`` to the values that a call leaves; all
    changes have an owner.
    """
    before = []
    for change in changes:
        attributes = vars(change.owner)
        before.append((attributes, change.attribute, change.attribute in attributes, attributes.get(change.attribute)))
        attributes[change.attribute] = change.value
    try:
        yield
    finally:
        for attributes, attribute, was_there, value in before:
            if was_there:
                attributes[attribute] = value
            else:
                attributes.pop(attribute, None)


def refuse_changes(changed: Collection[str]) -> None:
    """Reject a model whose results depend on a Python value that it changes.

    Raises:
        UnsupportedError: names each value.
    """
    if changed:
        names = set(map(as_written, changed))
        names -= {name for name in names if any(other.endswith(f".{name}") for other in names)}  # one value, found in two ways
        raise UnsupportedError(
            "The model reads Python values and changes them while it runs; a bundle keeps tensors only.",
            [Problem(name, "read, and changed for the next call") for name in sorted(names)],
            hint="Keep such a value in a buffer, and change it in place (self.count.add_(1)). "
            "If only the first call sets it, build with warm_up=True.",
        )


def refuse_kept(changes: Iterable[Change]) -> None:
    """Reject a model that keeps a value for the sizes of a call, and takes it at other sizes.

    Raises:
        UnsupportedError: names the line and the attribute of each such value.
    """
    if problems := [
        Problem(change.kept.line or as_written(change.name), f"{as_written(change.name)} is taken at other sizes, too")
        for change in changes
        if change.kept is not None and change.kept.line
    ]:
        raise UnsupportedError(
            "The model keeps a value that it computes from sizes, and takes it at other sizes; a bundle keeps no such value.",
            problems,
            hint="Compute it in each call, or in __init__ for the largest size, as a buffer of which a call takes a part. "
            "If all calls have the example's sizes, build with warm_up=True.",
        )


def as_written(name: str) -> str:
    """The name as a user writes it: ``self.n`` for ``L['self'].n``, ``a.b.N`` for ``G['__import_a_dot_b'].N``.

    A method of a model has the model as ``self._aotpack_model``.
    """
    module = re.sub(r"\bG\['__import_(\w+)'\]", lambda found: found[1].replace("_dot_", "."), name)
    return re.sub(r"\b[LG]\['(\w+)'\]", r"\1", module).replace("self._aotpack_model", "model")


def _changes(graph: Any) -> Iterator[Change]:
    read: dict[str, set[str]] = {}
    for guard in graph.guards:
        create = getattr(guard.create_fn, "func", guard.create_fn)
        read.setdefault(guard.name, set()).add(create.__name__)
    effects = graph.side_effects
    for variable in effects._get_modified_vars():
        if variable.source is None or isinstance(variable.source, torch._dynamo.source.TempLocalSource):
            continue  # made by the model itself: it cannot have been read before
        source = variable.source.name
        source = source() if callable(source) else source  # a method in older releases
        if source.endswith(("._buffers", "._parameters")):
            continue  # another front end may support these (``kept_state_changes``)
        if source.startswith("G['__import_torch_"):
            continue  # torch's own state, such as which warnings it has shown
        if isinstance(variable, torch._dynamo.variables.NewGlobalVariable):
            yield Change(source, read=False)  # a second run shows whether its value matters
            continue
        for attribute, value in effects.store_attr_mutations.get(variable, {}).items():
            owner = getattr(variable, "value", None)
            if not is_identity_cache(owner, attribute) and not _is_unchanged(variable, attribute, value):
                names = {f"{source}.{attribute}", f"{source}.__dict__[{attribute!r}]"}
                known = _known(variable, attribute, value)
                yield Change(f"{source}.{attribute}", bool(names & read.keys()), *known)
        if isinstance(variable.mutation_type, torch._dynamo.variables.base.ValueMutationExisting):
            items = [name for name, kinds in read.items() if name.startswith(f"{source}[") and kinds & _VALUE_GUARDS]
            yield Change(min(items, default=source), bool(items or read.get(source, set()) & _MEMBER_GUARDS))


_VALUE_GUARDS = {"EQUALS_MATCH", "CONSTANT_MATCH", "TENSOR_MATCH"}


_MEMBER_GUARDS = {"DICT_CONTAINS", "DICT_NOT_CONTAINS", "SET_CONTAINS", "SET_NOT_CONTAINS"}


def _is_unchanged(owner: Any, attribute: str, value: Any) -> bool:
    """Whether an attribute is set to the plain value that it had before."""
    before = getattr(getattr(owner, "value", None), attribute, value)
    return value.is_python_constant() and bool(value.as_python_constant() == before)


def _known(variable: Any, attribute: str, value: Any) -> tuple[()] | tuple[Any, str, Any, Kept | None]:
    """The object, the attribute, its new value and whether that is of sizes, if all are known; else empty."""
    owner = getattr(variable, "value", None)
    if not isinstance(getattr(owner, "__dict__", None), dict):
        return ()
    if value.is_python_constant():
        return owner, attribute, value.as_python_constant(), None
    found = kept(value)
    return () if found is None else (owner, attribute, found.values[0], found)
