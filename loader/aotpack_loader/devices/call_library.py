"""The call library of a target: native code that makes the calls of methods.

It is optional. Without it, or if it does not fit, Python does the same (:mod:`..runtime.call`).
Like other native code of a target it is opened only after :mod:`..trust` has allowed it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

import torch

if TYPE_CHECKING:
    from ..archive.bundle import Bundle
    from ..format import schema

INTERFACE: Final = 4
"""The version of what passes between the loader and the library (spec/native-call.md)."""
SWITCH: Final = "AOTPACK_NATIVE_CALL"

Slots = Mapping[str, tuple[dict[str, Any], str]]
"""Where a module holds its parameters and buffers, by name: the dictionary, and the key in it."""
NativeCall = Callable[[Sequence[Any], Slots], list[Any] | None]
"""Leaves and slots to flat results; None where Python is to make the call, and nothing has happened."""


class OpenedCode(NamedTuple):
    """What a name in a document stands for."""

    run: Callable[[list[Any]], list[Any]]
    """Code that the library opened, or a function of Python. It empties its list of inputs."""
    failed: Callable[[str], None] | None = None
    """Raises the error for the message of an exception in opened code."""


class DescribedCall(Protocol):
    """A :class:`..format.native_call.NativeCall` that the library has read. Attributes are its fields."""

    @property
    def symbols(self) -> list[str]:
        """The names of the symbols."""

    @property
    def constraints(self) -> list[str]:
        """Expressions that the sizes must satisfy."""

    @property
    def expressions(self) -> list[str]:
        """Expressions whose values :meth:`make` needs."""

    @property
    def is_differentiable(self) -> bool:
        """Whether the method has a backward."""

    def sizes(self, leaves: Sequence[Any]) -> tuple[int, ...] | None:
        """The values of the symbols in a call; None if an argument or a value does not fit."""

    def make(self, codes: Mapping[str, OpenedCode], constants: Sequence[torch.Tensor], sizes: Mapping[str, int], /) -> NativeCall:
        """The calls for one set of sizes: the values of symbols and expressions, by their texts.

        Raises:
            ValueError: the document is none, or ``codes`` or ``sizes`` lack something.
        """


class Row(Protocol):
    """A parameter and its state."""

    def fits(self, state: Mapping[str, Any], /) -> bool:
        """Whether nothing has taken the place of the state, and the parameter has a gradient that fits."""


class NativeUpdate(Protocol):
    """An update of an optimizer (spec/optimizers.md)."""

    def row(self, held: Sequence[torch.Tensor], /) -> Row:
        """A parameter and its state, in the order of the method. They fit."""

    def run(self, rows: Sequence[Row], numbers: Sequence[torch.Tensor], /) -> None:
        """Update the parameters and states of rows, which fit."""


class CallLibrary(Protocol):
    """What the library offers."""

    def open(self, path: str) -> Callable[[list[Any]], list[Any]]:
        """Compiled code as a function, which empties its list of inputs."""

    def outputs(self, run: Callable[[list[Any]], list[Any]]) -> int:
        """How many values opened code returns."""

    def read(self, document: bytes | str) -> DescribedCall:
        """Read a document.

        Raises:
            ValueError: it is none.
        """

    def update(
        self,
        run: Callable[[list[Any]], list[Any]],
        positions: tuple[list[int], list[int]],
        failed: Callable[[str], None] | None,
        inputs: Sequence[int],
        writes: Sequence[tuple[int, int]],
        alike: Sequence[bool],
        flat: bool,
        constants: Sequence[torch.Tensor],
        /,
    ) -> NativeUpdate:
        """An update whose graph is opened code.

        Leaves are numbered: the parameter, its gradient, its state, the numbers of the group, constants.

        Args:
            run: the code.
            positions: the inputs of the graph that the code takes, and its results that are the outputs of the graph.
            failed: raises the error for the message of an exception in the code.
            inputs: the leaves that the graph takes.
            writes: a leaf, and the output that it becomes.
            alike: of the parameter and each state, whether it has the parameter's sizes.
            flat: whether those are taken with one dimension.
            constants: tensors of the method.
        """

    def on_refusal(
        self,
        refuse: Callable[[int, list[str], torch.Tensor | None], None],
        has_hooks_of_caller: Callable[[Mapping[int, Any]], bool],
    ) -> None:
        """Set the functions that a backward calls: one raises the error for a refusal, one tells whose hooks a result has."""


def open_library(bundle: Bundle, target: schema.Target) -> tuple[CallLibrary | None, str]:
    """The call library of ``target``, which is trusted; else None and the reason."""
    described = target.call
    if described is None:
        return None, "the bundle has no call library"
    if os.environ.get(SWITCH) == "0":
        return None, f"switched off by {SWITCH}=0"
    if described.interface != INTERFACE:
        return None, f"the call library has interface {described.interface}, this loader {INTERFACE}"
    if described.torch != torch.__version__:
        return None, f"the call library is for torch {described.torch}, this is {torch.__version__}"
    if described.python != EXTENSION_SUFFIXES[0]:
        return None, f"the call library is for Python {described.python}, this is {EXTENSION_SUFFIXES[0]}"
    try:
        return import_library(bundle.code(described.code)), ""
    except ImportError as error:
        return None, f"the call library cannot be loaded: {error}"


def import_library(path: Path) -> CallLibrary:
    """Open the library at ``path``, which is trusted.

    Raises:
        ImportError: the system cannot load it.
    """
    name = f"aotpack_{path.stem}.aotpack_call"  # pybind11 identifies modules by name, so each library has its own
    loader = ExtensionFileLoader(name, os.fspath(path))
    module = module_from_spec(ModuleSpec(name, loader, origin=os.fspath(path)))
    loader.exec_module(module)
    return cast(CallLibrary, module)
