"""Fixes of Dynamo's capture."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo import functional_export

from ...api.patching import patched


def ignore_value_hints() -> contextlib.AbstractContextManager[Any]:
    """Do not use the value of a 0-dimensional example as a hint: torch would make decisions on it
    without a guard.
    """
    return patched("dynamo-hints-of-values", torch._subclasses.fake_tensor, "_is_plain_tensor", lambda *given: False)


@contextlib.contextmanager
def keep_attributes_separate() -> Iterator[None]:
    """Keep the captured module's attributes separate from the model's of the same names, such as
    ``_graph`` and ``meta``.

    Dynamo's export front end copies all attributes of the model over those of the captured module,
    and then writes to them. With a ``torch.fx.GraphModule`` as the model, Dynamo's code would end
    up in the model's own graph.
    """
    name = "create_fx_graph_from_captured_output"
    original = getattr(functional_export, name, None)  # not in every release

    def unmixed(out: Any, model: Any, *rest: Any) -> Any:
        owner = getattr(model, "__self__", model)
        attributes = vars(owner) if isinstance(owner, torch.nn.Module) else {}
        captured = {} if out.backend_input is None else vars(out.backend_input.graph_module)
        own = captured.keys() - torch.nn.Module.__annotations__.keys()
        kept = dict(attributes)
        for attribute in own & attributes.keys():
            del attributes[attribute]
        try:
            return original(out, model, *rest)  # type: ignore[misc]
        finally:
            attributes.clear()
            attributes.update(kept)  # restores their original order

    fix = "dynamo-attributes-of-the-model"
    with patched(fix, functional_export, name, unmixed) if original is not None else contextlib.nullcontext():
        yield


def know_builtins() -> contextlib.AbstractContextManager[Any]:
    """Let the code that Dynamo writes for results refer to Python's own names, such as ``type``. Subclasses of
    ``OrderedDict`` are made with it, and so are the outputs of ``transformers``.
    """
    name = "create_fx_graph_from_captured_output"
    original = getattr(functional_export, name)

    def with_builtins(out: Any, *rest: Any) -> Any:
        found = out.graph_capture_output
        found.f_globals = vars(builtins) | found.f_globals
        return original(out, *rest)

    return patched("dynamo-references-to-builtins", functional_export, name, with_builtins)
