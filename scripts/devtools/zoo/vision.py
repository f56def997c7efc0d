"""Makes torchvision importable if its compiled part does not load.

On PyPI torchvision is compiled for CUDA, which torch's CPU build lacks. timm imports torchvision
and calls none of its operators. torchvision's Python part registers shape rules for two of them, so
they must be defined before the import. A call of one would report that it has no kernel.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch

_WITH_SHAPE_RULES = ("nms", "qnms")


def name_operators() -> None:
    """Define the operators that torchvision's Python part needs, if its compiled part does not load."""
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        return
    try:
        torch.ops.load_library(Path(found.origin).with_name("_C.so"))
    except OSError:
        for name in _WITH_SHAPE_RULES:
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


name_operators()
