"""aotpack-loader: load a bundle as a trainable ``nn.Module``, without compiler, tracing, source or pickle.

The package has layers; each uses only those below it:

* :mod:`.opening`: makes the module from a bundle;
* :mod:`.module`: the loaded module;
* :mod:`.runtime`: one call of a method;
* :mod:`.devices` and :mod:`.trust`: turn code into callables, and decide whether it may run;
* :mod:`.archive`: the bytes of a bundle;
* :mod:`.format`: the schema.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import _process

if TYPE_CHECKING:
    from .errors import AotpackError as AotpackError
    from .integrations.peft import save_adapter as save_adapter
    from .loading import BackendWarning as BackendWarning
    from .loading import load as load
    from .module.program import LoadedProgram as LoadedProgram
    from .runtime.inputs import LayoutWarning as LayoutWarning

__version__ = "0.1.0"
__all__ = ["AotpackError", "BackendWarning", "LayoutWarning", "LoadedProgram", "load", "save_adapter"]

_HOME = {
    "load": "loading",
    "BackendWarning": "loading",
    "LayoutWarning": "runtime.inputs",
    "LoadedProgram": "module.program",
    "save_adapter": "integrations.peft",
    "AotpackError": "errors",
}


def __getattr__(name: str) -> Any:
    """Import on first use: reading a bundle's documents needs no torch."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _process.collector_paused():
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
