"""The calling convention of a method: its document and its two graphs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec import structs
from torch.fx import GraphModule

from aotpack_loader.format import schema

from .._torch.api.torch_types import ShapeEnv

NOT_STORED: Final = schema.Descriptor("", "", 0)
"""Stands in a method's document for its graphs, which have no descriptors until they are stored."""


@dataclass(frozen=True)
class Convention:
    """The calling convention of a method: its document, in which graphs are :data:`NOT_STORED`, and its two graphs."""

    forward: GraphModule
    backward: GraphModule | None
    method: schema.Method
    shape_env: ShapeEnv | None
    saved_bytes: int
    written_in_checkpoints: list[str]

    @property
    def described_backward(self) -> schema.Backward:
        """The document of the backward of a method that has one."""
        assert self.method.backward is not None
        return self.method.backward

    def changed(self, **fields: Any) -> Convention:
        """Return the convention with other values of fields of its method."""
        return replace(self, method=structs.replace(self.method, **fields))
