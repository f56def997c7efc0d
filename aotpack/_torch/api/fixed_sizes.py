"""Notes where a trace makes sizes constant that were to vary."""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from torch._guards import TracingContext
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from .patching import Replacing, hooked
from .whole_numbers import reader

_PACKAGE = str(Path(__file__).parents[2])
_stacks: WeakKeyDictionary[ShapeEnv, dict[int, traceback.StackSummary]] = WeakKeyDictionary()
_readers: WeakKeyDictionary[ShapeEnv, list[dict[str, Any]]] = WeakKeyDictionary()


def noted_fixed_sizes() -> Replacing:
    """Note the stack of each size that is made constant in this block."""
    replace = ShapeEnv._set_replacement

    def noted(env: ShapeEnv, symbol: Any, value: Any, *args: Any, **kwargs: Any) -> None:
        if value.is_Integer and env.replacements.get(symbol) != value:
            _stacks.setdefault(env, {}).setdefault(int(value), TracingContext.extract_stack() or _in_the_build())
            found = reader(frame for frame, _ in traceback.walk_stack(None))
            _readers.setdefault(env, []).extend([] if found is None else [found])
        replace(env, symbol, value, *args, **kwargs)

    return hooked("shapes-fixed-sizes", ShapeEnv, "_set_replacement", noted)


def _in_the_build() -> traceback.StackSummary:
    """The stack below the frames of the build's caller."""
    inside = itertools.dropwhile(lambda frame: not frame.filename.startswith(_PACKAGE), traceback.extract_stack())
    return traceback.StackSummary.from_list(list(inside))


def stacks_of_fixed_sizes(mode: FakeTensorMode) -> Mapping[int, traceback.StackSummary]:
    """Where a trace in this mode first made a size the constant that is the key."""
    return {} if mode.shape_env is None else _stacks.get(mode.shape_env, {})


def readers_of_fixed_sizes(mode: FakeTensorMode) -> list[dict[str, Any]]:
    """The globals of the model's functions that read ``int`` and made a size constant in this mode."""
    return [] if mode.shape_env is None else _readers.get(mode.shape_env, [])
