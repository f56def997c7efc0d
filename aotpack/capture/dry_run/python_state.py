"""Watches a running model's Python: identity comparisons, changes of values it read, and calls.

Some front ends run the model's Python instead of analysing it, and see a single run. What is
watched here could make another call behave differently without the graphs noticing.
"""

from __future__ import annotations

import contextlib
import dis
import itertools
import operator
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.overrides import TorchFunctionMode

from ... import origin
from ..._torch.api.identity_caches import is_identity_cache
from ..._torch.api.module_attributes import watched_attributes
from ..._torch.tracing import fake_run

_PLAIN = (bool, int, float, complex, str, bytes, type(None), tuple, frozenset)
KEPT = "a tensor of an earlier call"
"""How a step names a tensor that an earlier run made."""
_IDENTITY = (id, operator.is_, operator.is_not)
_HASH = torch.Tensor.__hash__.__code__


@dataclass
class Watched:
    """What the model's code did.

    ``compares``: it contains ``a is b``, or it called ``id``, or it looked up a tensor in a
    dictionary or set. ``changed`` are the attributes that it read and then changed.
    """

    compares: bool = False
    changed: set[str] = field(default_factory=set)


@contextlib.contextmanager
def watched(model: torch.nn.Module) -> Iterator[Watched]:
    """Watch the model while the block runs it.

    Plain attributes of its modules are restored afterwards.
    """
    seen, codes = Watched(), set[CodeType]()

    def profile(frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)
            asked = frame.f_code is _HASH
            frame = frame.f_back if asked and frame.f_back is not None else frame
        else:
            asked = event == "c_call" and called in _IDENTITY
        if asked and origin.is_model(frame.f_code.co_filename):
            seen.compares = True

    before = sys.getprofile()
    with _watched_attributes(model, seen):
        sys.setprofile(profile)
        try:
            yield seen
        finally:
            sys.setprofile(before)
    seen.compares |= any(_compares(code) for code in codes if origin.is_model(code.co_filename))


@contextlib.contextmanager
def _watched_attributes(model: torch.nn.Module, seen: Watched) -> Iterator[None]:
    names = {id(module): name for name, module in model.named_modules()}
    originals = [(module, dict(module.__dict__)) for module in model.modules()]
    read: set[tuple[int, str]] = set()
    written: set[tuple[int, str]] = set()
    set_attribute = torch.nn.Module.__setattr__

    def reading(module: torch.nn.Module, name: str) -> Any:
        key = id(module), name
        if key not in written:
            read.add(key)
        return object.__getattribute__(module, name)

    def writing(module: torch.nn.Module, name: str, value: Any) -> None:
        key = id(module), name
        old = module.__dict__.get(name, value)
        set_attribute(module, name, value)
        is_plain = isinstance(value, _PLAIN) and isinstance(old, _PLAIN) and not is_identity_cache(module, name)
        if key in read and key[0] in names and is_plain and value != old:
            seen.changed.add(f"{names[key[0]]}.{name}".removeprefix("."))
        written.add(key)

    watching = contextlib.ExitStack()

    def watch() -> None:
        watching.enter_context(watched_attributes(reading, writing))

    watch()
    try:
        with fake_run.suspended_while_compiling((reading.__code__, writing.__code__), watching.close, watch):
            yield
    finally:
        watching.close()
        for module, attributes in originals:
            plain = {name: value for name, value in attributes.items() if isinstance(value, _PLAIN)}
            module.__dict__.update(plain)


@dataclass(frozen=True)
class Step:
    """A call of a torch function: its name and arguments as text, and the model's source line."""

    call: str
    where: str


class Steps(TorchFunctionMode):
    """Records what a run calls.

    Tensors are numbered in order, and tensors of an ``earlier`` run are named as such.
    """

    def __init__(self, earlier: Steps | None = None) -> None:
        super().__init__()
        self.taken: list[Step] = []
        self.made: dict[int, torch.Tensor] = {}
        self._numbers: dict[int, tuple[int, torch.Tensor]] = {}
        self._earlier = {} if earlier is None else earlier.made

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if fake_run.is_compiling():  # eager compiles the branches of control flow, and would compile this as well
            return func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", str(func))
        if name not in _SILENT:
            self.taken.append(
                Step(f"{name}({', '.join(map(self._record_of, pytree.tree_leaves((args, kwargs))))})", origin.current_line())
            )
        result = func(*args, **(kwargs or {}))
        for value in pytree.tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self.made[id(value)] = value
        return result

    def returned(self, result: Any) -> None:
        """Record what the run returns."""
        self.taken.append(Step(f"return({', '.join(map(self._record_of, pytree.tree_leaves(result)))})", "the results"))

    def _record_of(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            if id(value) in self._earlier:
                return KEPT
            return f"tensor {self._numbers.setdefault(id(value), (len(self._numbers), value))[0]}"
        if isinstance(value, (*_PLAIN, torch.dtype, torch.device, torch.SymInt, torch.SymFloat, torch.SymBool)):
            return repr(value)
        return str(getattr(value, "__qualname__", type(value).__qualname__))


_SILENT = ("__get__", "_set_grad_enabled", "set_grad_enabled")
"""Calls that are not recorded.

Reading an attribute changes nothing, and leaving ``no_grad`` restores an earlier mode.
"""


def first_difference(one: Steps, other: Steps) -> tuple[str, Step, Step] | None:
    """Return where two runs differ first: the source line and the step of each.

    None if they do not differ.
    """
    end = Step("end", "")
    for a, b in itertools.zip_longest(one.taken, other.taken, fillvalue=end):
        if a.call != b.call:
            return b.where or a.where, a, b
    return None


def _compares(code: CodeType) -> bool:
    """Whether ``code`` contains an ``is`` between values that may be tensors.

    Constants and globals do not count.
    """
    instructions = [item for item in dis.get_instructions(code) if item.opname != "CACHE"]
    for i, item in enumerate(instructions):
        if item.opname == "IS_OP":
            names = [before.opname for before in instructions[max(i - 2, 0) : i]][::-1]
            attribute_of_global = names[:2] == ["LOAD_ATTR", "LOAD_GLOBAL"]
            if names[:1] not in (["LOAD_CONST"], ["LOAD_GLOBAL"]) and not attribute_of_global:
                return True
    return False
