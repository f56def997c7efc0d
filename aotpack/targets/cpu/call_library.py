"""Adds the call library to a bundle.

It is compiled once per torch, Python and toolchain, then taken from the cache.
"""

from __future__ import annotations

import subprocess
import tempfile
import warnings
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

from aotpack_loader.archive.temporaries import temporary_directory
from aotpack_loader.devices.call_library import INTERFACE
from aotpack_loader.format import media_types, schema

from ..._torch.inductor.toolchain import call_compiler, commands
from ...writer.bundle import BlobStore
from ...writer.cache import CompileCache


class CallLibraryWarning(UserWarning):
    """The call library could not be compiled: the bundle is complete, and Python makes its calls
    instead.
    """


def library_bytes() -> bytes | None:
    """The library, compiled or from the cache; null, with a warning, if it cannot be compiled.

    The library is not part of a model. A build that recompiles a model's graphs therefore still
    takes it from the cache.
    """
    cache = CompileCache()
    source = call_compiler.call_library_source()
    options = {**commands.inductor_fingerprint(), **call_compiler.call_library_fingerprint()}
    found = cache.find_object(source, options)
    if found is None:
        with temporary_directory(Path(tempfile.gettempdir())) as folder:
            output = folder / "call.so"
            try:
                call_compiler.compile_call_library(output)
            except (OSError, subprocess.CalledProcessError) as error:
                warnings.warn(_message(error), CallLibraryWarning, stacklevel=2)
                return None
            found = output.read_bytes()
        cache.keep_object(source, options, found)
    return found


def _message(error: OSError | subprocess.CalledProcessError) -> str:
    text = str(error.stderr) if isinstance(error, subprocess.CalledProcessError) else str(error)
    reason = next((line for line in text.splitlines() if "error" in line), str(error))
    return f"The call library cannot be compiled, so that calls of the bundle take some 20 µs more: {reason}"


def add_call_library(code: bytes, store: BlobStore) -> schema.CallLibrary:
    """Put the library into a bundle."""
    descriptor = store.add_compressed(code, media_types.CODE_CALL)
    return schema.CallLibrary(descriptor, INTERFACE, str(torch.__version__), EXTENSION_SUFFIXES[0])
