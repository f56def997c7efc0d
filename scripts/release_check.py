"""Checks of distributions, for scripts/release.

release_check.py repack FILE.tar.gz...   writes source distributions again, so that equal contents are equal bytes
release_check.py contents DIRECTORY      what is in the wheels and source distributions, and what their metadata says
release_check.py dependencies PROJECT... the requirements of projects, except torch and each other
"""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

NATIVE_SOURCES = {
    "aotpack": {
        *(f"aotpack/_torch/inductor/csrc/{name}.h" for name in ("kernels", "large_pages", "lstm", "products")),
    },
    "aotpack_loader": {
        *(f"aotpack_loader/csrc/{name}.cpp" for name in ("autograd", "call", "document", "method", "python", "update")),
        *(
            f"aotpack_loader/csrc/{name}.h"
            for name in ("autograd", "document", "graphs", "json", "method", "python_host", "update")
        ),
    },
}
LICENCES = {"aotpack": "Apache-2.0 AND MIT AND ISC", "aotpack_loader": "Apache-2.0"}
"""aotpack's pages hold libraries of others, with their licences beside them."""


def repack(path: Path, time: int) -> None:
    """Members in the order of their names, all of one time and of no user: setuptools takes these from the file system."""
    with tarfile.open(path) as archive:
        members = [(member, archive.extractfile(member)) for member in sorted(archive.getmembers(), key=lambda each: each.name)]
        contents = [(member, None if file is None else file.read()) for member, file in members]
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for member, data in contents:
            clean = tarfile.TarInfo(member.name)
            clean.type, clean.size, clean.mtime = member.type, member.size, time
            clean.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            archive.addfile(clean, None if data is None else io.BytesIO(data))
    path.write_bytes(gzip.compress(written.getvalue(), mtime=time))


def dependencies(*projects: Path) -> list[str]:
    """What a user who installs these projects gets beside torch, with the extras that one asks of another."""
    tables = [tomllib.loads((project / "pyproject.toml").read_text())["project"] for project in projects]
    extras = {table["name"]: table.get("optional-dependencies", {}) for table in tables}
    found: set[str] = set()
    for requirement in (requirement for table in tables for requirement in table["dependencies"]):
        name, _, chosen = re.split(r"[<>=!~]", requirement)[0].rstrip("]").partition("[")
        if name in extras:
            found.update(each for extra in filter(None, chosen.split(",")) for each in extras[name][extra])
        elif name != "torch":
            found.add(requirement)
    return sorted(found)


def contents(directory: Path) -> list[str]:
    """What is wrong with the distributions, a line each."""
    wrong = []
    wheels = {wheel.name.split("-")[0]: wheel for wheel in directory.glob("*.whl")}
    sources = {source.name.rsplit("-", 1)[0]: source for source in directory.glob("*.tar.gz")}
    for name in ("aotpack", "aotpack_loader"):
        if name not in wheels or name not in sources:
            wrong.append(f"{name}: there is no wheel, or no source distribution")
            continue
        wrong += [f"{wheels[name].name}: {problem}" for problem in _wheel(name, wheels[name])]
        wrong += [f"{sources[name].name}: {problem}" for problem in _source(name, sources[name])]
    return wrong


def _wheel(name: str, path: Path) -> list[str]:
    with zipfile.ZipFile(path) as archive:
        files = set(archive.namelist())
        metadata = next(file for file in files if file.endswith(".dist-info/METADATA"))
        parsed = Parser().parsestr(archive.read(metadata).decode())
    wrong = _metadata(name, parsed)
    required = {f"{name}/__init__.py", f"{name}/py.typed", *NATIVE_SOURCES[name]}
    wrong += [f"{file} is missing" for file in sorted(required - files)]
    if not any(file.endswith(".dist-info/licenses/LICENSE") for file in files):
        wrong.append("the licence is missing")
    vendored = {file for file in files if "/vendor/" in file and file.endswith(".js")}
    licences = {file.rpartition("/")[2] for file in files if ".dist-info/licenses/" in file}
    wrong += [f"the licence of {file} is missing" for file in sorted(vendored) if not _is_licensed(file, licences)]
    strangers = [file for file in files if not file.startswith((f"{name}/", f"{name}-"))]
    return wrong + [f"{file} does not belong in it" for file in sorted(strangers)]


def _is_licensed(file: str, licences: set[str]) -> bool:
    library = file.rpartition("/")[2].partition(".")[0]
    return any(licence.startswith(f"{library}.") for licence in licences)


def _source(name: str, path: Path) -> list[str]:
    with tarfile.open(path) as archive:
        files = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    required = {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO", f"{name}/py.typed", *NATIVE_SOURCES[name]}
    return [f"{file} is missing" for file in sorted(required - files)]


def _metadata(name: str, metadata: Message) -> list[str]:
    wrong = []
    if metadata["License-Expression"] != LICENCES[name]:
        wrong.append(f"License-Expression is {metadata['License-Expression']!r}")
    if not any("Typing :: Typed" in value for value in metadata.get_all("Classifier", [])):
        wrong.append("it has no classifier 'Typing :: Typed'")
    if not str(metadata.get_payload()).strip():
        wrong.append("it has no description")
    return wrong


def main(command: str, *paths: str) -> None:
    if command == "repack":
        for path in paths:
            repack(Path(path), int(os.environ["SOURCE_DATE_EPOCH"]))
        return
    if command == "dependencies":
        print(*dependencies(*map(Path, paths)), sep="\n")
        return
    wrong = contents(Path(paths[0]))
    if wrong:
        sys.exit("\n".join(wrong))
    print("contents and metadata are complete")


if __name__ == "__main__":
    main(*sys.argv[1:])
