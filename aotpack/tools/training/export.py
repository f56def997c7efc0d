"""Weights of a bundle or a checkpoint as plain safetensors, with the names of the original's state dict."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from aotpack_loader.archive.bundle import Bundle
from aotpack_loader.archive.temporaries import temporary_directory
from aotpack_loader.archive.weights import CODES
from aotpack_loader.checkpoints.folder import DOCUMENT, dtype_name, read_folder, shards, write_tensors
from aotpack_loader.errors import AotpackError, Problem

SHARD_BYTES = 5 * 10**9


@dataclass(frozen=True)
class ExportReport:
    """What was written: the files, the number of tensors, and their bytes."""

    files: list[Path]
    tensors: int
    size: int


def export_weights(source: Path, out: Path, shard_bytes: int = SHARD_BYTES) -> ExportReport:
    """Write the parameters and persistent buffers of ``source`` to ``out``. Tied ones are written under each of their names.

    More than ``shard_bytes`` become several files with an index, as ``transformers`` and others read them.

    Raises:
        AotpackError: ``source`` is neither a bundle nor a checkpoint, or has tensors that safetensors files do not hold.
        OSError: ``out`` cannot be written.
    """
    if out.suffix != ".safetensors":
        raise AotpackError(f"{out} does not end in .safetensors.")
    with _weights(source) as tensors:
        problems = [Problem(name, f"is of {t.dtype}") for name, t in tensors.items() if dtype_name(t) not in CODES]
        if problems:
            raise AotpackError("Safetensors files do not have these element types.", problems)
        parts = [*shards(tensors, shard_bytes)] or [{}]
        names = (
            [out.name]
            if len(parts) == 1
            else [f"{out.stem}-{i + 1:05}-of-{len(parts):05}{out.suffix}" for i in range(len(parts))]
        )
        with temporary_directory(out.parent) as folder:
            for name, part in zip(names, parts, strict=True):
                write_tensors(folder / name, part, {"format": "pt"})
            if len(parts) > 1:
                index = {
                    "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
                    "weight_map": {key: name for name, part in zip(names, parts, strict=True) for key in sorted(part)},
                }
                names.append(f"{out.name}.index.json")
                (folder / names[-1]).write_text(json.dumps(index, indent=2) + "\n")
            for name in names:
                (folder / name).replace(out.parent / name)
        return ExportReport([out.parent / name for name in names], len(tensors), sum(t.nbytes for t in tensors.values()))


@contextmanager
def _weights(source: Path) -> Iterator[dict[str, torch.Tensor]]:
    """The tensors of a state dict, by name."""
    if (source / DOCUMENT).is_file():
        opened = read_folder(source)
        names = {name: name for name in opened.document.model} | opened.document.tied
        yield {name: opened.model[first] for name, first in names.items() if name not in opened.document.transient}
        return
    with Bundle.open(source) as bundle:
        state = [entry for entry in bundle.program.state if entry.persistent]
        problems = [Problem(entry.name, f"is a {entry.subclass.name}") for entry in state if entry.subclass is not None]
        if problems:
            raise AotpackError("Tensor subclasses cannot be exported.", problems)
        weights = bundle.weights()
        yield {entry.name: weights.tensor(entry) for entry in state}
