"""Checks of distributions, for scripts/release.

release_check.py repack FILE.tar.gz...   writes source distributions again, so that equal contents are equal bytes
release_check.py contents DIRECTORY      what is in the wheels and source distributions, and what their metadata says
"""

from __future__ import annotations

import gzip
import io
import os
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

NATIVE_SOURCES = {"aotpack": {"aotpack/_torch/call.cpp"}, "aotpack_loader": set[str]()}


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
    wrong = _metadata(parsed)
    required = {f"{name}/__init__.py", f"{name}/py.typed", *NATIVE_SOURCES[name]}
    wrong += [f"{file} is missing" for file in sorted(required - files)]
    if not any(file.endswith(".dist-info/licenses/LICENSE") for file in files):
        wrong.append("the licence is missing")
    strangers = [file for file in files if not file.startswith((f"{name}/", f"{name}-"))]
    return wrong + [f"{file} does not belong in it" for file in sorted(strangers)]


def _source(name: str, path: Path) -> list[str]:
    with tarfile.open(path) as archive:
        files = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    required = {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO", f"{name}/py.typed", *NATIVE_SOURCES[name]}
    return [f"{file} is missing" for file in sorted(required - files)]


def _metadata(metadata: Message) -> list[str]:
    wrong = []
    if metadata["License-Expression"] != "Apache-2.0":
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
    wrong = contents(Path(paths[0]))
    if wrong:
        sys.exit("\n".join(wrong))
    print("contents and metadata are complete")


if __name__ == "__main__":
    main(*sys.argv[1:])
