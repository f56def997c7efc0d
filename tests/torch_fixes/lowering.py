"""Lowers a case with Inductor, and stops before the C++ compiler: the generated code, in seconds instead of a minute."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from torch._inductor import codecache

import aotpack
from aotpack._torch.api.counting import count_call
from aotpack._torch.api.process_copy import in_place
from aotpack._torch.fixes.gate import check_torch
from aotpack._torch.inductor.toolchain import commands


class Lowered(BaseException):
    """All graphs of a build are lowered. No ``Exception``: a build explains those."""


@contextlib.contextmanager
def lowered_only() -> Iterator[list[str]]:
    """Stop a build when its graphs are lowered.

    Gives the C++ of each, without names that differ from build to build, with the calls of
    kernels that the C++ reads from a file. After it come its conditions on sizes, if there are any.
    """
    sources: list[str] = []

    class Recorded:
        @classmethod
        def compile(cls, graph: Any, wrapper_code: str, kernel_code: str, extern_kernels: str | None, **_: Any) -> str:
            count_call("inductor-tool-chain")  # which the compilation that is left out does
            code = _COMMENTS.sub("", f"{wrapper_code}\n{kernel_code}")
            sources.append(f"{code}\n{extern_kernels}")
            return "not compiled"

    def start(library: commands.Library, *_: Any, **__: Any) -> None:
        if library.guards:
            sources.append(" and ".join(map(str, library.guards)))

    def finish(_: Any) -> None:
        raise Lowered

    check_torch(inductor=True)  # remembered: in the block it would see a name that has changed
    with (
        in_place(),
        mock.patch.object(codecache, "AotCodeCompiler", Recorded),
        mock.patch.object(commands.Library, "start", start),
        mock.patch.object(commands.Library, "finish", finish),
        contextlib.suppress(Lowered),
    ):
        yield sources


def sources_of(model: Any, args: tuple[Any, ...], folder: Path, method: str = "train", **options: Any) -> list[str]:
    """The C++ of each graph of a method, as :func:`lowered_only` gives it."""
    with lowered_only() as sources:
        aotpack.build(model, args, out=folder / "m.aotpack", methods=(method,), cache=False, **options)
    return sources


_COMMENTS = re.compile(r"//[^\n]*")
