"""torchvision where its compiled part does not load: on PyPI it is compiled for CUDA, which torch's CPU build has not.

timm imports torchvision and calls none of its operators. For two of them its Python part registers shape rules, so they must be
there by name before it is imported; a call would say that there is no kernel.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch

_WITH_SHAPE_RULES = ("nms", "qnms")


def name_operators() -> None:
    """Define what torchvision's Python part needs by name, if its compiled part does not load."""
    found = find_spec("torchvision")
    if found is None or found.origin is None:
        return
    try:
        torch.ops.load_library(Path(found.origin).with_name("_C.so"))
    except OSError:
        for name in _WITH_SHAPE_RULES:
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


name_operators()
