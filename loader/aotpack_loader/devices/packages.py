"""The directory form in which torch's runner takes a library of AOTInductor, in the cache of extracted code."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from ..archive import digest
from ..errors import CorruptBundleError, DirectoryError

_MODEL: Final = Path("data", "aotinductor", "model")
_LIBRARY: Final = "code.wrapper.so"


def library_of(package: Path) -> str:
    """The path of the library in a package."""
    return os.fspath(package / _MODEL / _LIBRARY)


def require_operators(fallbacks: bytes) -> None:
    """Check that all operators that code calls through the dispatcher are registered. ``fallbacks`` lists them.

    Raises:
        UnsupportedVersionError: some are not.
    """
    from . import generator, operators  # most code calls none

    called = set(operators_called(fallbacks))
    if any(name.startswith("aotpack.") for name in called):
        generator.register()
    operators.require(called)


def operators_called(fallbacks: bytes) -> list[str]:
    """Names of the operators in a list of fallbacks, in its order.

    The list has ``namespace::name``, and ``.overload`` unless it is the default.
    """
    try:
        targets = [str(item["node"]["target"]) for item in json.loads(fallbacks)["nodes"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptBundleError("The list of operators that compiled code calls cannot be read.") from error
    names = [target.replace("::", ".", 1) for target in targets]
    return [name if name.count(".") > 1 else f"{name}.default" for name in names]


def package_of(
    library: Path, fallbacks: bytes | None, *, device: str = "cpu", kernels: Mapping[str, Path] = MappingProxyType({})
) -> Path:
    """The library in the directory form that torch's runner takes, next to the library in the cache.

    It is made under another name and renamed, so that concurrent processes see all of it or
    nothing. An existing one is used only if it holds the same library that was just checked, the same
    fallbacks, and the same ``kernels``: files of the cache, by name.
    """
    texts = {"code.wrapper_metadata.json": json.dumps({"AOTI_DEVICE_KEY": device}).encode()}
    if fallbacks is not None:
        texts["code.wrapper.json"] = fallbacks
    files = {_LIBRARY: library, **{f"{name}.cubin": path for name, path in kernels.items()}}
    named = [f"{name}={path.stem}\n".encode() for name, path in kernels.items()]
    key = digest.sha256(b"".join([library.stem.encode(), *texts.values(), *named]))
    package = library.with_name(f"{digest.hex_part(key)}.package")
    try:
        if not _is_package(package, files, texts):
            from ..archive.temporaries import replace_directory, temporary_directory  # not needed for a package that is there

            with temporary_directory(library.parent) as made:
                _fill_package(made, files, texts)
                replace_directory(made, package)  # one that is there is damaged, or another process was faster
    except OSError as error:
        raise DirectoryError(
            f"Compiled code cannot be unpacked to {package}: {error.strerror}.",
            hint="Set AOTPACK_CACHE to a directory with enough space.",
        ) from error
    return package


def _is_package(package: Path, files: Mapping[str, Path], texts: Mapping[str, bytes]) -> bool:
    folder = package / _MODEL
    try:
        for name, path in files.items():
            if not (folder / name).samefile(path) and (folder / name).read_bytes() != path.read_bytes():
                return False
        return all((folder / name).read_bytes() == data for name, data in texts.items())
    except FileNotFoundError:
        return False


def _fill_package(made: Path, files: Mapping[str, Path], texts: Mapping[str, bytes]) -> None:
    (made / _MODEL).mkdir(parents=True)
    for name, data in texts.items():
        (made / _MODEL / name).write_bytes(data)
    for name, path in files.items():
        try:
            os.link(path, made / _MODEL / name)
        except OSError:  # a file system without links, or with a limit on them
            shutil.copy(path, made / _MODEL / name)
