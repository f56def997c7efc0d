"""Decides whether code compiled for one minor release of torch may run on another.

AOTInductor's code uses only the functions of torch's stable C interface. It may run on another
release under two conditions. torch must export every name that the target lists, and this pair of
releases must have been tried. The trial compares compiled cases of the conformance table with eager
(scripts/test-torch-matrix). For a pair that was not tried, a caller must request the run.
"""

from __future__ import annotations

from typing import Final

import torch

from .._symbols import not_exported_by_torch
from ..format import schema
from ..format.versions import torch_satisfies
from .tried_releases import minor, tried_releases

_SHOWN: Final = 5


def unlike_torch(target: schema.Target, *, allow_untested: bool = False) -> str:
    """Why the code of ``target`` cannot run on this torch, or an empty string."""
    installed = str(torch.__version__)
    if torch_satisfies(installed, target.torch):
        return ""
    reason = f"compiled for torch {target.torch}, this is {installed}"
    if not target.imports:
        return reason
    if missing := not_exported_by_torch(target.imports):
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        return f"{reason}, which lacks what the code calls: {', '.join(missing[:_SHOWN])}{more}"
    if allow_untested or is_tried(target):
        return ""
    return f"{reason}; it was not tried there: load with allow_untested_torch=True to run it all the same"


def is_tried(target: schema.Target) -> bool:
    """Whether code of the target's release of torch was tried on this one."""
    return minor(str(torch.__version__)) in tried_releases(target)
