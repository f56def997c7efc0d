"""Rejects a model that resizes a storage while it is traced without Dynamo: the graph would lose it.

Dynamo's graph has an operation for it, which :mod:`aotpack.capture` rejects.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ..api.counting import count_call
from ..api.patching import caller, hooked

RESIZES = "resizes the storage of a tensor (untyped_storage().resize_)"
_MAKES_FAKES = ("torch._subclasses.", "aotpack.")
"""Modules that give fake tensors the storage of a real one."""


class StorageResizeError(Exception):
    """The model resizes the storage of a tensor."""


@contextlib.contextmanager
def no_storage_resizes() -> Iterator[None]:
    """Reject ``untyped_storage().resize_`` and ``storage().resize_`` while the model's Python runs.

    Raises:
        StorageResizeError: a storage is resized.
    """
    original = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, size: int) -> Any:
        count_call("fake-storage-resizes")
        if not str(caller().f_globals.get("__name__")).startswith(_MAKES_FAKES):
            raise StorageResizeError(RESIZES)
        return original(storage, size)

    with hooked("fake-storage-resizes", torch.UntypedStorage, "resize_", resize):
        yield
