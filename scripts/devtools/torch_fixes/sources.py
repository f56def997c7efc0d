"""Records what the patched names of torch look like, and compares."""

from __future__ import annotations

import json

import torch

from .register import ENTRIES, REGISTER, SOURCES

MINOR: str = REGISTER.name_of(REGISTER.minor(str(torch.__version__)))
"""The minor release of this torch, such as ``2.13``."""


def record() -> None:
    """Record the patched names of this torch; names that nothing patches any more go."""
    known = json.loads(SOURCES.RECORD.read_text()) if SOURCES.RECORD.exists() else {}
    names = sorted({name for entry in (*ENTRIES.FIXES, *ENTRIES.HOOKS) for name in entry.patches})
    found = {name: {**known.get(name, {}), MINOR: SOURCES.fingerprint(name)} for name in names}
    ordered = {name: dict(sorted(hashes.items(), key=lambda item: REGISTER.minor(item[0]))) for name, hashes in found.items()}
    SOURCES.RECORD.write_text(json.dumps(ordered, indent=1) + "\n")
    lacking = [name for name, hashes in found.items() if hashes[MINOR] is None]
    print(f"{len(found)} names recorded for torch {MINOR}; it lacks {len(lacking)}", *lacking, sep="\n  ")


def check() -> int:
    """Print the entries that do not fit this torch: against its own record, or the newest. Return 1 if there are any."""
    recorded, wrong = SOURCES.recorded(), 0
    for entry in (*ENTRIES.FIXES, *ENTRIES.HOOKS):
        for name in entry.patches:
            hashes = recorded.get(name, {})
            newest = MINOR if MINOR in hashes else max(hashes, key=REGISTER.minor, default="")
            if (found := SOURCES.fingerprint(name)) != hashes.get(newest):
                wrong += 1
                difference = "has changed since" if found else "is gone; it was there in"
                print(f"{entry.id}: {name} {difference} {newest or 'no record'}")
    print(f"torch {torch.__version__}: {wrong} names do not fit")
    return int(wrong > 0)
