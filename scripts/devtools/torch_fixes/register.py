"""The register, without the package around it: the compiler may not import with the torch that is looked at."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType

from ..paths import ROOT

_FIXES = ROOT / "aotpack" / "_torch" / "fixes"


def _load() -> tuple[ModuleType, ModuleType, ModuleType]:
    spec = importlib.util.spec_from_file_location(
        "torch_fixes_register", _FIXES / "__init__.py", submodule_search_locations=[str(_FIXES)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = package
    spec.loader.exec_module(package)
    register, sources, entries = (importlib.import_module(f"{spec.name}.{name}") for name in ("register", "sources", "entries"))
    return register, sources, entries


REGISTER, SOURCES, ENTRIES = _load()
