"""aotpack: packages that carry a trainable, already compiled PyTorch model.

``aotpack.build`` writes a bundle. ``aotpack.load`` turns it back into a trainable module.
Importing this package costs no more than importing the loader, because the compiler is imported at
its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aotpack_loader import _process

if TYPE_CHECKING:
    from aotpack_loader import AotpackError as AotpackError
    from aotpack_loader import BackendWarning as BackendWarning
    from aotpack_loader import LayoutWarning as LayoutWarning
    from aotpack_loader import LoadedProgram as LoadedProgram
    from aotpack_loader import load as load

    from .model.method import Method as Method
    from .optimizer.copies import keep_copies as keep_copies
    from .pipeline.pipeline import build as build
    from .pipeline.pipeline import compile_bundle as compile_bundle
    from .pipeline.progress import BuildReport as BuildReport
    from .pipeline.progress import Observer as Observer
    from .pipeline.progress import Silent as Silent

__version__ = "0.1.0"
__all__ = [
    "AotpackError",
    "BackendWarning",
    "BuildReport",
    "LayoutWarning",
    "LoadedProgram",
    "Method",
    "Observer",
    "Silent",
    "build",
    "compile_bundle",
    "keep_copies",
    "load",
]

_HOME = {
    "load": "aotpack_loader",
    "AotpackError": "aotpack_loader",
    "BackendWarning": "aotpack_loader",
    "LayoutWarning": "aotpack_loader",
    "LoadedProgram": "aotpack_loader",
    "Method": "aotpack.model.method",
    "build": "aotpack.tools.builds",
    "compile_bundle": "aotpack.tools.builds",
    "keep_copies": "aotpack.optimizer.copies",
    "BuildReport": "aotpack.pipeline.progress",
    "Observer": "aotpack.pipeline.progress",
    "Silent": "aotpack.pipeline.progress",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _process.collector_paused():  # the imports leave a million objects, and no garbage
        value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
