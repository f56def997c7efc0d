"""How much longer the first access to memory takes than the second: what no first step of a process can avoid.

    first_touch.py m.aotpack

A step reads the weights, which the bundle's file holds, and writes gradients of the same size. Prints
``{"read_seconds": ..., "write_seconds": ...}``.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from devtools.bench.runner import timed

_PIECE = 1 << 22
"""Bytes read or written at a time, which fit in the processor's caches."""


def main() -> None:
    torch.set_num_threads(1)
    (path,) = sys.argv[1:]
    size = Path(path).stat().st_size // 4 * 4
    weights = torch.from_file(path, shared=False, size=size // 4, dtype=torch.float32).split(_PIECE // 4)
    gradients = torch.empty(size // 4).split(_PIECE // 4)
    read = _added_by_first(lambda: [piece.sum() for piece in weights])
    written = _added_by_first(lambda: [piece.zero_() for piece in gradients])
    print(json.dumps({"read_seconds": read, "write_seconds": written}))


def _added_by_first(run: Callable[[], object]) -> float:
    (first, _), (second, _) = timed(run), timed(run)
    return first - second


if __name__ == "__main__":
    main()
