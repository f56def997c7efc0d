"""Replaces attributes of torch, the only way in which the compiler does so.

Each replacement names its entry of the register of fixes. What was replaced is recorded, and tests
compare the record with the entries.

A replaced function acts in the thread that builds alone (:func:`~.building.builds`). Other threads
call the original through it. A value that is no function is there for all threads, so either it
asks who reads it, or only compilers read it. These wait for the build.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from types import BuiltinFunctionType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple

from torch._dynamo.eval_frame import skip_code

from .building import Replaced, builds, current_build, one_build
from .counting import counted

Replacing = contextlib.AbstractContextManager[Any]

_FUNCTIONS: Final = (FunctionType, MethodType, BuiltinFunctionType, functools.partial)
_NOTHING: Final = object()


class Replacement(NamedTuple):
    """An attribute of torch that was replaced: the entry's id, what has the attribute, and its name.

    For an attribute of an object, ``owner`` is the object's class.
    """

    identifier: str
    owner: str
    name: str


_made: set[Replacement] = set()


def replacements() -> Collection[Replacement]:
    """What was replaced in this process."""
    return _made


def patched(identifier: str, owner: Any, name: str, function: Callable[..., Any]) -> Replacing:
    """Replace a function of torch, and count the calls."""
    return replaced(identifier, owner, name, counted(identifier, function))


def replaced(identifier: str, owner: Any, name: str, function: Callable[..., Any]) -> Replacing:
    """Replace a function of torch.

    Static methods and class methods (``cls`` comes first) stay such. ``__wrapped__`` is the
    original, and ``__name__`` its name, by which Inductor finds the scalar code of an operator.
    """
    original = inspect.getattr_static(owner, name)
    function.__name__ = name
    function.__wrapped__ = getattr(original, "__func__", original)  # type: ignore[attr-defined]
    kind = type(original) if isinstance(original, (staticmethod, classmethod)) else None
    return hooked(identifier, owner, name, kind(function) if kind else function)


def hooked(identifier: str, owner: Any, name: str, function: Any) -> Replacing:
    """Replace a function of torch by ``function`` as it is."""
    _made.add(Replacement(identifier, dotted(owner), name))
    return _set(owner, name, _in_builds(function, _static(owner, name)))


def constant(identifier: str, owner: Any, name: str, value: Any) -> Replacing:
    """Replace a value of torch for all threads, or add one.

    ``value`` tells threads apart itself (:func:`~.building.builds`), or only compilers read it.
    """
    _made.add(Replacement(identifier, dotted(owner), name))
    return _set(owner, name, value)


@contextlib.contextmanager
def answered_in_builds(identifier: str, function: Callable[[], bool]) -> Iterator[None]:
    """Let a function of torch without arguments answer in the thread that builds, and return false in others.

    The function stays the object that it is, wherever it was imported to: it gets other code.
    """
    assert isinstance(function, FunctionType)
    _made.add(Replacement(identifier, function.__module__, function.__name__))
    own, defaults = function.__code__, function.__defaults__
    original = FunctionType(own, function.__globals__)

    def restore() -> None:
        function.__code__, function.__defaults__ = own, defaults

    with _restored(function, "__code__", restore):
        function.__defaults__ = (lambda: builds() and original(),)
        function.__code__ = _answer.__code__
        yield


def _answer(answer: Callable[[], bool]) -> bool:
    return answer()


@contextlib.contextmanager
def with_items(
    identifier: str, owner: Any, name: str, items: Mapping[Any, Any] | None = None, without: Collection[Any] = ()
) -> Iterator[None]:
    """Add ``items`` to a dictionary of torch, and leave out the keys ``without``. Only compilers read such a dictionary."""
    _made.add(Replacement(identifier, dotted(owner), name))
    table: dict[Any, Any] = getattr(owner, name)
    with contextlib.ExitStack() as stack:
        for key, value in {**(items or {}), **dict.fromkeys(without, _NOTHING)}.items():
            stack.enter_context(_item(table, key, value))
        yield


def attribute_set(owner: object, name: str, value: Any) -> Replacing:
    """Set an attribute of a single object. It changes no code of torch, so no entry describes it."""
    if isinstance(owner, ModuleType | type):
        raise TypeError(f"{name} of {owner} is no attribute of a single object")
    return _set(owner, name, value)


def replaced_outside_torch(owner: Any, name: str, value: Any) -> Replacing:
    """Replace a function of another package; any other value is replaced for all threads."""
    if dotted(owner).partition(".")[0] == "torch":
        raise TypeError(f"{dotted(owner)} is torch's own: an entry of the register describes its replacements")
    return _set(owner, name, _in_builds(value, _static(owner, name)) if isinstance(value, _FUNCTIONS) else value)


def caller(depth: int = 1) -> FrameType:
    """The frame that has called the function ``depth`` frames above this one, a replacement."""
    frame = sys._getframe(depth + 1)
    while frame.f_code is IN_BUILDS and frame.f_back is not None:
        frame = frame.f_back
    return frame


def dotted(owner: Any) -> str:
    """The name of a module or class; of another object that of its class."""
    if isinstance(owner, ModuleType):
        return owner.__name__
    kind = owner if isinstance(owner, type) else type(owner)
    return f"{kind.__module__}.{kind.__qualname__}"


def _static(owner: Any, name: str) -> Any:
    """What an attribute of a class is, unbound; an attribute of a module or an object."""
    return inspect.getattr_static(owner, name) if isinstance(owner, type) else getattr(owner, name)


def _in_builds(ours: Any, torchs: Any) -> Any:
    """A function that is ``ours`` in the thread that builds, and ``torchs`` in others."""
    if isinstance(ours, (staticmethod, classmethod)):
        return type(ours)(_in_builds(ours.__func__, getattr(torchs, "__func__", torchs)))
    if not isinstance(ours, _FUNCTIONS):
        raise TypeError(f"{ours!r} is no function, so it is no replacement in one thread")

    def function(*args: Any, **kwargs: Any) -> Any:
        build = current_build()
        return (torchs if build is None or not build.runs else ours)(*args, **kwargs)

    functools.update_wrapper(function, ours)
    function._torchdynamo_inline = ours  # type: ignore[attr-defined]  # Dynamo traces this one
    return function


IN_BUILDS: Final = next(code for code in _in_builds.__code__.co_consts if getattr(code, "co_name", "") == "function")
"""The code of replaced functions, which chooses between ours and the original."""
skip_code(IN_BUILDS)  # Dynamo would trace any code that runs


@contextlib.contextmanager
def _set(owner: Any, name: str, value: Any) -> Iterator[Any]:
    """Set an attribute to the yielded value; afterwards ``owner`` has its own attribute again, or none."""
    own = getattr(owner, "__dict__", {}).get(name, _NOTHING)

    def restore() -> None:
        if own is not _NOTHING:
            setattr(owner, name, own)
        elif name in vars(owner):
            delattr(owner, name)

    with _restored(owner, name, restore):
        setattr(owner, name, value)
        yield value


@contextlib.contextmanager
def _item(table: dict[Any, Any], key: Any, value: Any) -> Iterator[None]:
    own = table.get(key, _NOTHING)

    def put(value: Any) -> None:
        if value is _NOTHING:
            table.pop(key, None)
        else:
            table[key] = value

    with _restored(table, key, functools.partial(put, own)):
        put(value)
        yield


@contextlib.contextmanager
def _restored(owner: object, name: object, restore: Callable[[], None]) -> Iterator[None]:
    """Restore something after the block, or at the latest at the end of the build that it belongs to."""
    replaced = Replaced(owner, name, restore)
    with one_build() as build:
        build.add(replaced)
        try:
            yield
        finally:
            build.restore(replaced)
