"""Dynamo's export front end, and what it knows of the model besides the graph."""

from __future__ import annotations

import contextlib
import operator
import re
import warnings
from collections.abc import Collection, Iterator, Sequence
from typing import Any
from unittest import mock

import torch
import torch._dynamo
import torch._inductor
import torch._inductor.lowering
from torch._dynamo import functional_export
from torch._guards import tracing

from aotpack_loader.errors import Problem, UnsupportedError

from .messages import OLD_IGNORED, message_functions
from .rehearsal import ASSIGNS_STATE, SideEffectError


def capture_with_dynamo(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.fx.GraphModule:
    """Trace with Dynamo's export front end; keeps pytrees, parameter names and activation checkpoints.

    A bundle's graphs have no place for messages: calls that only print, warn or log are left out of the trace.

    Raises:
        NotImplementedError: torch 2.9, whose front end mixes up inputs and does not give its fake mode.
    """
    graph_capture = getattr(functional_export, "dynamo_graph_capture_for_export", None)
    if graph_capture is None:
        raise NotImplementedError(f"torch {torch.__version__} has no front end of Dynamo that a bundle can be made with")
    torch._dynamo.reset()
    ignored = "ignore_logging_functions" if hasattr(torch._dynamo.config, "ignore_logging_functions") else OLD_IGNORED
    with (
        torch._dynamo.config.patch(
            {
                "specialize_int": True,
                "assume_static_by_default": True,
                "automatic_dynamic_shapes": False,
                "capture_scalar_outputs": True,
                "use_numpy_random_stream": True,  # refused then; else NumPy's numbers would be torch's
                ignored: getattr(torch._dynamo.config, ignored) | message_functions(),
            }
        ),
        # Else the value of a 0-dimensional example would be a hint, and decisions would be made on it.
        mock.patch.object(torch._subclasses.fake_tensor, "_is_plain_tensor", return_value=False),
        warnings.catch_warnings(record=True) as caught,
        _watched_identity() as compared,
        _watched_changes() as changed,
    ):
        warnings.simplefilter("always")
        captured: torch.fx.GraphModule = graph_capture(model)(*args, **kwargs)
    refuse_changes(changed)
    captured.meta[SIDE_EFFECTS] = _side_effects([str(warning.message) for warning in caught])
    captured.meta[COMPARES] = bool(compared)
    return captured


COMPARES = "aotpack_compares"


@contextlib.contextmanager
def _watched_identity() -> Iterator[list[str]]:
    """Collects where Dynamo lets the identity of tensors decide: ``is``, ``id()``, keys of dictionaries and sets."""
    found: list[str] = []
    builtin, tensor = torch._dynamo.variables.BuiltinVariable, torch._dynamo.variables.TensorVariable
    hash_name = "hash_impl" if hasattr(tensor, "hash_impl") else "get_python_hash"
    comparison, identity, hashed = builtin._comparison_with_tensor, builtin.call_id, getattr(tensor, hash_name)

    def watched_comparison(self: Any, tx: Any, left: Any, right: Any) -> Any:
        are_tensors = isinstance(left, tensor) and isinstance(right, tensor)
        if self.fn in (operator.is_, operator.is_not) and are_tensors and left.source and right.source:
            found.append(self.fn.__name__)
        return comparison(self, tx, left, right)

    def watched_identity(self: Any, tx: Any, *args: Any) -> Any:
        found.extend("id" for arg in args if isinstance(arg.realize(), tensor) and arg.source)
        return identity(self, tx, *args)

    def watched_hash(self: Any, *args: Any) -> Any:
        found.extend(["hash"] if self.source else [])
        return hashed(self, *args)

    with (
        mock.patch.object(builtin, "_comparison_with_tensor", watched_comparison),
        mock.patch.object(builtin, "call_id", watched_identity),
        mock.patch.object(tensor, hash_name, watched_hash),
    ):
        _forget_handlers()
        try:
            yield found
        finally:
            _forget_handlers()


def _forget_handlers() -> None:
    """Dynamo keeps the handlers of built-in functions that it has looked up."""
    torch._dynamo.variables.BuiltinVariable._binop_handlers.cache_clear()
    torch._dynamo.variables.BuiltinVariable.call_function_handler_cache.clear()


@contextlib.contextmanager
def _watched_changes() -> Iterator[set[str]]:
    """Collects Python values that the model reads and changes: Dynamo guards what is read, and tracks what is changed."""
    found: set[str] = set()
    graph = torch._dynamo.output_graph.OutputGraph
    name = "get_replayed_side_effect_source_refs"
    original = getattr(graph, name, None)  # 2.9 has it under no name of its own

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        found.update(_read_and_changed(self))
        return original(self, *args, **kwargs)  # type: ignore[misc]

    with mock.patch.object(graph, name, watched) if original is not None else contextlib.nullcontext():
        yield found


def _read_and_changed(graph: Any) -> Iterator[str]:
    read: dict[str, set[str]] = {}
    for guard in graph.guards:
        create = getattr(guard.create_fn, "func", guard.create_fn)
        read.setdefault(guard.name, set()).add(create.__name__)
    effects = graph.side_effects
    for variable in effects._get_modified_vars():
        if variable.source is None or isinstance(variable.source, torch._dynamo.source.TempLocalSource):
            continue  # made by the model itself: nobody has read it before
        source = variable.source.name
        source = source() if callable(source) else source  # a method in older releases
        if source.endswith(("._buffers", "._parameters")):
            continue  # another front end may take these (``kept_state_changes``)
        if source.startswith("G['__import_torch_"):
            continue  # torch's own, such as which warnings it has shown
        for attribute, value in effects.store_attr_mutations.get(variable, {}).items():
            names = {f"{source}.{attribute}", f"{source}.__dict__[{attribute!r}]"}
            if names & read.keys() and not _is_as_before(variable, attribute, value):
                yield f"{source}.{attribute}"
        if isinstance(variable.mutation_type, torch._dynamo.variables.base.ValueMutationExisting):
            items = [name for name, kinds in read.items() if name.startswith(f"{source}[") and kinds & _VALUE_GUARDS]
            if items or read.get(source, set()) & _MEMBER_GUARDS:
                yield min(items, default=source)


_VALUE_GUARDS = {"EQUALS_MATCH", "CONSTANT_MATCH", "TENSOR_MATCH"}


_MEMBER_GUARDS = {"DICT_CONTAINS", "DICT_NOT_CONTAINS", "SET_CONTAINS", "SET_NOT_CONTAINS"}


def _is_as_before(owner: Any, attribute: str, value: Any) -> bool:
    """Whether a plain value is set to what it was."""
    before = getattr(getattr(owner, "value", None), attribute, value)
    return value.is_python_constant() and bool(value.as_python_constant() == before)


def refuse_changes(changed: Collection[str]) -> None:
    """Refuse a model whose results depend on a Python value that it changes.

    Raises:
        UnsupportedError: names each value.
    """
    if changed:
        raise UnsupportedError(
            "The model reads Python values and changes them while it runs; a bundle keeps tensors only.",
            [Problem(name.replace("L['self']", "self"), "read, and changed for the next call") for name in sorted(changed)],
            hint="Keep such a value in a buffer, and change it in place (self.count.add_(1)).",
        )


SIDE_EFFECTS = "aotpack_side_effects"


def _side_effects(messages: Sequence[str]) -> tuple[str, ...]:
    """What the model changes besides tensors. Dynamo's export front end drops that: state must not get lost so.

    Raises:
        SideEffectError: a tensor was assigned to a buffer or parameter.
    """
    effects = " ".join(message for message in messages if "side effects" in message)
    if "._buffers" in effects or "._parameters" in effects:
        raise SideEffectError(ASSIGNS_STATE)
    return tuple(dict.fromkeys(re.findall(r"\bL\[[^\s,\"]+", effects)))


@contextlib.contextmanager
def dynamo_contexts(captured: torch.fx.GraphModule) -> Iterator[None]:
    """The fake mode and tracing context in which a Dynamo capture goes on to AOTAutograd."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(tracing(captured.meta["tracing_context"]))
        stack.enter_context(captured.meta["fake_mode"])
        yield
