"""The calling convention of a method, as plain data beside its two graphs."""

from __future__ import annotations

from dataclasses import dataclass

from torch.fx import GraphModule

from aotpack_loader.format import schema

from .._torch.api.torch_types import ShapeEnv


@dataclass(frozen=True)
class MethodSpec:
    """A method's document (:class:`aotpack_loader.format.schema.Method`) without what describes its graphs."""

    inputs: schema.Tree
    leaves: list[schema.InputLeaf]
    outputs: schema.Tree
    updates: list[schema.Update]
    results: list[schema.Result]
    primals: list[schema.Primal]
    num_outputs: int
    symbols: list[schema.Symbol]
    constraints: list[str]
    mutations: list[schema.Mutation]
    touched: list[int]
    output_symbols: list[schema.OutputSymbol]
    non_differentiable: list[int]
    subclasses: list[schema.Subclass | None]
    sizes: list[schema.Dim]


@dataclass(frozen=True)
class Convention:
    """The calling convention of a method: its document without the graphs' descriptors, and its two graphs."""

    forward: GraphModule
    backward: GraphModule | None
    method: MethodSpec
    saved: list[schema.Saved]
    tangents: list[schema.Tangent]
    gradients: list[int | None]
    depends: list[list[int]]
    sparse: list[schema.SparseGradient]
    tangent_writes: list[schema.TangentWrite]
    result_sources: list[list[int]]
    subclasses: list[schema.Subclass | None]
    shape_env: ShapeEnv | None
    saved_bytes: int
    written_in_checkpoints: list[str]
