"""Traces nested compile regions without Dynamo."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from ...api.patching import patched


@contextlib.contextmanager
def trace_regions_inline() -> Iterator[None]:
    """Let ``torch.export`` trace nested compile regions as parts of the model.

    It gives each region to a Dynamo of its own, which calls it ``subgraph_0``. Graphs are then
    looked up by that name, and all regions get the first one's.
    """
    module = importlib.import_module("torch._higher_order_ops.invoke_subgraph")  # the package has an operator of that name
    with patched("export-regions-of-one-name", module, "invoke_subgraph_placeholder", _called):
        yield


def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)
