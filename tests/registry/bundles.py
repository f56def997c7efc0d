"""Bundles for transfers: large enough to be interrupted, with two targets, or with a base that two share."""

from __future__ import annotations

from pathlib import Path

import torch
from support.archive import PORTABLE, tiny_graph, tiny_program

from aotpack.writer.bundle import BlobStore, TargetEntry, write_bundle
from aotpack.writer.weights import write_weights
from aotpack_loader.format import media_types
from aotpack_loader.format.codec import encode
from aotpack_loader.format.schema import Executable, GivenInput, Platform, Target

CPU = "cpu:x86-64-v3"
CODE_BYTES = 2_000_000


def noise(count: int, seed: int) -> bytes:
    """Bytes that do not compress."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator).numpy().tobytes()


def write_two(out: str | Path, *, base: int = 0, adapter: int | None = None) -> str:
    """Write a bundle for two targets and return its digest.

    ``base`` is the seed of 6 MB of weights, ``adapter`` that of a further small blob.
    """
    with BlobStore(out) as store:
        values = torch.frombuffer(bytearray(noise(6_000_000, base)), dtype=torch.uint8)
        weights = write_weights([("base", values)], store)
        weights += write_weights([("scale", torch.arange(4.0) + (adapter or 0))], store)
        graph = store.add_compressed(encode(tiny_graph()), media_types.GRAPH)
        code = store.add_compressed(noise(CODE_BYTES, 1), media_types.CODE_AOTI)
        shared = [graph, *weights]
        executables = {"infer.forward": Executable(code, [GivenInput(0), GivenInput(1)], [0])}
        cpu = Target(CPU, "aoti", "cpu", executables, "amd64", "x86-64-v3", torch=">=2.13,<2.14")
        targets = [TargetEntry(PORTABLE, None, shared), TargetEntry(cpu, Platform("amd64", "linux", "v3"), [*shared, code])]
        return write_bundle(out, store, tiny_program(graph, weights, name="two"), targets)
