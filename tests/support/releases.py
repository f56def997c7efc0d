"""The release of torch that tests run with."""

from __future__ import annotations

from typing import Final

import torch

from aotpack._torch.fixes.register import Minor, minor

TORCH: Final[Minor] = minor(str(torch.__version__))
