"""The register of torch fixes from the command line. It needs torch alone: the register's entries are data."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import torch

ROOT = Path(__file__).resolve().parent.parent
FIXES = ROOT / "aotpack" / "_torch_compat" / "fixes"


def load_register() -> tuple[ModuleType, ModuleType, ModuleType]:
    """The modules ``register``, ``sources`` and ``entries``, without the package around them, which needs a torch that fits."""
    spec = importlib.util.spec_from_file_location(
        "torch_fixes_register", FIXES / "__init__.py", submodule_search_locations=[str(FIXES)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = package
    spec.loader.exec_module(package)
    register, sources, entries = (importlib.import_module(f"{spec.name}.{name}") for name in ("register", "sources", "entries"))
    return register, sources, entries


REGISTER, SOURCES, ENTRIES = load_register()
MINOR = REGISTER.name_of(REGISTER.minor(str(torch.__version__)))


def names() -> list[str]:
    """Every patched name."""
    return sorted({name for entry in (*ENTRIES.FIXES, *ENTRIES.HOOKS) for name in entry.patches})


def record() -> None:
    """Write down what the patched names look like in this torch; names that nothing patches any more go."""
    known = json.loads(SOURCES.RECORD.read_text()) if SOURCES.RECORD.exists() else {}
    found = {name: {**known.get(name, {}), MINOR: SOURCES.fingerprint(name)} for name in names()}
    ordered = {name: dict(sorted(hashes.items(), key=lambda item: REGISTER.minor(item[0]))) for name, hashes in found.items()}
    SOURCES.RECORD.write_text(json.dumps(ordered, indent=1) + "\n")
    lacking = [name for name, hashes in found.items() if hashes[MINOR] is None]
    print(f"{len(found)} names recorded for torch {MINOR}; it lacks {len(lacking)}", *lacking, sep="\n  ")


def check() -> int:
    """Print the entries that do not fit this torch: against its own record, or the newest."""
    recorded, wrong = SOURCES.recorded(), 0
    for entry in (*ENTRIES.FIXES, *ENTRIES.HOOKS):
        for name in entry.patches:
            hashes = recorded.get(name, {})
            newest = MINOR if MINOR in hashes else max(hashes, key=REGISTER.minor, default="")
            if (found := SOURCES.fingerprint(name)) != hashes.get(newest):
                wrong += 1
                print(
                    f"{entry.id}: {name} {'has changed since' if found else 'is gone; it was there in'} {newest or 'no record'}"
                )
    print(f"torch {torch.__version__}: {wrong} names do not fit")
    return int(wrong > 0)


COMMANDS = {"record": record, "check": check}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    return COMMANDS[parser.parse_args().command]() or 0


if __name__ == "__main__":
    sys.exit(main())
