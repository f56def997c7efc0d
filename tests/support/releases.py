"""The release of torch and the processor that tests run with."""

from __future__ import annotations

from typing import Final

import torch

from aotpack._torch.fixes.register import Minor, minor

TORCH: Final[Minor] = minor(str(torch.__version__))


def has_avx512() -> bool:
    """Whether Inductor writes vectors of 16 numbers here."""
    return "AVX512" in torch.backends.cpu.get_cpu_capability()
