"""Calls bundles in a new process without the compiler, and compares them with recorded results of eager.

The argument is a folder. Each ``NAME.aotpack`` in it is loaded and compared with ``NAME.pt`` beside
it. Prints JSON: the differences by name, and the number of bundles.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

import aotpack_loader
from aotpack.checking.observation import Observation
from aotpack_loader.errors import AotpackError

from .observe import compare, observe, one_line
from .samples import Sample, is_whole

COMPILERS = ("torch._dynamo", "torch._inductor", "aotpack.pipeline.pipeline")


def keep(sample: Sample, eager: Observation, bundle: Path, target: str, folder: Path, name: str) -> None:
    """Store a bundle, its arguments and eager's results in ``folder``."""
    if not is_whole(sample):
        return  # it uses a function of the operator's own, which cannot be stored in a file
    stem = name.replace("/", "-")
    (folder / f"{stem}.aotpack").write_bytes(bundle.read_bytes())
    plain = replace(sample, function=aotpack_loader.load, differentiated=_all)
    torch.save((plain, eager, target), folder / f"{stem}.pt")


def _all(result: object) -> object:
    return result


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    found: dict[str, str] = {}
    bundles = sorted(folder.glob("*.aotpack"))
    for bundle in bundles:
        sample, eager, target = torch.load(bundle.with_suffix(".pt"), weights_only=False)
        try:
            loaded = aotpack_loader.load(bundle, backend=target, trust=None if target == "portable" else "all")
        except AotpackError as error:
            found[bundle.stem] = one_line(error)
            continue
        if differences := compare(sample, eager, observe(loaded, sample), compiled=target != "portable"):
            found[bundle.stem] = "; ".join(differences)[:600]
    imported = [name for name in COMPILERS if name in sys.modules]
    if imported:
        found["process"] = f"imported {', '.join(imported)}"
    print(json.dumps({"bundles": len(bundles), "wrong": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
