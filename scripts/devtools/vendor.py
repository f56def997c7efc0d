"""Fetches the libraries of HTML pages from npm, or checks that the files are those of the manifest.

    scripts/vendor            fetch every file of aotpack/tools/report/html/vendor/vendor.json, and record its digest
    scripts/vendor --check    compare files and digests; no network

To take another release, change ``version`` in the manifest and run it. ``npm pack`` fetches the
packages, so npm must be installed; nothing of a package is run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from .paths import ROOT

FOLDER = ROOT / "aotpack/tools/report/html/vendor"
MANIFEST = FOLDER / "vendor.json"


def check() -> list[str]:
    """Return what differs from the manifest: files with another digest, missing ones, and unlisted ones."""
    listed = {file: entry["sha256"] for package in _manifest() for file, entry in package["files"].items()}
    present = {path.name for path in FOLDER.iterdir()} - {MANIFEST.name}
    problems = [f"{name} is not listed" for name in sorted(present - listed.keys())]
    problems += [f"{name} is missing" for name in sorted(listed.keys() - present)]
    changed = [name for name in sorted(listed.keys() & present) if _digest((FOLDER / name).read_bytes()) != listed[name]]
    return problems + [f"{name} has another digest" for name in changed]


def fetch() -> None:
    """Fetch all files, and write their digests into the manifest."""
    packages = _manifest()
    for package in packages:
        with tempfile.TemporaryDirectory() as folder:
            name = f"{package['package']}@{package['version']}"
            done = subprocess.run(["npm", "pack", "--silent", name], cwd=folder, check=True, capture_output=True, text=True)
            with tarfile.open(Path(folder) / done.stdout.split()[-1]) as archive:
                for file, entry in package["files"].items():
                    member = archive.extractfile(f"package/{entry['from']}")
                    assert member is not None, f"{name} has no {entry['from']}"
                    data = member.read()
                    entry["sha256"] = _digest(data)
                    (FOLDER / file).write_bytes(data)
    MANIFEST.write_text(json.dumps(packages, indent=2) + "\n")


def _manifest() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(MANIFEST.read_text())
    return found


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/vendor", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit code 1 if something differs")
    if not parser.parse_args(arguments).check:
        fetch()
    problems = check()
    print("\n".join(problems) or "The files are those of the manifest.")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
